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

from tilesmith.codegen.compiled import Floats, Ints, compiled
from tilesmith.codegen.trainium.isa.core import FIRST_DMA_QUEUE, QUEUES
from tilesmith.codegen.trainium.isa.instructions import InstructionStream
from tilesmith.codegen.trainium.timing.costs import costs


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
def _ready(
    i: int,
    across: float,
    queue: Ints,
    wait_start: Ints,
    waits: Ints,
    granted: Ints,
    finish: Floats,
) -> float:
    """When all that row `i` waits for shows to it, or -1 if some of it is not granted yet."""
    time = 0.0
    for w in range(wait_start[i], wait_start[i + 1]):
        d = waits[w]
        if granted[d] == 0:
            return -1.0
        when = finish[d]
        if queue[d] != queue[i]:
            when = when + across
        time = max(time, when)
    return time


@compiled
def _on_engine(
    i: int,
    time: float,
    queue: Ints,
    lock: Ints,
    issue: Floats,
    latency: Floats,
    free: Floats,
    ports: Floats,
    finish: Floats,
) -> int:
    """Grant row `i` its engine and ports from `time` on."""
    done = time + issue[i]
    free[queue[i]] = done
    finish[i] = done + latency[i]
    if lock[i] % 2 == 1:
        ports[0] = done
    if lock[i] >= 2:
        ports[1] = done
    return i


@compiled
def _on_dma(
    i: int,
    time: float,
    turn: int,
    engines: int,
    queue: Ints,
    latency: Floats,
    dma_engines: Ints,
    dma_work: Floats,
    free: Floats,
    dma_free: Floats,
    finish: Floats,
) -> int:
    """Grant row `i` the next DMA engines from `time` on; whose turn it is then."""
    free[queue[i]] = time
    last = 0.0
    for k in range(dma_engines[i]):
        g = (turn + k) % engines
        dma_free[g] = max(time + latency[i], dma_free[g]) + dma_work[i]
        last = max(last, dma_free[g])
    finish[i] = last
    return int((turn + dma_engines[i]) % engines)


@compiled
def _shared(i: int, lock: Ints, ports: Floats) -> float:
    """When the ports that row `i` holds are free."""
    time = 0.0
    if lock[i] % 2 == 1:
        time = ports[0]
    if lock[i] >= 2:
        time = max(time, ports[1])
    return time


@compiled
def _goes_before(q: int, best: int, head: Ints, need: Ints, ready: Floats) -> int:
    """Whether of two transfers that could start together that of queue `q` goes first."""
    mine = need[head[q]]
    other = need[head[best]]
    return int(mine < other or (mine == other and ready[q] < ready[best]))


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
    ports: Floats,
    order: Ints,
) -> int:
    """Fill `order` with the rows in grant order; the number granted (n unless waits are cyclic)."""
    turn = 0
    for step in range(n):
        best = -1
        best_time = 0.0
        for q in range(queues):
            i = head[q]
            if i < 0:
                continue
            if ready[q] < 0.0:
                across = semaphore * float(q < first_dma)
                ready[q] = _ready(i, across, queue, wait_start, waits, granted, finish)
                if ready[q] < 0.0:
                    continue
            time = max(ready[q], free[q], _shared(i, lock, ports))
            if q >= first_dma:
                time = max(time, dma_free[turn] - latency[i])
            first = best < 0
            if best >= first_dma and q >= first_dma and time == best_time:
                first = _goes_before(q, best, head, need, ready) == 1
            if first or time < best_time:
                best = q
                best_time = time
        if best < 0:
            return step
        i = head[best]
        if best < first_dma:
            _on_engine(i, best_time, queue, lock, issue, latency, free, ports, finish)
        else:
            turn = _on_dma(
                i,
                best_time,
                turn,
                engines,
                queue,
                latency,
                dma_engines,
                dma_work,
                free,
                dma_free,
                finish,
            )
        granted[i] = 1
        order[step] = i
        head[best] = following[i]
        ready[best] = -1.0
    return n


def grant_order(stream: InstructionStream) -> Ints:
    """Rows of the stream in the order the nominal machine grants them."""
    return _granted(stream)[0]


def ending(stream: InstructionStream) -> float:
    """ns until the nominal machine shows the last result, but for what stationary tiles add."""
    return float(_granted(stream)[1].max(initial=0.0))


def _granted(stream: InstructionStream) -> tuple[Ints, Floats]:
    """(rows in grant order, ns at which each shows its result)."""
    n = len(stream)
    cost = costs(stream)
    queue = stream.rows["queue"]
    head, following = _successors(queue)
    need = np.zeros(n, dtype=np.int64)
    _needed(n, FIRST_DMA_QUEUE, queue, stream.wait_start, stream.waits, need, following)
    order, finish = np.zeros(n, dtype=np.int64), np.zeros(n)
    done = _grant(
        n, QUEUES, FIRST_DMA_QUEUE, stream.core.dma_engines, float(stream.core.semaphore_ns), queue,
        stream.rows["lock"], stream.wait_start, stream.waits, cost.issue, cost.latency,
        cost.dma_engines, cost.dma_work, need, head, following, np.zeros(QUEUES),
        np.full(QUEUES, -1.0), finish, np.zeros(n, dtype=np.int64),
        np.zeros(stream.core.dma_engines), np.zeros(2), order,
    )  # fmt: skip
    assert done == n, "waits name earlier rows only, so some queue can always go on"
    return order, finish


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
