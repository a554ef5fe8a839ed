"""Footprints against counting: the distinct cache lines of small affine nests, enumerated."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tilesmith.simulator.cpu.footprint import distinct, footprint, lowest_bit

LINE = 64
SIZE = 4


def _lines(loops: list[tuple[int, int]]) -> set[int]:
    """Lines that a nest of (stride in bytes, count) loops touches, by enumeration."""
    steps = [range(count) for _, count in loops]
    return {
        sum(stride * step for (stride, _), step in zip(loops, at, strict=True)) // LINE
        for at in itertools.product(*steps)
    }


def _footprint(loops: list[tuple[int, int]], sets: tuple[int, ...] = (64,)) -> tuple[float, float]:
    ordered = sorted(loops)
    strides = np.array([[s] for s, _ in ordered], dtype=np.float64)
    counts = np.array([[c] for _, c in ordered], dtype=np.float64)
    found = footprint(strides, counts, np.array([float(SIZE)]), LINE, sets)
    return float(found.lines[0]), float(found.weighted[0][0])


@st.composite
def row_major(draw: st.DrawFn) -> list[tuple[int, int]]:
    """A box inside a row-major tensor whose rows are whole lines: exact by construction."""
    shape = [draw(st.integers(1, 5)), draw(st.integers(1, 5)), 16 * draw(st.integers(1, 3))]
    box = [draw(st.integers(1, shape[0])), draw(st.integers(1, shape[1])), shape[2]]
    if draw(st.booleans()):
        box[2] = 16 * draw(st.integers(1, shape[2] // 16))
    strides = [SIZE * shape[1] * shape[2], SIZE * shape[2], SIZE]
    return list(zip(strides, box, strict=True))


@given(row_major())
def test_aligned_boxes_are_exact(loops: list[tuple[int, int]]) -> None:
    assert _footprint(loops)[0] == len(_lines(loops))


@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)
)
def test_halos_of_equal_strides_add(
    rows: int, taps: int, columns: int, width: int, lines: int
) -> None:
    """Output rows and kernel rows move the input alike: rows + taps - 1 rows in all."""
    pitch = LINE * lines * 8
    loops = [(pitch, rows), (pitch, taps), (LINE, columns), (LINE, width), (SIZE, 16)]
    assert _footprint(loops)[0] == len(_lines(loops))


@st.composite
def tensor_nests(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Loops over a tensor of any extents: each stride is a multiple of the one before."""
    strides = [SIZE]
    for _ in range(4):
        strides.append(strides[-1] * draw(st.integers(1, 7)))
    chosen = st.tuples(st.sampled_from([0, *strides]), st.integers(1, 6))
    return draw(st.lists(chosen, min_size=1, max_size=4))


@given(tensor_nests())
def test_any_tensor_comes_close_to_the_count(loops: list[tuple[int, int]]) -> None:
    """Unaligned strides are counted on average over alignments: within a factor of the truth."""
    exact = len(_lines(loops))
    lines = _footprint(loops)[0]
    assert 0.6 * exact <= lines <= 1.5 * exact + 1


@given(st.integers(0, 9), st.integers(2, 40))
def test_conflicts_weigh_what_folds_onto_few_sets(power: int, count: int) -> None:
    """Lines a power of two apart crowd 64 sets as counting them set by set says."""
    stride = LINE << power
    lines, weighted = _footprint([(stride, count), (SIZE, 16)])
    in_sets = np.bincount([(stride * i // LINE) % 64 for i in range(count)], minlength=64)
    assert lines == count
    assert weighted >= lines
    assert weighted <= in_sets.max() * 64
    assert weighted >= (in_sets.max() - 1) * 64


@given(
    st.lists(st.tuples(st.sampled_from([4, 8, 64, 256]), st.integers(1, 4)), max_size=3),
)
def test_distinct_addresses_of_unrolled_loops(loops: list[tuple[int, int]]) -> None:
    ordered = sorted(loops)
    strides = np.array([[s] for s, _ in ordered], dtype=np.float64).reshape(-1, 1)
    counts = np.array([[c] for _, c in ordered], dtype=np.float64).reshape(-1, 1)
    addresses = {
        sum(s * i for (s, _), i in zip(loops, at, strict=True))
        for at in itertools.product(*(range(c) for _, c in loops))
    }
    assert distinct(strides, counts)[0] == len(addresses)


def test_lowest_bit() -> None:
    values = np.array([0.0, 1.0, 12.0, 64.0, 96.0, 8192.0])
    assert lowest_bit(values, 4096).tolist() == [4096, 1, 4, 64, 32, 4096]
