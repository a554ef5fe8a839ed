"""When resources are taken: intervals of cycles, kept sorted and apart.

A port, an ALU or a queue is a `BusyIntervals`. A stream is one line for every stretch of positions
between `BOUNDS`: a token at position p in cycle t stands for all its way by tau = t - p (eastward)
or t + p (westward), so that a burst takes an interval of tau on the stretches it passes. (The laws
are finer: they look at every cell.)
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

STRETCHES = 5
"""West outer, west inner, the middle (VXM), east inner, east outer."""


class BusyIntervals:
    """Intervals [start, end) in which one thing is taken."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def next_free(self, start: int, length: int) -> int:
        """The first cycle from `start` on from which `length` cycles are free."""
        starts, ends = self.starts, self.ends
        if not ends or ends[-1] <= start:
            return start
        i = bisect_right(ends, start)
        while i < len(starts) and starts[i] < start + length:
            start = ends[i]
            i += 1
        return start

    def add(self, start: int, end: int) -> None:
        """Take [start, end), which is free."""
        starts, ends = self.starts, self.ends
        i = bisect_left(starts, start)
        left = i > 0 and ends[i - 1] == start
        right = i < len(starts) and starts[i] == end
        if left and right:
            ends[i - 1] = ends[i]
            del starts[i], ends[i]
        elif left:
            ends[i - 1] = end
        elif right:
            starts[i] = start
        else:
            starts.insert(i, start)
            ends.insert(i, end)

    @property
    def end(self) -> int:
        """From when on it is free for ever."""
        return self.ends[-1] if self.ends else 0

    @property
    def busy(self) -> int:
        """Cycles taken."""
        return sum(self.ends) - sum(self.starts)


def any_of(
    lines: Sequence[BusyIntervals], start: int, length: int, count: int, without: Iterable[int] = ()
) -> tuple[list[int], int]:
    """The first `count` lines that are free, and `start`; or none, and a later start to try."""
    numbers: list[int] = []
    later: list[int] = []
    for number, line in enumerate(lines):
        if number in without:
            continue
        free = line.next_free(start, length)
        if free == start:
            numbers.append(number)
            if len(numbers) == count:
                return numbers, start
        else:
            later.append(free)
    later.sort()
    missing = count - len(numbers)
    return [], later[missing - 1] if missing <= len(later) else start + 1


class Streams:
    """All streams of a chip, both ways.

    Args:
        each_way: streams in each direction.
        edge: the outermost position.
    """

    def __init__(self, each_way: int, edge: int) -> None:
        self.each_way, self.edge = each_way, edge
        self.middle = (edge + 1) // 2
        self.lines = [
            [[BusyIntervals() for _ in range(STRETCHES)] for _ in range(each_way)] for _ in range(2)
        ]

    def stretch(self, place: int) -> int:
        """The stretch a position belongs to."""
        if abs(place) > self.middle:
            return 0 if place < 0 else 4
        return 2 + (place > 0) - (place < 0)

    def stretches(self, begin: int, end: int) -> range:
        """Those from one position to another, either way."""
        low, high = min(begin, end), max(begin, end)
        return range(self.stretch(low), self.stretch(high) + 1)

    def find(
        self, east: bool, way: range, tau: int, length: int, count: int, taken: set[int]
    ) -> tuple[list[int], int]:
        """As `any_of`, of streams on the stretches of `way`.

        Args:
            taken: streams x `STRETCHES` + stretches that may not be used, of this direction.
        """
        numbers: list[int] = []
        later: list[int] = []
        for number, lines in enumerate(self.lines[east]):
            if taken and any(number * STRETCHES + stretch in taken for stretch in way):
                continue
            free = tau
            for stretch in way:
                free = max(free, lines[stretch].next_free(tau, length))
            if free == tau:
                numbers.append(number)
                if len(numbers) == count:
                    return numbers, tau
            else:
                later.append(free)
        later.sort()
        missing = count - len(numbers)
        return [], later[missing - 1] if missing <= len(later) else tau + 1

    def add(self, east: bool, stream: int, way: range, tau: int, length: int) -> None:
        """Take a stream's stretches for an interval of tau."""
        lines = self.lines[east][stream]
        for stretch in way:
            lines[stretch].add(tau, tau + length)
