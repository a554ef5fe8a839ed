"""Interleaving: the order of instructions in each queue, chosen so that engines seldom wait.

A loop over independent chains (the heads of an attention) written chain by chain leaves every
engine waiting for the chain's latencies, since each takes its instructions in order. Here the
instructions of such a loop are put into the order in which a greedy machine would issue them: of
all whose operands are there, the one that can start first; of those, the one with the longest way
to the end. How far chains overlap is up to the copies of their tiles: an instruction that
overwrites a place still waits for its readers.

Invariant: instructions that touch the same bytes, one of them writing, keep their order, so the
program computes the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from codegen.accelerator.builder import Kernel
from codegen.accelerator.core import FIRST_DMA_QUEUE
from codegen.accelerator.costs import costs
from codegen.accelerator.dependences import operand_tables
from codegen.accelerator.footprints import extents
from codegen.accelerator.instructions import InstructionStream, Ints, Space

WINDOW = 2048
"""Instructions looked at together; a longer program is arranged in pieces."""


def interleave(kernel: Kernel, start: int) -> None:
    """Rearrange the instructions of a kernel from number `start` on."""
    while start < kernel.length:
        stop = min(start + WINDOW, kernel.length)
        if stop - start > 2:
            kernel.arrange(start, _order(kernel.draft(), start, stop))
        start = stop


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


def _order(stream: InstructionStream, start: int, stop: int) -> list[int]:
    """Rows start..stop in the order in which a greedy machine issues them."""
    core, cost, rows = stream.core, costs(stream), stream.rows
    queue = rows["queue"].tolist()
    lock = rows["lock"].tolist()
    busy = np.where(rows["queue"] >= FIRST_DMA_QUEUE, cost.dma_work, cost.issue).tolist()
    latency = cost.latency.tolist()
    before: dict[int, dict[int, float]] = {row: {} for row in range(start, stop)}
    after: dict[int, list[int]] = {row: [] for row in range(start, stop)}
    for earlier, later, flow in _conflicts(stream, start, stop):
        same = queue[earlier] == queue[later]
        shown = latency[earlier] if flow or queue[earlier] >= FIRST_DMA_QUEUE else 0.0
        delay = busy[earlier] + shown + (0.0 if same else core.semaphore_ns)
        if earlier not in before[later]:
            after[earlier].append(later)
        before[later][earlier] = max(delay, before[later].get(earlier, 0.0))
    remaining = {row: busy[row] for row in range(start, stop)}
    for row in range(stop - 1, start - 1, -1):
        for later in after[row]:
            remaining[row] = max(remaining[row], before[later][row] + remaining[later])
    return _issue(range(start, stop), queue, lock, busy, before, after, remaining)


def _issue(
    rows: range,
    queue: list[int],
    lock: list[int],
    busy: list[float],
    before: dict[int, dict[int, float]],
    after: dict[int, list[int]],
    remaining: dict[int, float],
) -> list[int]:
    """Greedy list scheduling; DMA queues share their engines."""
    missing = {row: len(before[row]) for row in rows}
    ready = {row: 0.0 for row in rows if not missing[row]}
    free: dict[int, float] = {}
    held = [0.0, 0.0]
    order: list[int] = []
    begun: dict[int, float] = {}
    while ready:
        best, best_key = -1, (0.0, 0.0, 0)
        for row, time in ready.items():
            begin = max(time, free.get(min(queue[row], FIRST_DMA_QUEUE), 0.0))
            if lock[row]:
                begin = max([begin, *(held[bit] for bit in (0, 1) if lock[row] >> bit & 1)])
            key = (begin, -remaining[row], row)
            if best < 0 or key < best_key:
                best, best_key = row, key
        begun[best] = begin = best_key[0]
        order.append(best)
        del ready[best]
        free[min(queue[best], FIRST_DMA_QUEUE)] = begin + busy[best]
        for bit in (0, 1):
            if lock[best] >> bit & 1:
                held[bit] = begin + busy[best]
        for later in after[best]:
            missing[later] -= 1
            if not missing[later]:
                ready[later] = max(begun[p] + d for p, d in before[later].items())
    return order
