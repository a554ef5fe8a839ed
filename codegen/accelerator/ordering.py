"""The order in which shared resources (DMA engines, memory ports) are granted, fixed at compile
time.

Queues are in order each, but a program written loop by loop has a tile's store before the next
tile's load, and granting in that order would never overlap the two. So the compiler plays the
program once on the nominal machine, always granting the queue head that is ready first, and writes
that order down. Of transfers that would wait for DMA engines anyway, the one that the tensor engine
needs first goes first. From then on the order is part of the program: the machine (and the
timeline) grant in it, whatever their speed, which makes the program a max-plus system: a faster
part never makes it slower.

Invariant: only rows of different queues change places; every wait still names an earlier row.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from codegen.accelerator.compiled import Floats, Ints, compiled
from codegen.accelerator.core import FIRST_DMA_QUEUE, QUEUES
from codegen.accelerator.costs import costs
from codegen.accelerator.instructions import InstructionStream


@compiled
def _needed(
    n: int, first_dma: int, queue: Ints, wait_start: Ints, waits: Ints, need: Ints, following: Ints
) -> int:
    """Fill `need`: the first row of the tensor engine that waits for a row, perhaps through others
    (n: none); who waits for a row waits for those before it in its queue (`following`)."""
    for i in range(n):
        need[i] = n
    for back in range(n):
        i = n - 1 - back
        if queue[i] == 0:
            need[i] = i
        elif queue[i] >= first_dma and following[i] >= 0:
            need[i] = min(need[i], need[following[i]])
        for w in range(wait_start[i], wait_start[i + 1]):
            need[waits[w]] = min(need[waits[w]], need[i])
    return n


@compiled
def _grant(
    n: int,
    queues: int,
    first_dma: int,
    engines: int,
    semaphore: float,
    queue: Ints,
    lock: Ints,
    wait_start: Ints,
    waits: Ints,
    issue: Floats,
    latency: Floats,
    dma_engines: Ints,
    dma_work: Floats,
    need: Ints,
    head: Ints,
    following: Ints,
    free: Floats,
    ready: Floats,
    finish: Floats,
    granted: Ints,
    dma_free: Floats,
    order: Ints,
) -> int:
    """Fill `order` with the rows in grant order; the number granted (n unless waits are cyclic)."""
    turn = 0
    lock0 = 0.0
    lock1 = 0.0
    for step in range(n):
        best = -1
        best_time = 0.0
        for q in range(queues):
            i = head[q]
            if i < 0:
                continue
            if ready[q] < 0.0:
                time = 0.0
                known = 1
                for w in range(wait_start[i], wait_start[i + 1]):
                    d = waits[w]
                    if granted[d] == 0:
                        known = 0
                        break
                    when = finish[d]
                    if q < first_dma and queue[d] != q:
                        when = when + semaphore
                    time = max(time, when)
                if known == 0:
                    continue
                ready[q] = time
            time = max(ready[q], free[q])
            if lock[i] % 2 == 1:
                time = max(time, lock0)
            if lock[i] >= 2:
                time = max(time, lock1)
            if q >= first_dma:
                time = max(time, dma_free[turn] - latency[i])
            first = best < 0
            if best >= first_dma and q >= first_dma and time == best_time:
                other = need[head[best]]
                first = need[i] < other or (need[i] == other and ready[q] < ready[best])
            if first or time < best_time:
                best = q
                best_time = time
        if best < 0:
            return step
        i = head[best]
        if best < first_dma:
            free[best] = best_time + issue[i]
            finish[i] = best_time + issue[i] + latency[i]
            if lock[i] % 2 == 1:
                lock0 = free[best]
            if lock[i] >= 2:
                lock1 = free[best]
        else:
            free[best] = best_time
            last = 0.0
            for k in range(dma_engines[i]):
                g = (turn + k) % engines
                dma_free[g] = max(best_time + latency[i], dma_free[g]) + dma_work[i]
                last = max(last, dma_free[g])
            turn = (turn + dma_engines[i]) % engines
            finish[i] = last
        granted[i] = 1
        order[step] = i
        head[best] = following[i]
        ready[best] = -1.0
    return n


def grant_order(stream: InstructionStream) -> Ints:
    """Rows of the stream in the order the nominal machine grants them."""
    n = len(stream)
    cost = costs(stream)
    queue = stream.rows["queue"]
    head, following = _successors(queue)
    need = np.zeros(n, dtype=np.int64)
    _needed(n, FIRST_DMA_QUEUE, queue, stream.wait_start, stream.waits, need, following)
    order = np.zeros(n, dtype=np.int64)
    done = _grant(
        n, QUEUES, FIRST_DMA_QUEUE, stream.core.dma_engines, float(stream.core.semaphore_ns), queue,
        stream.rows["lock"], stream.wait_start, stream.waits, cost.issue, cost.latency,
        cost.dma_engines, cost.dma_work, need, head, following, np.zeros(QUEUES),
        np.full(QUEUES, -1.0), np.zeros(n), np.zeros(n, dtype=np.int64),
        np.zeros(stream.core.dma_engines), order,
    )  # fmt: skip
    assert done == n, "waits name earlier rows only, so some queue can always go on"
    return order


def _successors(queue: Ints) -> tuple[Ints, Ints]:
    """First row of each queue, and the next row of the same queue (-1: none)."""
    head = np.full(QUEUES, -1, dtype=np.int64)
    following = np.full(len(queue), -1, dtype=np.int64)
    for number in np.unique(queue):
        mine = np.flatnonzero(queue == number)
        head[number] = mine[0]
        following[mine[:-1]] = mine[1:]
    return head, following


def in_grant_order(stream: InstructionStream) -> InstructionStream:
    """The same program with its rows in grant order."""
    order = grant_order(stream)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    counts = np.diff(stream.wait_start)[order]
    wait_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    picks = np.repeat(stream.wait_start[:-1][order] - wait_start[:-1], counts)
    waits = place[stream.waits[picks + np.arange(len(picks))]] if len(picks) else stream.waits
    return replace(
        stream,
        rows={name: np.ascontiguousarray(column[order]) for name, column in stream.rows.items()},
        immediates=np.ascontiguousarray(stream.immediates[order]),
        wait_start=wait_start,
        waits=np.ascontiguousarray(waits),
    )
