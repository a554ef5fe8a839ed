"""`compute_at(kept=...)`: elements made where one stage reads them, and read by another later."""

import numpy as np
import pytest

from tilesmith.search_space.expressions.scalar import call, load
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.program import Allocate, print_program, walk
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule


def shares(rows: int, columns: int) -> ComputeDefinition:
    """y[r, c] = e[r, c] / s[r], of e = exp(x) and its sums s."""
    r, c = axis("r", rows), axis("c", columns)
    at = (r.var, c.var)
    return ComputeDefinition(
        "shares",
        (Tensor("x", (rows, columns)),),
        (
            Stage("e", (r, c), call("exp", load("x", *at))),
            Stage("s", (r,), load("e", *at), (c,), "sum"),
            Stage("y", (r, c), call("divide", load("e", *at), load("s", r.var))),
        ),
    )


@pytest.mark.parametrize(("rows", "columns"), [(4, 6), (5, 7), (7, 1), (1, 5)])
def test_what_is_kept_is_made_once_and_read_twice(rows: int, columns: int) -> None:
    schedule = Schedule(shares(rows, columns)).split("y", "r", 3, "ro", "ri")
    schedule = schedule.compute_at("s", "y", "ro").split("s", "r", 2, "ro", "ri")
    schedule = schedule.reorder("s", ("ro", "c", "ri"))
    schedule = schedule.compute_at("e", "s", "c", kept=("y", "ro"))
    program = lower(schedule)
    assert print_program(program).count("exp(") == 1
    (kept,) = (
        s.buffer for s in walk(program.body) if isinstance(s, Allocate) if s.buffer.name == "e"
    )
    assert [extent.constant for extent in kept.shape] == [min(3, rows), columns]
    x = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    powers = np.exp(x.astype(np.float64))
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(interpret(program, {"x": x})["y"], expected, rtol=1e-5)
