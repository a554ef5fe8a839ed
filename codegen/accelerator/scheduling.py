"""List scheduling: the order of a whole program's instructions in each queue.

Engines take their instructions in order, and a program joined from kernels has them kernel by
kernel, step by step: the scalar engine waits for the vector engine's part of one tile before it
empties the next, and nothing of the next kernel begins before the last of this one. Here they are
put into the order in which a greedy machine would issue them: of all instructions whose operands
are there, the one that can start first; of those, the one with the longest way to the end. It is
what `interleaving` does for a loop of a kernel, for programs of any length, in compiled loops.

Invariant: instructions that touch the same bytes, one of them writing, keep their order, so the
program computes the same; what an order saves is up to how far apart tiles stand (`addresses`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from codegen.accelerator.compiled import Floats, Ints, compiled
from codegen.accelerator.core import FIRST_DMA_QUEUE
from codegen.accelerator.costs import costs
from codegen.accelerator.dependences import operand_tables
from codegen.accelerator.footprints import footprints
from codegen.accelerator.instructions import OPERANDS, InstructionStream, Op

LOOK_AHEAD = 1024
"""Instructions that are ready, in program order, among which the next is chosen."""


@compiled
def _note(
    row: int,
    i: int,
    reads: int,
    total: int,
    capacity: int,
    seen: Ints,
    place: Ints,
    earlier: Ints,
    flow: Ints,
) -> int:
    """Row `i` must follow `row`; how many pairs there are now (they may exceed `capacity`)."""
    if seen[row] != i and total < capacity:
        seen[row] = i
        place[row] = total
        earlier[total] = row
        flow[total] = 0
        total += 1
    elif seen[row] != i:
        total = capacity + 1
    if reads == 1 and seen[row] == i:
        flow[place[row]] = 1
    return total


@compiled
def _meet_in_hbm(
    i: int,
    access: int,
    reads: int,
    total: int,
    capacity: int,
    box: Ints,
    chain: Ints,
    link: Ints,
    seen: Ints,
    place: Ints,
    earlier: Ints,
    flow: Ints,
) -> int:
    """Pair row `i` with those whose bytes in HBM it touches. `box` holds six numbers an access:
    first, stop, pitch, column, its stop, tensor; `link` four: next, row, access, whether it
    writes."""
    mine = access * 6
    at = chain[box[mine + 5]]
    while at >= 0:
        their = link[at * 4 + 2] * 6
        apart = box[mine] >= box[their + 1] or box[their] >= box[mine + 1]
        alike = box[mine + 2] > 0 and box[mine + 2] == box[their + 2]
        beside = box[mine + 3] >= box[their + 4] or box[their + 3] >= box[mine + 4]
        row = link[at * 4 + 1]
        writes = reads == 0 or link[at * 4 + 3] == 1
        if not (apart or (alike and beside)) and row < i and writes:
            total = _note(row, i, reads, total, capacity, seen, place, earlier, flow)
        at = link[at * 4]
    return total


@compiled
def _meet_on_chip(
    i: int,
    start: int,
    stop: int,
    reads: int,
    total: int,
    capacity: int,
    writer: Ints,
    readers: Ints,
    node: Ints,
    seen: Ints,
    place: Ints,
    earlier: Ints,
    flow: Ints,
) -> int:
    """Pair row `i` with the writers of cells `start` to `stop`, and a write with their readers.
    `node` holds two numbers for each reader of a cell: its row, the next."""
    for c in range(start, stop):
        if writer[c] >= 0:
            total = _note(writer[c], i, reads, total, capacity, seen, place, earlier, flow)
        at = readers[c]
        while at >= 0 and reads == 0:
            total = _note(node[at * 2], i, 0, total, capacity, seen, place, earlier, flow)
            at = node[at * 2 + 1]
    return total


@compiled
def _remember(
    i: int, start: int, stop: int, reads: int, nodes: int, writer: Ints, readers: Ints, node: Ints
) -> int:
    """Row `i` is the writer of cells `start` to `stop`, or one more reader; readers so far."""
    for c in range(start, stop):
        if reads == 0:
            writer[c] = i
            readers[c] = -1
        else:
            node[nodes * 2] = i
            node[nodes * 2 + 1] = readers[c]
            readers[c] = nodes
            nodes += 1
    return nodes


@compiled
def _conflicts(
    n: int,
    cells: int,
    capacity: int,
    touched: Ints,
    box: Ints,
    group: Ints,
    group_stop: Ints,
    shared: Ints,
    writer: Ints,
    readers: Ints,
    node: Ints,
    chain: Ints,
    link: Ints,
    seen: Ints,
    place: Ints,
    start: Ints,
    earlier: Ints,
    flow: Ints,
) -> int:
    """Fill `start`, `earlier` and `flow`: the rows that each row must follow, and whether it reads
    what they write. Returns how many, more than `capacity` if that is too little.

    `touched` holds five accesses a row, three read and two written (-1: none).
    """
    total = 0
    links = 0
    nodes = 0
    for i in range(n):
        start[i] = total
        for slot in range(5):
            access = touched[i * 5 + slot]
            reads = int(slot < 3)
            if access < 0:
                continue
            t = box[access * 6 + 5]
            if t >= 0:
                if shared[t] == 1:
                    total = _meet_in_hbm(
                        i, access, reads, total, capacity, box, chain, link, seen, place, earlier,
                        flow,
                    )  # fmt: skip
                continue
            for g in range(group[access], group_stop[access]):
                total = _meet_on_chip(
                    i, g * cells + box[access * 6], g * cells + box[access * 6 + 1], reads, total,
                    capacity, writer, readers, node, seen, place, earlier, flow,
                )  # fmt: skip
        for slot in range(5):
            access = touched[i * 5 + slot]
            if access < 0:
                continue
            t = box[access * 6 + 5]
            if t >= 0:
                link[links * 4] = chain[t]
                link[links * 4 + 1] = i
                link[links * 4 + 2] = access
                link[links * 4 + 3] = int(slot >= 3)
                chain[t] = links
                links += 1
                continue
            for g in range(group[access], group_stop[access]):
                low = g * cells + box[access * 6]
                high = g * cells + box[access * 6 + 1]
                nodes = _remember(i, low, high, int(slot < 3), nodes, writer, readers, node)
        if total > capacity:
            return total
    start[n] = total
    return total


@compiled
def _issue(
    n: int,
    look_ahead: int,
    resource: Ints,
    lock: Ints,
    busy: Floats,
    after_start: Ints,
    after: Ints,
    delay: Floats,
    missing: Ints,
    remaining: Floats,
    ready_at: Floats,
    free: Floats,
    ready: Ints,
    order: Ints,
) -> int:
    """Fill `order` by greedy list scheduling; the number of rows issued."""
    count = 0
    lock0 = 0.0
    lock1 = 0.0
    for i in range(n):
        if missing[i] == 0:
            ready[count] = i
            count += 1
    for step in range(n):
        if count == 0:
            return step
        best = -1
        at = -1
        best_time = 0.0
        for k in range(min(count, look_ahead)):
            i = ready[k]
            time = max(ready_at[i], free[resource[i]])
            if lock[i] % 2 == 1:
                time = max(time, lock0)
            if lock[i] >= 2:
                time = max(time, lock1)
            first = best < 0
            if best >= 0:
                first = time < best_time or (time == best_time and remaining[i] > remaining[best])
            if first:
                best = i
                at = k
                best_time = time
        order[step] = best
        count -= 1
        for k in range(at, count):
            ready[k] = ready[k + 1]
        done = best_time + busy[best]
        free[resource[best]] = done
        if lock[best] % 2 == 1:
            lock0 = done
        if lock[best] >= 2:
            lock1 = done
        for e in range(after_start[best], after_start[best + 1]):
            j = after[e]
            ready_at[j] = max(ready_at[j], best_time + delay[e])
            missing[j] -= 1
            if missing[j] == 0:
                k = count
                while k > 0:
                    if ready[k - 1] < j:
                        break
                    ready[k] = ready[k - 1]
                    k -= 1
                ready[k] = j
                count += 1
    return n


@dataclass(frozen=True)
class Conflicts:
    """Pairs of rows that keep their order, sorted by the later.

    Attributes:
        earlier, later: rows.
        flow: 1 where the later reads what the earlier writes.
    """

    earlier: Ints
    later: Ints
    flow: Ints


def conflicts(stream: InstructionStream) -> Conflicts:
    """All pairs of rows that touch the same bytes, one of them writing, none in between writing."""
    n = len(stream)
    feet = footprints(stream)
    reads, writes = operand_tables(stream)
    touched = np.ascontiguousarray(np.concatenate([reads, writes], axis=1)).reshape(-1)
    rows = stream.rows
    shared = np.zeros(max(len(stream.tensors), 1), dtype=np.int64)
    shared[stream.accesses["tensor"][rows["out"][rows["op"] == Op.STORE]]] = 1
    size = feet.cells * feet.groups
    spans = np.maximum(feet.stop - feet.first, 0) * np.maximum(feet.group_stop - feet.group, 0)
    room = int(np.where(feet.tensor >= 0, 0, spans)[reads[reads >= 0]].sum()) + 1
    columns = (feet.first, feet.stop, feet.pitch, feet.column, feet.column_stop, feet.tensor)
    box = np.ascontiguousarray(np.stack(columns, axis=1)).reshape(-1)
    capacity = 16 * n + 64
    while True:
        start = np.zeros(n + 1, dtype=np.int64)
        earlier, flow = np.zeros(capacity, dtype=np.int64), np.zeros(capacity, dtype=np.int64)
        total = _conflicts(
            n, feet.cells, capacity, touched, box, feet.group, feet.group_stop, shared,
            np.full(size, -1, dtype=np.int64), np.full(size, -1, dtype=np.int64),
            np.zeros(2 * room, dtype=np.int64), np.full(len(shared), -1, dtype=np.int64),
            np.zeros(4 * n * len(OPERANDS) + 4, dtype=np.int64), np.full(n, -1, dtype=np.int64),
            np.zeros(n, dtype=np.int64), start, earlier, flow,
        )  # fmt: skip
        if total <= capacity:
            later = np.repeat(np.arange(n, dtype=np.int64), np.diff(start))
            return Conflicts(earlier[:total].copy(), later, flow[:total].copy())
        capacity *= 4


def issue_order(stream: InstructionStream) -> Ints:
    """The rows of a stream, which needs no semaphores yet, in a greedy machine's order."""
    n = len(stream)
    cost, rows, core = costs(stream), stream.rows, stream.core
    found = conflicts(stream)
    dma = rows["queue"] >= FIRST_DMA_QUEUE
    busy = np.where(dma, cost.dma_work * cost.dma_engines / core.dma_engines, cost.issue)
    shown = cost.latency + np.where(dma, cost.dma_work, cost.issue)
    same = rows["queue"][found.earlier] == rows["queue"][found.later]
    early = same & (found.flow == 0) & ~dma[found.earlier]
    relaxed = same & (rows["queue"][found.later] == 0)
    delay = np.where(early | relaxed, busy[found.earlier], shown[found.earlier])
    delay = delay + np.where(same | dma[found.later], 0.0, core.semaphore_ns)
    remaining = _remaining(n, found, busy, delay)
    by_earlier = np.argsort(found.earlier, kind="stable")
    after_start = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount(found.earlier, minlength=n), out=after_start[1:])
    order = np.zeros(n, dtype=np.int64)
    done = _issue(
        n, LOOK_AHEAD, np.minimum(rows["queue"], FIRST_DMA_QUEUE), rows["lock"], busy,
        after_start, np.ascontiguousarray(found.later[by_earlier]),
        np.ascontiguousarray(delay[by_earlier]),
        np.bincount(found.later, minlength=n).astype(np.int64), remaining, np.zeros(n),
        np.zeros(FIRST_DMA_QUEUE + 1), np.zeros(n + 1, dtype=np.int64), order,
    )  # fmt: skip
    assert done == n, "rows follow earlier ones only"
    return order


@compiled
def _longest(m: int, earlier: Ints, later: Ints, delay: Floats, remaining: Floats) -> int:
    """Raise `remaining` of each row by its way through later ones; pairs are sorted by the later,
    so that going backwards all ways from a row are known before it is used."""
    for back in range(m):
        e = m - 1 - back
        way = delay[e] + remaining[later[e]]
        remaining[earlier[e]] = max(remaining[earlier[e]], way)
    return m


def _remaining(n: int, found: Conflicts, busy: Floats, delay: Floats) -> Floats:
    """ns from the start of each row to the end of the program, if engines were never taken."""
    remaining = np.ascontiguousarray(busy, dtype=np.float64).copy()
    _longest(len(found.earlier), found.earlier, found.later, np.ascontiguousarray(delay), remaining)
    return remaining


def in_order(stream: InstructionStream, order: Ints) -> InstructionStream:
    """A stream without semaphores with its rows in another order; `position` says what they were
    written as."""
    rows = {name: np.ascontiguousarray(column[order]) for name, column in stream.rows.items()}
    return replace(stream, rows=rows, immediates=np.ascontiguousarray(stream.immediates[order]))
