"""Passes over bound programs keep their meaning, for any extents and tile sizes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.search_space.programs import check, inputs_of, lowered, result
from tests.search_space.tiled_products import tiled_product
from tilesmith.search_space.expressions.expression import const, element, minimum, var
from tilesmith.search_space.expressions.scalar import Const, Select, load
from tilesmith.search_space.ir.program import (
    Allocate,
    Block,
    Buffer,
    Loop,
    Program,
    Sequence,
    print_program,
    walk,
)
from tilesmith.search_space.ir.transforms.simplification import peel_tails, resolve, simplify
from tilesmith.search_space.ir.transforms.specialisation import finish
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.schedule import Schedule


@st.composite
def tilings(draw: st.DrawFn) -> tuple[Schedule, np.ndarray, dict[str, np.ndarray]]:
    """A tiled product, what it gives, and its inputs."""
    schedule = tiled_product(draw, *(const(draw(st.integers(1, 13))) for _ in range(3)))
    arrays = inputs_of(schedule.compute)
    return schedule, arrays["a"] @ arrays["b"] - 1, arrays


@given(tilings())
def test_peeling_keeps_the_meaning(
    drawn: tuple[Schedule, np.ndarray, dict[str, np.ndarray]],
) -> None:
    schedule, expected, arrays = drawn
    program = check(schedule, expected, arrays)
    for statement in walk(finish(program).body):
        if isinstance(statement, Loop) and statement.kind in ("unroll", "vector"):
            assert statement.extent.constant is not None


@given(st.integers(1, 9), st.integers(0, 3), st.integers(1, 3), st.integers(1, 5))
def test_borders_keep_their_meaning(width: int, pad: int, taps: int, tile: int) -> None:
    """Padding as a select, windows over it: conditions are decided and loops specialised."""
    outputs = width + 2 * pad - taps + 1
    if outputs < 1:
        return
    x, s = axis("x", outputs), axis("s", taps)
    place = x.var + s.var - pad
    value = Select((place, width - 1 - place), load("d", place), Const(-9.0))
    compute = ComputeDefinition(
        "pool", (Tensor("d", (width,)),), (Stage("y", (x,), value, (s,), "max"),)
    )
    schedule = Schedule(compute).split("y", "x", tile, "xo", "xi").unroll("y", "s")
    arrays = inputs_of(compute)
    padded = np.pad(arrays["d"], pad, constant_values=-9.0)
    expected = np.array([padded[o : o + taps].max() for o in range(outputs)])
    check(schedule, expected, arrays)


def test_trivial_parts_disappear() -> None:
    x, y = Buffer("x", (const(4),), role="input"), Buffer("y", (const(4),), role="output")
    copy = Block("s", "y", (var("i") + var("j"),), load("x", var("i") + var("j")))
    nest = Loop("j", const(1), "serial", Loop("i", const(4), "serial", copy))
    body = Allocate(Buffer("unused", (const(4),)), nest)
    empty = Loop("z", const(0), "serial", copy)
    simple = simplify(Sequence((body, empty)))
    assert print_program(Program("p", (x, y), simple)).count("for") == 1
    assert "unused" not in str(simple)
    assert simplify(empty) == Sequence(())


def test_minima_are_resolved_where_the_order_is_certain() -> None:
    i = var("i")
    extent = minimum(4, 12 - i * 4)
    assert resolve(extent, {"i": const(2)}).constant == 4
    assert resolve(extent, {"i": const(3)}) == extent
    assert resolve(minimum(4, 3 - i), {"i": const(2)}) == 3 - i


def test_the_main_loop_and_its_tail_are_parted() -> None:
    i, n = axis("i", 10), Tensor("x", (10,))
    compute = ComputeDefinition("copy", (n,), (Stage("y", (i,), load("x", i.var)),))
    schedule = Schedule(compute).split("y", "i", 4, "io", "ii").vectorize("y", "ii")
    program = lowered(schedule)
    body = peel_tails(simplify(program.body))
    vectors = [s.extent.constant for s in walk(body) if isinstance(s, Loop) and s.kind == "vector"]
    assert vectors == [4, 2]
    arrays = inputs_of(compute)
    finished = finish(program)
    verify(finished)
    np.testing.assert_array_equal(result(finished, arrays), arrays["x"])


def test_peeling_reaches_into_indices_read_from_tensors() -> None:
    t, i = var("t"), var("i")
    rest = minimum(4, 10 - t * 4)
    block = Block("s", "y", (t * 4 + i,), load("x", element("places", rest - 1, 10)))
    loop = Loop("t", const(3), "serial", Loop("i", rest, "unroll", block))
    text = repr(peel_tails(loop))
    assert "places[3]" in text
    assert "max" not in text
