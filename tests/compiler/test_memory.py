"""Memory planning: nothing overlaps, and little is wasted."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tilesmith.compiler.recipe.memory import (
    ALIGNMENT,
    Arena,
    Groups,
    Interval,
    aligned,
    first_fit,
    peak_alive,
    plan_arena,
    side_by_side,
)


@st.composite
def interval_lists(draw: st.DrawFn) -> list[Interval]:
    count = draw(st.integers(0, 14))
    found = []
    for number in range(count):
        first = draw(st.integers(0, 12))
        size = draw(st.integers(0, 1000))
        found.append(Interval(str(number), size, first, first + draw(st.integers(0, 6))))
    return found


@given(interval_lists())
def test_what_lives_together_never_overlaps(intervals: list[Interval]) -> None:
    arena = plan_arena(intervals)
    for a, b in itertools.combinations(intervals, 2):
        apart = (
            arena.offsets[a.name] + a.nbytes <= arena.offsets[b.name]
            or arena.offsets[b.name] + b.nbytes <= arena.offsets[a.name]
        )
        assert apart or a.last < b.first or b.last < a.first
    for interval in intervals:
        assert arena.offsets[interval.name] % ALIGNMENT == 0
        assert arena.offsets[interval.name] + interval.nbytes <= arena.nbytes
    assert arena.nbytes >= peak_alive(intervals)


def test_a_chain_of_equal_layers_needs_two_buffers() -> None:
    chain = [Interval(str(i), 4096, i, i + 1) for i in range(20)]
    assert plan_arena(chain).nbytes == peak_alive(chain) == 2 * 4096


def test_groups_keep_distances() -> None:
    groups = Groups()
    assert groups.tie("b", "a", 100)
    assert groups.tie("d", "c", -8)
    assert groups.tie("c", "b", 50)
    (root, a), (other, d) = groups.find("a"), groups.find("d")
    assert root == other
    assert d - a == 142
    assert groups.tie("d", "a", 142)
    groups.add("e", 30)
    assert groups.tie("e", "d", 8)
    assert groups.span("a") == (0, 180)
    assert groups.span("e") == (-150, 30)
    assert not groups.tie("d", "a", 143)


@given(interval_lists())
def test_several_orders_are_never_worse_than_the_first(intervals: list[Interval]) -> None:
    greedy = first_fit(sorted(intervals, key=lambda i: (-i.nbytes, i.first, i.name)))
    assert plan_arena(intervals).nbytes <= greedy.nbytes


def test_side_by_side_shares_nothing() -> None:
    arena = side_by_side([Interval("a", 10, 0, 0), Interval("b", 100, 5, 5)])
    assert arena.nbytes == 64 + 128
    assert arena.offsets == {"b": 0, "a": 128}


def simple_first_fit(intervals: list[Interval]) -> Arena:
    """`first_fit` by its definition: each against all that were placed before."""
    placed: list[tuple[int, int, Interval]] = []
    for interval in intervals:
        offset = 0
        alive = [entry for entry in placed if entry[2].meets(interval)]
        for start, stop, _ in sorted(alive, key=lambda entry: entry[0]):
            if offset + interval.nbytes <= start:
                break
            offset = max(offset, aligned(stop))
        placed.append((offset, offset + interval.nbytes, interval))
    offsets = {interval.name: start for start, _, interval in placed}
    return Arena(offsets, aligned(max((stop for _, stop, _ in placed), default=0)))


@given(interval_lists())
def test_first_fit_is_its_simple_definition(intervals: list[Interval]) -> None:
    assert first_fit(intervals) == simple_first_fit(intervals)


@given(interval_lists())
def test_the_peak_is_the_most_that_any_step_has(intervals: list[Interval]) -> None:
    steps = [
        sum(aligned(i.nbytes) for i in intervals if i.first <= step <= i.last) for step in range(20)
    ]
    assert peak_alive(intervals) == max(steps)
