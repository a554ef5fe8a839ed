"""Interleaving: the order of instructions in each queue, chosen so that engines seldom wait.

A loop over independent chains (the heads of an attention) written chain by chain leaves every
engine waiting for the chain's latencies, since each takes its instructions in order. Here the
instructions of such a loop are put into the order in which a greedy machine would issue them
(`issuing`), each on the engine that is free first where the schedule leaves a choice. How far
chains overlap is up to the copies of their tiles: an instruction that overwrites a place still
waits for its readers.

Invariant: instructions that touch the same bytes, one of them writing, keep their order, so the
program computes the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tilesmith.codegen.trainium.isa.footprints import extents
from tilesmith.codegen.trainium.isa.instructions import InstructionStream, Ints, Space
from tilesmith.codegen.trainium.kernel.builder import Kernel
from tilesmith.codegen.trainium.timing.dependences import operand_tables
from tilesmith.codegen.trainium.timing.issuing import Graph, arrange, issue_options

WINDOW = 2048
"""Instructions looked at together; a longer program is arranged in pieces."""


def interleave(kernel: Kernel, start: int) -> None:
    """Rearrange the instructions of a kernel from number `start` on."""
    while start < kernel.length:
        stop = min(start + WINDOW, kernel.length)
        if stop - start > 2:
            _interleave(kernel, range(start, stop))
        start = stop


def _interleave(kernel: Kernel, rows: range) -> None:
    stream = kernel.draft()
    graph = Graph(stream.core, rows, issue_options(stream, rows, kernel.choices(rows)))
    for earlier, later, flow in _conflicts(stream, rows.start, rows.stop):
        graph.follow(earlier, later, flow)
    found = arrange(graph)
    for row, option in found:
        kernel.settle(row, option.queue, option.lock)
    kernel.arrange(rows.start, [row for row, _ in found])


@dataclass
class _Place:
    """Bytes of a memory that one tile has after the other, or an HBM tensor.

    Attributes:
        tile: the allocation there at present.
        before: rows that touched it while others had it last.
        writers, readers: (row, access) since.
    """

    tile: int = -2
    before: list[int] = field(default_factory=list)
    writers: list[tuple[int, int]] = field(default_factory=list)
    readers: list[tuple[int, int]] = field(default_factory=list)

    def enter(self, tile: int) -> None:
        """Another tile takes the place: whoever touches it follows all that touched the old one."""
        if tile != self.tile:
            self.before = [row for row, _ in (*self.writers, *self.readers)]
            self.tile, self.writers, self.readers = tile, [], []


@dataclass(frozen=True)
class _Boxes:
    """Where accesses are: place (negative: a tensor in HBM), tile, bytes, partitions."""

    place: list[int]
    tile: list[int]
    low: list[int]
    high: list[int]
    first: list[int]
    last: list[int]

    @classmethod
    def of(cls, stream: InstructionStream) -> _Boxes:
        table = stream.accesses
        low, high = extents(stream)
        hbm = table["space"] == Space.HBM
        last = table["partition"] + table["count"][:, 0]
        owner = table["allocation"]
        places = np.append(_places(stream), 0)
        return cls(
            np.where(hbm, -1 - table["tensor"], places[owner]).tolist(), owner.tolist(),
            low.tolist(), high.tolist(), np.where(hbm, 0, table["partition"]).tolist(),
            np.where(hbm, 1, last).tolist(),
        )  # fmt: skip

    def meet(self, one: int, two: int) -> bool:
        """Whether two accesses of one tile touch common bytes (or cannot be told apart)."""
        return (
            self.low[one] < self.high[two]
            and self.low[two] < self.high[one]
            and self.first[one] < self.last[two]
            and self.first[two] < self.last[one]
        )

    def covers(self, one: int, two: int) -> bool:
        """Whether an access's box holds another's."""
        return (
            self.low[one] <= self.low[two]
            and self.high[two] <= self.high[one]
            and self.first[one] <= self.first[two]
            and self.last[two] <= self.last[one]
        )


def _places(stream: InstructionStream) -> Ints:
    """A number for every allocation: those with the same number may share bytes."""
    found = np.zeros(len(stream.allocations), dtype=np.int64)
    number, reach = -1, (-1, -1)
    order = sorted(
        range(len(found)),
        key=lambda i: (stream.allocations[i].space, stream.allocations[i].offset),
    )
    for i in order:
        here = stream.allocations[i]
        if (here.space, here.offset) >= reach:
            number += 1
        found[i] = number
        reach = max(reach, (int(here.space), here.offset + here.bytes))
    return found


def _conflicts(stream: InstructionStream, start: int, stop: int) -> Iterator[tuple[int, int, bool]]:
    """(earlier row, later row, whether the later reads what the earlier writes)."""
    boxes = _Boxes.of(stream)
    reads, writes = operand_tables(stream)
    written = {int(stream.accesses["tensor"][a]) for a in writes[start:stop].ravel() if a >= 0}
    places: dict[int, _Place] = {}
    for row in range(start, stop):
        for access in reads[row].tolist():
            key = boxes.place[access] if access >= 0 else 0
            if access < 0 or (key < 0 and -1 - key not in written):
                continue
            place = places.setdefault(key, _Place())
            place.enter(boxes.tile[access])
            for other, theirs in place.writers:
                if boxes.meet(access, theirs):
                    yield other, row, True
            place.readers.append((row, access))
        for access in writes[row].tolist():
            if access < 0:
                continue
            place = places.setdefault(boxes.place[access], _Place())
            place.enter(boxes.tile[access])
            for other in place.before:
                yield other, row, False
            for other, theirs in (*place.writers, *place.readers):
                if other != row and boxes.meet(access, theirs):
                    yield other, row, False
            place.writers = [w for w in place.writers if not boxes.covers(access, w[1])]
            place.readers = [r for r in place.readers if not boxes.covers(access, r[1])]
            place.writers.append((row, access))
