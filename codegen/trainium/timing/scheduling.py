"""List scheduling: the order of a whole program's instructions in each queue.

Engines take their instructions in order, and a program joined from kernels has them kernel by
kernel, step by step: the scalar engine waits for the vector engine's part of one tile before it
empties the next, and nothing of the next kernel begins before the last of this one. Here they are
put into the order in which a greedy machine would issue them: of all instructions whose operands
are there, the one that can start first, unless it would hold up another with a longer way to the
end (`_urgent`). A copy that any of several engines can make goes to the one that shows it first.
It is what `interleaving` does for a loop of a kernel, for programs of any length, in compiled
loops.

Invariant: instructions that touch the same bytes, one of them writing, keep their order
(`conflicts`), so the program computes the same; what an order saves is up to how far apart tiles
stand (`addresses`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilesmith.codegen.compiled import Floats, Ints, compiled
from tilesmith.codegen.trainium.isa.core import ENGINES, FIRST_DMA_QUEUE
from tilesmith.codegen.trainium.isa.instructions import (
    ENGINES_OF,
    LOCK_PSUM,
    LOCK_SBUF,
    OPERANDS,
    InstructionStream,
    Op,
    Space,
)
from tilesmith.codegen.trainium.timing.costs import costs
from tilesmith.codegen.trainium.timing.dependences import Dependences, dependences

LOOK_AHEAD = 1024
"""Instructions that are ready, in program order, among which the next is chosen."""

MOVABLE = (Op.COPY, Op.TENSOR_SCALAR)
"""Operations that any engine that has them may take."""

WAYS = 3
"""Engines that an instruction may go to, at most."""


@compiled
def _begin(
    w: int, queue: Ints, lock: Ints, ready_at: Floats, free: Floats, ports: Floats, dma: int
) -> float:
    """When an instruction can start in way `w` (row * WAYS + which)."""
    time = max(ready_at[w], free[min(queue[w], dma)])
    if lock[w] % 2 == 1:
        time = max(time, ports[0])
    if lock[w] >= 2:
        time = max(time, ports[1])
    return float(time)


@compiled
def _way(
    i: int,
    ways: int,
    dma: int,
    queue: Ints,
    lock: Ints,
    shown: Floats,
    ready_at: Floats,
    free: Floats,
    ports: Floats,
) -> int:
    """The way of row `i` that shows its result first."""
    found = i * ways
    best = _begin(found, queue, lock, ready_at, free, ports, dma) + shown[found]
    for w in range(i * ways + 1, i * ways + ways):
        if queue[w] >= 0:
            time = _begin(w, queue, lock, ready_at, free, ports, dma) + shown[w]
            if time < best:
                best = time
                found = w
    return found


@compiled
def _urgent(
    w: int,
    time: float,
    rest: float,
    other: int,
    other_time: float,
    other_rest: float,
    dma: int,
    queue: Ints,
    lock: Ints,
    busy: Floats,
) -> int:
    """Whether way `other`, which could start later, had better go before way `w`: they need the
    same engine or port, and what waits for either ends sooner so (`rest`: the way to the end)."""
    both = int(min(queue[w], dma) == min(queue[other], dma))
    if lock[w] % 2 == 1 and lock[other] % 2 == 1:
        both = 1
    if lock[w] >= 2 and lock[other] >= 2:
        both = 1
    usual = max(time + rest, max(other_time, time + busy[w]) + other_rest)
    swapped = max(other_time + other_rest, other_time + busy[other] + rest)
    return int(both == 1 and swapped < usual)


@compiled
def _issue(
    n: int,
    ways: int,
    look_ahead: int,
    dma: int,
    swaps: int,
    semaphore: float,
    queue: Ints,
    lock: Ints,
    busy: Floats,
    shown: Floats,
    after_start: Ints,
    after: Ints,
    flow: Ints,
    missing: Ints,
    remaining: Floats,
    ready_at: Floats,
    free: Floats,
    ports: Floats,
    ready: Ints,
    begin: Floats,
    way: Ints,
    order: Ints,
) -> int:
    """Fill `order` (ways of rows) by greedy list scheduling; the number of rows issued."""
    count = 0
    for i in range(n):
        if missing[i] == 0:
            ready[count] = i
            count += 1
    for step in range(n):
        if count == 0:
            return step
        at = -1
        for k in range(min(count, look_ahead)):
            i = ready[k]
            way[k] = _way(i, ways, dma, queue, lock, shown, ready_at, free, ports)
            begin[k] = _begin(way[k], queue, lock, ready_at, free, ports, dma)
            first = at < 0
            if at >= 0:
                first = begin[k] < begin[at] or (
                    begin[k] == begin[at] and remaining[i] > remaining[ready[at]]
                )
            if first:
                at = k
        usual = at
        for k in range(min(count, look_ahead) * swaps):
            if k != at and begin[k] < begin[usual] + busy[way[usual]]:
                urgent = _urgent(
                    way[at], begin[at], remaining[ready[at]], way[k], begin[k],
                    remaining[ready[k]], dma, queue, lock, busy,
                )  # fmt: skip
                if urgent == 1:
                    at = k
        best = ready[at]
        w = way[at]
        time = begin[at]
        order[step] = w
        count -= 1
        for k in range(at, count):
            ready[k] = ready[k + 1]
        done = time + busy[w]
        free[min(queue[w], dma)] = done
        if lock[w] % 2 == 1:
            ports[0] = done
        if lock[w] >= 2:
            ports[1] = done
        for e in range(after_start[best], after_start[best + 1]):
            j = after[e]
            for v in range(j * ways, j * ways + ways):
                late = shown[w]
                if queue[v] == queue[w]:
                    if queue[w] == 0 or (flow[e] == 0 and queue[w] < dma):
                        late = busy[w]
                elif queue[v] < dma:
                    late = late + semaphore
                ready_at[v] = max(ready_at[v], time + late)
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
class Ways:
    """How each row may be issued: engine or queue (-1: no such way), ports held, ns its engine is
    busy and until its result shows; each of shape (n * WAYS,), a row's own way first."""

    queue: Ints
    lock: Ints
    busy: Floats
    shown: Floats


