"""Reductions that go on from another stage's sums, and tiles with places of their own."""

from __future__ import annotations

import numpy as np
import pytest

from tests.search_space.programs import result
from tilesmith.search_space.expressions.scalar import Const, call, load
from tilesmith.search_space.ir.program import Allocate, Program, blocks, walk
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule

ROW, COLUMN, DEPTH, OTHER = axis("i", 5), axis("j", 4), axis("k", 3), axis("l", 6)


def two_products() -> ComputeDefinition:
    """y = 2 (a @ b + c @ d), the second product on to the first's sums."""
    first = call("multiply", load("a", ROW.var, DEPTH.var), load("b", DEPTH.var, COLUMN.var))
    second = call("multiply", load("c", ROW.var, OTHER.var), load("d", OTHER.var, COLUMN.var))
    whole = call("multiply", load("more", ROW.var, COLUMN.var), Const(2.0))
    return ComputeDefinition(
        "f",
        (Tensor("a", (5, 3)), Tensor("b", (3, 4)), Tensor("c", (5, 6)), Tensor("d", (6, 4))),
        (
            Stage("sum", (ROW, COLUMN), first, (DEPTH,), "sum"),
            Stage("more", (ROW, COLUMN), second, (OTHER,), "sum", onto="sum"),
            Stage("y", (ROW, COLUMN), whole),
        ),
    )


def tiles(program: Program) -> dict[str, int]:
    """Versions of each allocated tile."""
    found = [s.buffer for s in walk(program.body) if isinstance(s, Allocate)]
    return {buffer.name: buffer.versions for buffer in found}


@pytest.mark.parametrize("attached", [False, True])
def test_a_reduction_goes_on_from_another(attached: bool) -> None:
    schedule = Schedule(two_products())
    if attached:
        schedule = schedule.split("y", "i", 2, "io", "ii")
        for name in ("sum", "more"):
            schedule = schedule.compute_at(name, "y", "io")
    program, rng = lower(schedule), np.random.default_rng(0)
    arrays = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in (("a", (5, 3)), ("b", (3, 4)), ("c", (5, 6)), ("d", (6, 4)))
    }
    want = 2 * (arrays["a"] @ arrays["b"] + arrays["c"] @ arrays["d"])
    np.testing.assert_allclose(result(program, arrays), want, rtol=1e-5, atol=1e-6)
    assert set(tiles(program)) == {"sum"}, "one tile holds both"
    assert {block.buffer for block in blocks(program.body)} == {"sum", "y"}


def test_a_tile_may_have_places_of_its_own() -> None:
    schedule = Schedule(two_products()).split("y", "i", 2, "io", "ii").pipeline("y", "io", 2)
    for name in ("sum", "more"):
        schedule = schedule.compute_at(name, "y", "io")
    assert tiles(lower(schedule)) == {"sum": 2}
    assert tiles(lower(schedule.rotate("sum", 3))) == {"sum": 3}
