"""Memory planning: nothing overlaps, and little is wasted."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tilesmith.compiler.recipe.memory import (
    ALIGNMENT,
    Groups,
    Interval,
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
        size = draw(st.integers(1, 1000))
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