def ways_of(stream: InstructionStream, movable: bool) -> Ways:
    """All ways to issue each row; only its own unless `movable`."""
    n, rows, core = len(stream), stream.rows, stream.core
    queue, lock = np.full((n, WAYS), -1, dtype=np.int64), np.zeros((n, WAYS), dtype=np.int64)
    busy, shown = np.zeros((n, WAYS)), np.zeros((n, WAYS))
    queue[:, 0], lock[:, 0] = rows["queue"], rows["lock"]
    cost = costs(stream)
    dma = rows["queue"] >= FIRST_DMA_QUEUE
    busy[:, 0] = np.where(dma, cost.dma_work * cost.dma_engines / core.dma_engines, cost.issue)
    shown[:, 0] = cost.latency + np.where(dma, cost.dma_work, cost.issue)
    for op in MOVABLE if movable else ():
        mine = np.flatnonzero(rows["op"] == op)
        used = np.ones(len(mine), dtype=np.int64)
        sbuf, psum = (_touches(stream, mine, space) for space in (Space.SBUF, Space.PSUM))
        for name in ENGINES_OF[op]:
            number = ENGINES.index(name)
            able = (rows["queue"][mine] != number) & ~(psum & (name == "gpsimd"))
            row, place = mine[able], used[able]
            there = costs(
                replace(stream, rows={**rows, "queue": np.where(dma, rows["queue"], number)})
            )
            queue[row, place] = number
            held = sbuf & core.exclusive_sbuf & (name in ("vector", "gpsimd"))
            lock[row, place] = np.where(held, LOCK_SBUF, 0)[able]
            held = psum & core.exclusive_psum & (name in ("vector", "scalar"))
            lock[row, place] |= np.where(held, LOCK_PSUM, 0)[able]
            busy[row, place] = there.issue[row]
            shown[row, place] = there.issue[row] + there.latency[row]
            used[able] += 1
    return Ways(queue.reshape(-1), lock.reshape(-1), busy.reshape(-1), shown.reshape(-1))


