"""Memory planning: which activations may share bytes, and where each lies in one arena.

Tensors that are views of each other form a *group*, which lives from its first write to its last
read. Groups whose lives don't meet may overlap in memory; offsets are chosen first fit, in several
orders until one needs no more than what is alive at once: largest group first (the greedy-by-size
rule of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020), then
by bytes times steps, then longest life first. Where that is not enough, `optimal_memory` can search
further. Invariants: two groups alive at the same step never overlap; offsets are multiples of a
cache line; the arena is never smaller than the most bytes alive at once.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

ALIGNMENT = 64
"""Bytes; a cache line, so that no vector access of an aligned tile crosses two."""


@dataclass(frozen=True)
class Interval:
    """Bytes needed from step `first` to step `last`, both included."""

    name: str
    nbytes: int
    first: int
    last: int

    def meets(self, other: "Interval") -> bool:
        """Whether both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Arena:
    """Offsets in bytes by interval name, and the size of the whole."""

    offsets: Mapping[str, int]
    nbytes: int


Arrange = Callable[[Sequence[Interval]], Arena]
"""What places intervals in an arena."""

ORDERS: tuple[Callable[[Interval], tuple[int, ...]], ...] = (
    lambda i: (-i.nbytes, i.first),
    lambda i: (-i.nbytes * (i.last - i.first + 1), i.first),
    lambda i: (i.first - i.last, -i.nbytes, i.first),
)


def plan_arena(intervals: Iterable[Interval]) -> Arena:
    """The smallest of the arenas that first fit finds in `ORDERS`; the first one of equals."""
    known = sorted(intervals, key=lambda i: i.name)
    least = peak_alive(known)
    best: Arena | None = None
    for order in ORDERS:
        arena = first_fit(sorted(known, key=order))
        if best is None or arena.nbytes < best.nbytes:
            best = arena
        if best.nbytes == least:
            break
    assert best is not None
    return best


def side_by_side(intervals: Iterable[Interval]) -> Arena:
    """Every interval in bytes of its own, largest first."""
    return first_fit(
        replace(i, first=0, last=0) for i in sorted(intervals, key=lambda i: (-i.nbytes, i.name))
    )


def first_fit(intervals: Iterable[Interval]) -> Arena:
    """Place intervals in their order, each at the lowest offset that is free all its life.

    What was placed stands in arrays sorted by where it starts, so that an interval asks all of it
    at once.
    """
    known = list(intervals)
    table = np.zeros((4, len(known)), np.int64)  # start, stop, first, last
    offsets: dict[str, int] = {}
    for count, interval in enumerate(known):
        starts, stops, first, last = table[:, :count]
        alive = (first <= interval.last) & (last >= interval.first)
        begins = starts[alive]
        ends = np.maximum.accumulate(np.concatenate(([0], stops[alive])))
        room = np.append(begins - ends[:-1] >= interval.nbytes, True)  # above all of it is room
        offset = int(ends[room.argmax()])
        offsets[interval.name] = offset
        place = int(starts.searchsorted(offset, "right"))
        table[:, place + 1 : count + 1] = table[:, place:count]
        stop = aligned(offset + interval.nbytes)
        table[:, place] = offset, stop, interval.first, interval.last
    return Arena(offsets, int(table[1].max(initial=0)))


def peak_alive(intervals: Iterable[Interval]) -> int:
    """The most bytes alive at one step, each interval in whole cache lines: what no plan can go
    below."""
    changes: Counter[int] = Counter()
    for interval in intervals:
        changes[interval.first] += aligned(interval.nbytes)
        changes[interval.last + 1] -= aligned(interval.nbytes)
    return max(itertools.accumulate(changes[step] for step in sorted(changes)), default=0)


def aligned(offset: int) -> int:
    """Bytes up to the end of a cache line."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


class Groups:
    """Tensors at fixed distances of each other: a union-find with offsets.

    Distances and sizes are in whatever unit the caller counts in.
    """

    def __init__(self) -> None:
        self._parent: dict[str, tuple[str, int]] = {}
        self._spans: dict[str, tuple[int, int]] = {}

    def add(self, name: str, size: int = 0) -> None:
        """Make a tensor known, in a group of its own."""
        if name not in self._parent:
            self._parent[name] = (name, 0)
            self._spans[name] = (0, size)

    def find(self, name: str) -> tuple[str, int]:
        """(representative of its group, distance of `name` from it)."""
        self.add(name)
        parent, distance = self._parent[name]
        if parent == name:
            return name, 0
        root, further = self.find(parent)
        self._parent[name] = (root, distance + further)
        return self._parent[name]

    def span(self, name: str) -> tuple[int, int]:
        """Where the group of `name` starts and ends, counted from `name`."""
        root, distance = self.find(name)
        low, high = self._spans[root]
        return low - distance, high - distance

    def tie(self, name: str, base: str, offset: int) -> bool:
        """Let `name` lie `offset` after `base`; False if both are tied otherwise already."""
        root, distance = self.find(name)
        base_root, base_distance = self.find(base)
        wanted = base_distance + offset - distance
        if root == base_root:
            return wanted == 0
        low, high = self._spans.pop(root)
        base_low, base_high = self._spans[base_root]
        self._spans[base_root] = (min(low + wanted, base_low), max(high + wanted, base_high))
        self._parent[root] = (base_root, wanted)
        return True

    def names(self) -> Iterable[str]:
        return self._parent.keys()
