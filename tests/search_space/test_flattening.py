"""Flattening against numpy: the merged loops visit the same elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilesmith.search_space.operator_parts.flattening import check_broadcast, flatten
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.parameter import check_extents


@st.composite
def broadcasts(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    operands = []
    for _ in range(draw(st.integers(1, 3))):
        rank = draw(st.integers(0, len(shape)))
        tail = shape[len(shape) - rank :]
        operands.append(tuple(e if draw(st.booleans()) else 1 for e in tail))
    return shape, operands


@given(broadcasts())
def test_flattened_operands_broadcast_to_the_same_elements(
    drawn: tuple[tuple[int, ...], list[tuple[int, ...]]],
) -> None:
    shape, operands = drawn
    flat = flatten(shape, operands)
    assert int(np.prod(flat.shape)) == int(np.prod(shape))
    for number, operand in enumerate(operands):
        array = np.arange(np.prod(operand, dtype=int)).reshape(operand)
        expected = np.broadcast_to(array, shape).reshape(flat.shape)
        moved = array.reshape(
            [e if moves else 1 for e, moves in zip(flat.shape, flat.varies[number], strict=True)]
        )
        assert flat.operand_shape(number) == tuple(
            e for e, moves in zip(flat.shape, flat.varies[number], strict=True) if moves
        )
        np.testing.assert_array_equal(np.broadcast_to(moved, flat.shape), expected)


def test_neighbours_merge_as_far_as_they_can() -> None:
    assert flatten((1, 64, 56, 56), [(1, 64, 56, 56)]).shape == (200704,)
    assert flatten((1, 64, 56, 56), [(1, 64, 56, 56), (64, 1, 1)]).shape == (64, 3136)
    assert flatten((1, 1), [(1,)]).shape == (1,)


def test_shapes_that_do_not_broadcast_are_named() -> None:
    check_broadcast("add", "x0", (3, 1), (2, 3, 4))
    for shape in ((2,), (5, 2, 3, 4), (2, 1)):
        with pytest.raises(WorkloadError, match="does not broadcast to 2x3x4"):
            check_broadcast("add", "x0", shape, (2, 3, 4))
    with pytest.raises(WorkloadError, match="shape=2x0 has an extent below 1"):
        check_extents("add", "shape", (2, 0))