def _touches(stream: InstructionStream, rows: Ints, space: Space) -> np.ndarray:
    """Whether each of some rows has an operand in a memory."""
    spaces = np.append(stream.accesses["space"], -1)
    found: np.ndarray = np.any([spaces[stream.rows[name][rows]] == space for name in OPERANDS], 0)
    return found


@dataclass(frozen=True)
class Rule:
    """How the greedy machine chooses.

    Attributes:
        movable: copies go to whichever engine shows them first.
        swaps: what could start first makes way for what is more urgent (`_urgent`).
        drift: ns that a row is less urgent for each place it stands further back in the program:
            with some, weights are loaded in the order in which they are used.
    """

    movable: bool = True
    swaps: bool = True
    drift: float = 0.0


RULES = (Rule(), Rule(drift=8.0), Rule(swaps=False), Rule(movable=False, swaps=False))
"""Rules that are worth trying, the best usually first."""


def scheduled(stream: InstructionStream, rule: Rule = RULES[0]) -> InstructionStream:
    """A stream, which needs no semaphores yet, as a greedy machine would issue it; `position` says
    what rows were written as."""
    ways, found, n = ways_of(stream, rule.movable), dependences(stream), len(stream)
    semaphore = float(stream.core.semaphore_ns)
    remaining = _remaining(n, semaphore, found, ways) - rule.drift * np.arange(n)
    order = _played(n, semaphore, found, ways, remaining, rule.swaps)
    return _taken(stream, order, ways)


def _played(
    n: int, semaphore: float, found: Dependences, ways: Ways, remaining: Floats, swaps: bool
) -> Ints:
    """Ways in the order of issue."""
    by_earlier = np.argsort(found.earlier, kind="stable")
    after_start = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount(found.earlier, minlength=n), out=after_start[1:])
    order = np.zeros(n, dtype=np.int64)
    done = _issue(
        n, WAYS, LOOK_AHEAD, FIRST_DMA_QUEUE, int(swaps), semaphore, ways.queue, ways.lock,
        ways.busy, ways.shown, after_start, np.ascontiguousarray(found.later[by_earlier]),
        np.ascontiguousarray(found.flow[by_earlier]),
        np.bincount(found.later, minlength=n).astype(np.int64), remaining,
        np.zeros(n * WAYS), np.zeros(FIRST_DMA_QUEUE + 1), np.zeros(2),
        np.zeros(n + 1, dtype=np.int64), np.zeros(LOOK_AHEAD), np.zeros(LOOK_AHEAD, dtype=np.int64),
        order,
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


def _remaining(n: int, semaphore: float, found: Dependences, ways: Ways) -> Floats:
    """ns from the start of each row, issued in its own way, to the end of the program, if engines
    were never taken."""
    queue, busy, shown = ways.queue[::WAYS], ways.busy[::WAYS], ways.shown[::WAYS]
    earlier, later = found.earlier, found.later
    dma = queue >= FIRST_DMA_QUEUE
    same = queue[earlier] == queue[later]
    early = same & (((found.flow == 0) & ~dma[earlier]) | (queue[later] == 0))
    delay = np.where(early, busy[earlier], shown[earlier])
    delay = delay + np.where(same | dma[later], 0.0, semaphore)
    remaining = np.ascontiguousarray(busy, dtype=np.float64).copy()
    _longest(len(earlier), earlier, later, np.ascontiguousarray(delay), remaining)
    return remaining


def _taken(stream: InstructionStream, order: Ints, ways: Ways) -> InstructionStream:
    """The rows of a stream in an order of ways, each on its engine."""
    picks = order // WAYS
    rows = {name: np.ascontiguousarray(column[picks]) for name, column in stream.rows.items()}
    rows["queue"], rows["lock"] = ways.queue[order], ways.lock[order]
    return replace(stream, rows=rows, immediates=np.ascontiguousarray(stream.immediates[picks]))
