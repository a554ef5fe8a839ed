"""Programs that keep sizes mean the same as before their tails are cut, at every size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search_space.programs import result
from tests.search_space.tiled_products import tiled_product
from tilesmith.search_space.expressions.expression import as_expr, ceildiv, const, minimum, var
from tilesmith.search_space.expressions.scalar import Const, load
from tilesmith.search_space.expressions.sizes import Size
from tilesmith.search_space.ir.lanes import most_of, settle_lanes
from tilesmith.search_space.ir.program import (
    Allocate,
    Block,
    Buffer,
    If,
    Loop,
    Program,
    print_program,
    walk,
)
from tilesmith.search_space.ir.transforms.ragged import cut, roll, within_ranges
from tilesmith.search_space.ir.transforms.specialisation import finish
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.support.errors import ScheduleError

MOST = 13
N = var("n")


@st.composite
def tilings(draw: st.DrawFn) -> Program:
    """A tiled product whose extents vary or not."""
    extents = [
        draw(st.sampled_from((var(name), 1, 5, 12))) for name in ("rows", "columns", "depth")
    ]
    m, n, k = map(as_expr, extents)
    used = sorted(m.variables() | n.variables() | k.variables())
    program = lower(tiled_product(draw, m, n, k))
    return replace(program, sizes=tuple(Size(name, 1, MOST) for name in used))


@given(tilings(), st.lists(st.integers(1, MOST), min_size=9, max_size=9))
@settings(max_examples=40)
def test_cutting_keeps_the_meaning(program: Program, drawn: list[int]) -> None:
    verify(program)
    finished = finish(program)
    for statement in walk(finished.body):
        if isinstance(statement, Loop) and statement.kind == "unroll":
            assert statement.extent.constant is not None
        if isinstance(statement, Loop) and statement.kind == "vector":
            assert most_of(statement.extent) is not None
    for start in range(0, 9, 3):
        values = dict(zip(("rows", "columns", "depth"), drawn[start : start + 3], strict=True))
        bound = finished.bind(values)
        verify(bound)
        m, k = (e.constant or 0 for e in bound.parameter("a").shape)
        n = bound.parameter("b").shape[1].constant or 0
        rng = np.random.default_rng(0)
        a, b = (rng.integers(-4, 5, s).astype(np.float32) for s in ((m, k), (k, n)))
        np.testing.assert_array_equal(result(bound, {"a": a, "b": b}), a @ b - 1)


def tiled(tile: int, kind: str = "serial") -> Loop:
    t, i = var("t"), var("i")
    block = Block("y", "y", (t * tile + i,), load("x", t * tile + i))
    short = Loop("i", minimum(tile, N - t * tile), "unroll", block)
    return Loop("t", ceildiv(N, tile), kind, short)  # type: ignore[arg-type]


def test_full_tiles_part_from_the_short_one() -> None:
    full, short = cut(tiled(12)).statements  # type: ignore[union-attr]
    assert full.extent == minimum(N // 12, ceildiv(N, 12)) and full.body.extent == const(12)
    assert short.extent == minimum(1, ceildiv(N, 12) - N // 12) or short.extent.variables() == {"n"}
    assert most_of(short.body.extent) == 11


def test_threads_share_the_short_tile() -> None:
    whole = cut(tiled(4, "parallel"))
    assert isinstance(whole, Loop) and whole.kind == "parallel" and isinstance(whole.body, If)
    assert whole.body.condition == (N // 4 - 1 - var("t"),)


def test_tiles_of_a_multiple_have_no_tail() -> None:
    t, i = var("t"), var("i")
    block = Block("y", "y", (t * 4 + i,), load("x", t * 4 + i))
    loop = Loop("t", N * 3, "serial", Loop("i", minimum(4, 12 * N - t * 4), "unroll", block))
    x, y = (Buffer(name, (12 * N,), role=role) for name, role in (("x", "input"), ("y", "output")))
    finished = finish(Program("copy", (x, y), loop, sizes=(Size("n", 1, 9),)))
    assert "unroll i in 4:" in print_program(finished) and "min" not in print_program(finished)


def test_steps_roll_into_one_loop() -> None:
    rolled = roll(tiled(4))
    assert isinstance(rolled, Loop) and rolled.kind == "serial"
    assert rolled.body == Block("y", "y", (var("i"),), load("x", var("i")))
    values = [rolled.extent.evaluate({"n": n}) for n in range(1, 20)]
    assert values == list(range(1, 20))


def test_steps_that_move_unevenly_stay() -> None:
    loop = tiled(4)
    uneven = Block("y", "y", (var("t") * 3 + var("i"),), Const(0.0))
    loop = replace(loop, body=replace(loop.body, body=uneven))
    assert roll(loop) == loop


def test_ranges_decide() -> None:
    block = Block("y", "y", (minimum(var("n"), 20) - N, (N + 3) // 16), Const(0.0))
    y = Buffer("y", (const(1), const(9)), role="output")
    found = within_ranges(Program("p", (y,), block, sizes=(Size("n", 1, 12),))).body
    assert isinstance(found, Block) and found.indices == (const(0), const(0))


def test_what_would_be_unrolled_without_end_is_refused() -> None:
    block = Block("y", "r", (var("i"),), Const(0.0))
    register = Buffer("r", (N,), scope="register")
    program = Program(
        "p", (), Allocate(register, Loop("i", N, "unroll", block)), sizes=(Size("n", 1, 9),)
    )
    with pytest.raises(ScheduleError, match="would be unrolled n times, which varies"):
        finish(program)


def test_lanes_side_by_side_stay_together() -> None:
    q, lane = var("q"), var("lane")
    place = (N // 16) * 16 + q * 16 + lane
    near = Block("y", "y", (place // 32, place % 32), load("x", place))
    far = Block("y", "y", (lane, q), load("x", place))
    for block, kind in ((near, "vector"), (far, "serial")):
        inner = Loop("lane", minimum(16, N - q * 16), "vector", block)
        found = settle_lanes(Loop("q", const(2), "serial", inner), frozenset())
        assert isinstance(found, Loop) and isinstance(found.body, Loop)
        assert found.body.kind == kind
        if block is near:
            row, column = found.body.body.indices  # type: ignore[union-attr]
            assert row == (N // 16 + q) // 2 and column == ((N // 16 + q) % 2) * 16 + lane
