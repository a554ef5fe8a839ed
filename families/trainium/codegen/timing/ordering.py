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

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tilesmith.codegen.compiled import Floats, Ints, compiled
from tilesmith.families.trainium.codegen.isa.core import COLLECTIVE_QUEUE, FIRST_DMA_QUEUE, QUEUES
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Issue
from tilesmith.families.trainium.codegen.timing.costs import InstructionCosts, costs


class Grants(NamedTuple):
    """The nominal machine's state, in ns.

    Attributes:
        head: the next row of each queue (-1: none); `following`: the next of the same queue.
        need: the first row of the tensor engine that waits for a row, perhaps through others.
        free, ready: when each queue is free, and when all its head waits for shows (-1: unknown).
        dma_free, ports: when DMA engines and shared ports are free.
        finish: when each row shows its result; `granted`: whether it is known.
        order: rows, as granted.
    """

    head: Ints
    following: Ints
    need: Ints
    free: Floats
    ready: Floats
    dma_free: Floats
    ports: Floats
    finish: Floats
    granted: Ints
    order: Ints


@compiled
def _needed(n: int, issue: Issue, grants: Grants) -> None:
    """Fill `need` (n: none); who waits for a row waits for those before it in its queue."""
    for i in range(n):
        grants.need[i] = n
    for i in range(n - 1, -1, -1):
        if issue.queue[i] == 0:
            grants.need[i] = i
        elif issue.queue[i] >= FIRST_DMA_QUEUE and grants.following[i] >= 0:
            grants.need[i] = min(grants.need[i], grants.need[grants.following[i]])
        for w in range(issue.wait_start[i], issue.wait_start[i + 1]):
            d = issue.waits[w]
            grants.need[d] = min(grants.need[d], grants.need[i])


@compiled
def _ready(i: int, semaphore: float, issue: Issue, grants: Grants) -> float:
    """When all that row `i` waits for shows to it, or -1 if some of it is not granted yet."""
    time = 0.0
    across = semaphore * float(issue.queue[i] < FIRST_DMA_QUEUE)
    for w in range(issue.wait_start[i], issue.wait_start[i + 1]):
        d = issue.waits[w]
        if grants.granted[d] == 0:
            return -1.0
        when = grants.finish[d]
        if issue.queue[d] != issue.queue[i]:
            when = when + across
        time = max(time, when)
    return time


@compiled
def _on_engine(i: int, time: float, issue: Issue, costs: InstructionCosts, grants: Grants) -> None:
    """Grant row `i` its engine and ports from `time` on."""
    done = time + costs.issue[i]
    grants.free[issue.queue[i]] = done
    grants.finish[i] = done + costs.latency[i]
    if issue.lock[i] % 2 == 1:
        grants.ports[0] = done
    if issue.lock[i] >= 2:
        grants.ports[1] = done


@compiled
def _on_dma(
    i: int,
    time: float,
    turn: int,
    engines: int,
    issue: Issue,
    costs: InstructionCosts,
    grants: Grants,
) -> int:
    """Grant row `i` the next DMA engines from `time` on; whose turn it is then."""
    grants.free[issue.queue[i]] = time
    ready = time + costs.latency[i]
    last = ready + costs.dma_floor[i]
    if issue.queue[i] == COLLECTIVE_QUEUE:
        ready = time
    for k in range(costs.dma_engines[i]):
        g = (turn + k) % engines
        begun = max(ready, grants.dma_free[g])
        grants.dma_free[g] = begun + costs.dma_work[i]
        last = max(last, grants.dma_free[g])
    grants.finish[i] = last
    if issue.queue[i] == COLLECTIVE_QUEUE:  # one after the other
        grants.free[issue.queue[i]] = last
    return int((turn + costs.dma_engines[i]) % engines)


@compiled
def _start(q: int, turn: int, issue: Issue, costs: InstructionCosts, grants: Grants) -> float:
    """When the head of queue `q`, all it waits for being known, can start."""
    i = grants.head[q]
    time = max(grants.ready[q], grants.free[q])
    if issue.lock[i] % 2 == 1:
        time = max(time, grants.ports[0])
    if issue.lock[i] >= 2:
        time = max(time, grants.ports[1])
    if q >= FIRST_DMA_QUEUE:
        time = max(time, grants.dma_free[turn] - costs.latency[i])
    return float(time)


@compiled
def _goes_before(q: int, best: int, grants: Grants) -> int:
    """Whether of two transfers that could start together that of queue `q` goes first."""
    mine = grants.need[grants.head[q]]
    other = grants.need[grants.head[best]]
    return int(mine < other or (mine == other and grants.ready[q] < grants.ready[best]))


@compiled
def _grant(
    n: int, engines: int, semaphore: float, issue: Issue, costs: InstructionCosts, grants: Grants
) -> int:
    """Fill `order` with the rows in grant order; the number granted (n unless waits are cyclic)."""
    turn = 0
    for step in range(n):
        best = -1
        best_time = 0.0
        for q in range(QUEUES):
            if grants.head[q] < 0:
                continue
            if grants.ready[q] < 0.0:
                grants.ready[q] = _ready(grants.head[q], semaphore, issue, grants)
                if grants.ready[q] < 0.0:
                    continue
            time = _start(q, turn, issue, costs, grants)
            first = best < 0 or time < best_time
            if best >= FIRST_DMA_QUEUE and q >= FIRST_DMA_QUEUE and time == best_time:
                first = _goes_before(q, best, grants) == 1
            if first:
                best = q
                best_time = time
        if best < 0:
            return step
        i = grants.head[best]
        if best < FIRST_DMA_QUEUE:
            _on_engine(i, best_time, issue, costs, grants)
        else:
            turn = _on_dma(i, best_time, turn, engines, issue, costs, grants)
        grants.granted[i] = 1
        grants.order[step] = i
        grants.head[best] = grants.following[i]
        grants.ready[best] = -1.0
    return n


def grant_order(stream: InstructionStream) -> Ints:
    """Rows of the stream in the order the nominal machine grants them."""
    return _granted(stream)[0]


def ending(stream: InstructionStream) -> float:
    """ns until the nominal machine shows the last result, but for what stationary tiles add."""
    return float(_granted(stream)[1].max(initial=0.0))


def _granted(stream: InstructionStream) -> tuple[Ints, Floats]:
    """(rows in grant order, ns at which each shows its result)."""
    n, core, issue = len(stream), stream.core, stream.issue
    grants = Grants(
        *_successors(issue.queue), np.zeros(n, dtype=np.int64), np.zeros(QUEUES),
        np.full(QUEUES, -1.0), np.zeros(core.dma_engines), np.zeros(2), np.zeros(n),
        np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64),
    )  # fmt: skip
    _needed(n, issue, grants)
    done = _grant(n, core.dma_engines, float(core.semaphore_ns), issue, costs(stream), grants)
    assert done == n, "waits name earlier rows only, so some queue can always go on"
    return grants.order, grants.finish


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
