"""Data movement on drawn shapes: exact, for floats and for integers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.template_checks import check_config
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import space_of
from tilesmith.search_space.expressions.expression import const, element, var
from tilesmith.search_space.expressions.ranges import lower, upper
from tilesmith.search_space.operator_parts.flattening import Span, merge
from tilesmith.search_space.operator_parts.relayout import Relayout
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.workload import Workload

EXTENTS = st.sampled_from([1, 2, 3, 7, 16, 17, 33])
DTYPES = st.sampled_from(["float32", "int64"])


def text_of(numbers: list[int]) -> str:
    return "x".join(map(str, numbers))


def draw(text: str, seed: int) -> None:
    """Check one configuration of a workload, chosen by `seed`."""
    workload, rng = Workload.parse(text), np.random.default_rng(seed)
    config = space_of(workload, host_target()).sample(rng)[0]
    check_config(workload, config, rng)


@settings(max_examples=10)
@given(st.lists(EXTENTS, min_size=1, max_size=4), DTYPES, st.integers(0, 999))
def test_transpose(shape: list[int], dtype: str, seed: int) -> None:
    orders = list(itertools.permutations(range(len(shape))))
    order = list(orders[seed % len(orders)])
    draw(f"transpose shape={text_of(shape)} perm={text_of(order)} dtype={dtype}", seed)


@settings(max_examples=10)
@given(
    st.tuples(st.integers(1, 2), st.integers(1, 40), st.integers(1, 6), st.integers(1, 20)),
    st.permutations(["NCHW", "NHWC", "NCHW8c", "NCHW16c", "CHWN"]),
    st.integers(0, 999),
)
def test_layout_transform(shape: tuple[int, ...], names: list[str], seed: int) -> None:
    text = text_of(list(shape))
    draw(f"layout_transform shape={text} src={names[0]} dst={names[1]}", seed)


@settings(max_examples=8)
@given(st.lists(EXTENTS, min_size=1, max_size=3), DTYPES, st.integers(0, 999))
def test_slice(shape: list[int], dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    starts, sizes, steps = [], [], []
    for extent in shape:
        first, last = int(rng.integers(extent)), int(rng.integers(extent))
        step = int(rng.integers(1, 4)) * (1 if last >= first else -1)
        starts.append(first)
        sizes.append(abs(last - first) // abs(step) + 1)
        steps.append(step)
    box = f"starts={text_of(starts)} sizes={text_of(sizes)} steps={text_of(steps)}"
    draw(f"slice shape={text_of(shape)} {box} dtype={dtype}", seed)


@settings(max_examples=8)
@given(st.lists(EXTENTS, min_size=1, max_size=3), st.lists(EXTENTS, min_size=1, max_size=4), DTYPES)
def test_concat(shape: list[int], parts: list[int], dtype: str) -> None:
    position = sum(parts) % len(shape)
    shape[position] = sum(parts)
    text = f"concat shape={text_of(shape)} axis={position} parts={text_of(parts)} dtype={dtype}"
    draw(text, len(parts))


@settings(max_examples=8)
@given(
    st.lists(st.sampled_from([2, 3, 7, 17, 33]), min_size=1, max_size=3),
    st.sampled_from(["constant", "edge", "reflect"]),
    DTYPES,
    st.integers(0, 999),
)
def test_pad(shape: list[int], mode: str, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    before, after = ([int(rng.integers(min(extent, 4))) for extent in shape] for _ in range(2))
    widths = f"before={text_of(before)} after={text_of(after)}"
    draw(f"pad shape={text_of(shape)} {widths} mode={mode} value=3 dtype={dtype}", seed)


@settings(max_examples=8)
@given(
    st.tuples(st.integers(1, 17), st.integers(1, 19)),
    st.tuples(st.integers(1, 19), st.integers(1, 40)),
    st.sampled_from(["asymmetric", "half_pixel"]),
    st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]),
    st.integers(0, 999),
)
def test_resize(
    image: tuple[int, int], sizes: tuple[int, int], coordinates: str, rounding: str, seed: int
) -> None:
    shapes = f"shape=1x18x{image[0]}x{image[1]} sizes=1x18x{sizes[0]}x{sizes[1]}"
    draw(f"resize {shapes} coordinates={coordinates} rounding={rounding}", seed)


@settings(max_examples=8)
@given(
    st.lists(EXTENTS, min_size=1, max_size=3),
    st.lists(st.integers(1, 7), max_size=2),
    DTYPES,
    st.integers(0, 999),
)
def test_gather(shape: list[int], indices: list[int], dtype: str, seed: int) -> None:
    """Random indices are partly negative and partly out of range."""
    parameters = f"indices={text_of(indices) or 'scalar'} axis={seed % len(shape)}"
    index = "int32" if seed % 2 else "int64"
    draw(f"gather shape={text_of(shape)} {parameters} index={index} dtype={dtype}", seed)


def test_an_index_read_at_run_time_stays_in_its_axis() -> None:
    found = element("indices", var("k") * 2, 7)
    assert str(found) == "indices[k*2]"
    assert (str(lower(found, {"k": const(3)})), str(upper(found, {"k": const(3)}))) == ("0", "6")
    assert found.coefficient("k") is None
    assert str(found.substitute({"k": const(1)})) == "indices[2]"
    tensor = np.array([3, 0, -1, 0, 99])
    places = [found.evaluate({"k": k, "indices": tensor}) for k in range(3)]
    assert places == [3, 6, 6]


def test_axes_merge_as_far_as_memory_allows() -> None:
    assert merge([Span(2, 0, 2), Span(7, 2, 3), Span(5, 0, 5), Span(4, 0, 4)]) == (
        Span(2, 0, 2),
        Span(140, 40, 60),
    )
    assert merge([Span(9, 1, 4, 2), Span(5, 0, 5)]) == (Span(9, 1, 4, 2), Span(5, 0, 5))
    assert merge([Span(1, 0, 1), Span(1, 0, 1)]) == (Span(1, 0, 1),)
    found = Relayout.of((1, 64, 7, 9), Layout.parse("NCHW"), Layout.parse("NCHW16c"))
    assert found.shape == (64, 63)
    found = Relayout.of((2, 3, 4, 5), Layout.plain(4), Layout.permuted((0, 1, 2, 3)))
    assert found.shape == (120,)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("transpose shape=2x3 perm=0x0", "no permutation"),
        ("layout_transform shape=2x3x4 src=NCHW dst=NHWC", "four are expected"),
        ("layout_transform shape=1x3x4x4 src=NCHW dst=NCW", "does not name each"),
        ("slice shape=4x5 starts=0x3 sizes=4x3", "leave an axis of 5"),
        ("slice shape=4x5 starts=0 sizes=4x3", "differ in length"),
        ("concat shape=4x5 axis=1 parts=2x2", "do not add up to axis 1"),
        ("pad shape=4x5 before=0 after=0x1", "one number from 0 on for each axis"),
        ("pad shape=4x2 before=0x2 after=0x0 mode=reflect", "smaller than its axis"),
        ("pad shape=4 before=1 after=0 value=x", "value=x is no number"),
        ("gather shape=4x5 indices=3 axis=2", "axis=2 is out of range"),
        ("resize shape=4x5 sizes=4", "the same number of axes"),
    ],
)
def test_bad_parameters_are_named(text: str, complaint: str) -> None:
    with pytest.raises(WorkloadError, match=complaint):
        Workload.parse(text)
