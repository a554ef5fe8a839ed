"""Reducers: each is known wherever programs are read, and a name that none has is a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.expressions.scalar import REDUCERS, load
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.intrinsics import computes
from tilesmith.search_space.ir.program import print_program
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.support.errors import ScheduleError

ROWS, COLUMNS = axis("r", 3), axis("c", 5)
NUMPY: dict[str, Any] = {
    "sum": np.sum, "max": np.max, "max_number": np.max, "min": np.min, "product": np.prod,
}  # fmt: skip


def reduction(reducer: str) -> ComputeDefinition:
    """y[r] = the numbers of row r of x, reduced."""
    value = load("x", ROWS.var, COLUMNS.var)
    stage = Stage("y", (ROWS,), value, (COLUMNS,), reducer)
    return ComputeDefinition("rows", (Tensor("x", (3, 5)),), (stage,))


@pytest.mark.parametrize("reducer", REDUCERS)
def test_each_reducer_means_what_numpy_says(reducer: str) -> None:
    program = lower(Schedule(reduction(reducer)))
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    y = interpret(program, {"x": x})["y"]
    np.testing.assert_allclose(y, NUMPY[reducer](x, axis=1), rtol=1e-6)
    again = NUMPY[reducer](x, axis=1, initial=REDUCERS[reducer])
    np.testing.assert_array_equal(again, NUMPY[reducer](x, axis=1))


def test_each_reducer_is_printed_as_itself() -> None:
    texts = {print_program(lower(Schedule(reduction(reducer)))) for reducer in REDUCERS}
    assert len(texts) == len(REDUCERS)


def test_an_unknown_reducer_is_refused_in_a_sentence() -> None:
    with pytest.raises(ScheduleError, match="stage 'y': 'mean'; one of sum, max"):
        reduction("mean")
    with pytest.raises(ScheduleError, match=r"unknown reducer of the instruction .*'summ'.*'sum'"):
        computes(load("row", var("i")), var("i"), reducer="summ")
