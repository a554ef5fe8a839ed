"""Layouts place every element where their index expressions say, and pack what they unpack."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilesmith.search_space.expressions.expression import const, var
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension
from tilesmith.search_space.support.errors import WorkloadError


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Layout, tuple[int, ...]]:
    """A layout of any dimension order, one or two axes split, and a logical shape."""
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=rank, max_size=rank)))
    dimensions: list[LayoutDimension] = []
    for axis in range(rank):
        factor = const(draw(st.sampled_from((1, 2, 3, 5))))
        if draw(st.booleans()):
            dimensions += [
                LayoutDimension(axis, "outer", factor), LayoutDimension(axis, "inner", factor)
            ]  # fmt: skip
        else:
            dimensions.append(LayoutDimension(axis))
    return Layout(tuple(draw(st.permutations(dimensions)))), shape


@given(layouts())
def test_packing_agrees_with_the_index_expressions(drawn: tuple[Layout, tuple[int, ...]]) -> None:
    layout, shape = drawn
    logical = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    packed = layout.pack(logical)
    assert packed.shape == layout.concrete_shape(shape)
    assert packed.flags.c_contiguous
    for place in itertools.product(*(range(extent) for extent in shape)):
        indices = layout.indices([const(i) for i in place], {})
        assert packed[tuple(index.constant or 0 for index in indices)] == logical[place]
    assert packed.sum() == logical.sum()  # padding is zero


@given(layouts())
def test_unpacking_inverts_packing(drawn: tuple[Layout, tuple[int, ...]]) -> None:
    layout, shape = drawn
    logical = np.arange(np.prod(shape)).reshape(shape)
    assert np.array_equal(layout.unpack(layout.pack(logical), shape), logical)


def test_nchw16c_is_what_numpy_says() -> None:
    data = np.arange(2 * 33 * 3 * 5, dtype=np.float32).reshape(2, 33, 3, 5)
    padded = np.pad(data, ((0, 0), (0, 15), (0, 0), (0, 0)))
    expected = padded.reshape(2, 3, 16, 3, 5).transpose(0, 1, 3, 4, 2)
    layout = Layout.parse("NCHW16c")
    assert np.array_equal(layout.pack(data), expected)
    assert [str(e) for e in layout.shape(data.shape)] == ["2", "3", "3", "5", "16"]


def test_blocked_puts_the_inner_part_last() -> None:
    layout = Layout.blocked(2, 1, var("f"), [1, 0])
    assert [str(e) for e in layout.shape([5, 8])] == ["((7) // (f)) + 1", "5", "f"]
    assert layout != Layout.plain(3)


@pytest.mark.parametrize("text", ["NCH", "NCHW16", "NCHWX", "NCHWW", "nchw", "NCHW-16c", ""])
def test_bad_layout_names_are_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match="does not name each of the axes NCHW once"):
        Layout.parse(text)
