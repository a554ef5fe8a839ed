"""Functions put together of VXM's own, as its ALUs compute them, beside numpy in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tilesmith.families.lpu.codegen.dataflow import Operation
from tilesmith.families.lpu.codegen.selection.graphs.expressions import Algebra
from tilesmith.families.lpu.codegen.selection.graphs.series import sine
from tilesmith.families.lpu.codegen.selection.graphs.vectors import (
    Applied,
    Number,
    Stored,
    Vectors,
    nodes_of,
)
from tilesmith.families.lpu.simulator.execution.arithmetic import operate


def values(node: Vectors, given: Mapping[int, Any]) -> Any:
    """A graph on numbers, one ALU after another."""
    found = dict(given)
    for part in nodes_of(node):
        match part:
            case Number(value):
                found[id(part)] = np.full((1, 1), value, np.float32)
            case Applied(function, operands, dtype):
                numbers = tuple(range(len(operands)))
                operation = Operation(function, numbers, dtype)
                found[id(part)] = operate(operation, [found[id(o)] for o in operands])
    return found[id(node)]


@pytest.mark.parametrize("largest, error", [(20.0, 5e-7), (1e5, 5e-7), (1e7, 1e-6), (1.34e8, 1e-6)])
def test_sines_of_angles_of_many_turns(largest: float, error: float) -> None:
    x = np.random.default_rng(3).uniform(-largest, largest, (64, 320)).astype(np.float32)
    angle = Stored("x", np.zeros(1, np.int64), "float32")
    for quarters, exact in ((False, np.sin), (True, np.cos)):
        found = values(sine(Algebra(), angle, quarters), {id(angle): x})
        assert np.abs(found - exact(x.astype(np.float64))).max() <= error


def test_of_angles_that_cannot_be_reduced_there_is_no_sine() -> None:
    x = np.array([[2.0**27, -3e9, 1e30, np.inf, np.nan]], np.float32)
    angle = Stored("x", np.zeros(1, np.int64), "float32")
    for quarters in (False, True):
        assert np.isnan(values(sine(Algebra(), angle, quarters), {id(angle): x})).all()
