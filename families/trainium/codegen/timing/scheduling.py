"""List scheduling: the order of instructions in each queue, chosen so that engines seldom wait.

Engines take their instructions in order. A loop over independent chains (the heads of an attention)
written chain by chain leaves each of them waiting for the chain's latencies; a program joined from
kernels has the scalar engine wait for the vector engine's part of one tile before it empties the
next, and nothing of the next kernel begins before the last of this one. Here instructions are put
into the order in which a greedy machine would issue them: of all whose operands are there, the one
that can start first, unless it would hold up another with a longer way to the end (`_urgent`). If
several engines may take an instruction, it goes to the one that shows its result first.

Invariant: instructions that touch the same bytes, one of them writing, keep their order
(`dependences`), so the program computes the same; what an order saves is up to the places of tiles:
an instruction that overwrites one still waits for its readers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tilesmith.codegen.compiled import Floats, Ints, compiled
from tilesmith.families.trainium.codegen.isa.core import FIRST_DMA_QUEUE
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream
from tilesmith.families.trainium.codegen.timing.dependences import (
    OVERWRITES,
    PLACE,
    Dependences,
    dependences,
    with_semaphores,
)
from tilesmith.families.trainium.codegen.timing.ordering import ending, in_grant_order
from tilesmith.families.trainium.codegen.timing.ways import (
    WAYS,
    Choices,
    IssueWays,
    movable,
    no_choices,
    ways_of,
)

LOOK_AHEAD = 1024
"""Instructions that are ready, in program order, among which the next is chosen."""


class _Graph(NamedTuple):
    """Rows that wait for row i, after[start[i]:start[i + 1]], and whether for its result (else only
    until it has begun); how many each row still waits for, and ns from its start to the end of the
    program, if engines were never taken."""

    start: Ints
    after: Ints
    flow: Ints
    missing: Ints
    remaining: Floats


class _Machine(NamedTuple):
    """The greedy machine's state, in ns.

    Attributes:
        ready_at: when all that a way of a row waits for has come, shape (n * WAYS,).
        free: when each engine is free again, all DMA queues as one; `ports`: the two shared ports.
        ready: rows that wait for none, in program order; `begin`, `way`: of the first of them, when
            and how they would be issued.
        order: ways, as issued.
        end: when the last result shows.
    """

    ready_at: Floats
    free: Floats
    ports: Floats
    ready: Ints
    begin: Floats
    way: Ints
    order: Ints
    end: Floats


@compiled
def _begin(w: int, ways: IssueWays, machine: _Machine) -> float:
    """When an instruction can start in way `w` (row * WAYS + which)."""
    time = max(machine.ready_at[w], machine.free[min(ways.queue[w], FIRST_DMA_QUEUE)])
    if ways.lock[w] % 2 == 1:
        time = max(time, machine.ports[0])
    if ways.lock[w] >= 2:
        time = max(time, machine.ports[1])
    return float(time)


@compiled
def _way(i: int, ways: IssueWays, machine: _Machine) -> int:
    """The way of row `i` that shows its result first."""
    fastest = i * WAYS
    best = _begin(fastest, ways, machine) + ways.shown[fastest]
    for w in range(i * WAYS + 1, i * WAYS + WAYS):
        if ways.queue[w] >= 0:
            time = _begin(w, ways, machine) + ways.shown[w]
            if time < best:
                best = time
                fastest = w
    return fastest


@compiled
def _urgent(k: int, at: int, ways: IssueWays, graph: _Graph, machine: _Machine) -> int:
    """Whether ready row number `k`, which could start later, had better go before number `at`: they
    need the same engine or port, and what waits for either ends sooner so."""
    w = machine.way[at]
    other = machine.way[k]
    both = min(ways.queue[w], FIRST_DMA_QUEUE) == min(ways.queue[other], FIRST_DMA_QUEUE)
    odd = ways.lock[w] % 2 == 1 and ways.lock[other] % 2 == 1
    if not both and not odd and not (ways.lock[w] >= 2 and ways.lock[other] >= 2):
        return 0
    time = machine.begin[at]
    later = machine.begin[k]
    rest = graph.remaining[machine.ready[at]]
    other_rest = graph.remaining[machine.ready[k]]
    usual = max(time + rest, max(later, time + ways.busy[w]) + other_rest)
    swapped = max(later + other_rest, later + ways.busy[other] + rest)
    return int(swapped < usual)


@compiled
def _choose(count: int, swaps: int, ways: IssueWays, graph: _Graph, machine: _Machine) -> int:
    """Which of `count` ready rows is issued next, by its number among them."""
    at = -1
    for k in range(min(count, LOOK_AHEAD)):
        i = machine.ready[k]
        w = _way(i, ways, machine)
        time = _begin(w, ways, machine)
        machine.way[k] = w
        machine.begin[k] = time
        if (
            at < 0
            or time < machine.begin[at]
            or (
                time == machine.begin[at]
                and graph.remaining[i] > graph.remaining[machine.ready[at]]
            )
        ):
            at = k
    usual = machine.begin[at] + ways.busy[machine.way[at]]
    for k in range(min(count, LOOK_AHEAD) * swaps):
        if k != at and machine.begin[k] < usual and _urgent(k, at, ways, graph, machine) == 1:
            at = k
    return at


@compiled
def _occupy(w: int, time: float, ways: IssueWays, machine: _Machine) -> None:
    """Issue way `w` at a time: its engine and ports are taken."""
    done = time + ways.busy[w]
    machine.free[min(ways.queue[w], FIRST_DMA_QUEUE)] = done
    machine.end[0] = max(machine.end[0], time + ways.shown[w])
    if ways.lock[w] % 2 == 1:
        machine.ports[0] = done
    if ways.lock[w] >= 2:
        machine.ports[1] = done


@compiled
def _delay(w: int, v: int, flow: int, semaphore: float, ways: IssueWays) -> float:
    """ns from the start of way `w` to the earliest start of way `v`, which follows it."""
    if flow == PLACE:
        return 0.0
    if ways.queue[v] == ways.queue[w]:
        if ways.queue[w] == 0 or (flow == OVERWRITES and ways.queue[w] < FIRST_DMA_QUEUE):
            return float(ways.busy[w])
        return float(ways.shown[w])
    if ways.queue[v] < FIRST_DMA_QUEUE:
        return float(ways.shown[w] + semaphore)
    return float(ways.shown[w])


@compiled
def _issue(
    n: int, swaps: int, semaphore: float, ways: IssueWays, graph: _Graph, machine: _Machine
) -> int:
    """Fill `machine.order` by greedy list scheduling; the number of rows issued."""
    count = 0
    for i in range(n):
        if graph.missing[i] == 0:
            machine.ready[count] = i
            count += 1
    for step in range(n):
        if count == 0:
            return step
        at = _choose(count, swaps, ways, graph, machine)
        row = machine.ready[at]
        w = machine.way[at]
        time = machine.begin[at]
        machine.order[step] = w
        _occupy(w, time, ways, machine)
        count -= 1
        for k in range(at, count):
            machine.ready[k] = machine.ready[k + 1]
        for e in range(graph.start[row], graph.start[row + 1]):
            j = graph.after[e]
            for v in range(j * WAYS, j * WAYS + WAYS):
                late = time + _delay(w, v, graph.flow[e], semaphore, ways)
                machine.ready_at[v] = max(machine.ready_at[v], late)
            graph.missing[j] -= 1
            if graph.missing[j] == 0:
                k = count
                while k > 0 and machine.ready[k - 1] > j:
                    machine.ready[k] = machine.ready[k - 1]
                    k -= 1
                machine.ready[k] = j
                count += 1
    return n


@compiled
def _longest(
    m: int,
    semaphore: float,
    earlier: Ints,
    later: Ints,
    flow: Ints,
    ways: IssueWays,
    remaining: Floats,
) -> None:
    """Raise `remaining` of each row by its way through later ones, all issued in their own way;
    pairs are sorted by the later, so that going backwards all ways from a row are known before it
    is used."""
    for e in range(m - 1, -1, -1):
        delay = _delay(earlier[e] * WAYS, later[e] * WAYS, flow[e], semaphore, ways)
        remaining[earlier[e]] = max(remaining[earlier[e]], delay + remaining[later[e]])


@dataclass(frozen=True)
class Rule:
    """How the greedy machine chooses.

    Attributes:
        movable: copies go to whichever engine shows them first.
        swaps: what could start first makes way for what is more urgent (`_urgent`).
        drift: ns that a row is less urgent for each place it stands further back in the program:
            with some, weights are loaded in the order in which they are used, and the first chains
            of a loop are finished before the last are begun.
    """

    movable: bool = True
    swaps: bool = True
    drift: float = 0.0


RULES = (Rule(), Rule(drift=8.0), Rule(swaps=False), Rule(movable=False, swaps=False))
"""Rules for programs that are worth trying, the best usually first."""

REORDERING = tuple(replace(rule, movable=False) for rule in RULES[:3])
"""The same where every instruction stays on its engine."""

INTERLEAVING = (
    *(Rule(swaps=False, drift=drift) for drift in (1.0, 4.0, 16.0)),
    *(Rule(drift=drift) for drift in (1.0, 4.0)),
)
"""Rules for loops over independent chains; no single one is best for most of them."""


@dataclass(frozen=True)
class Order:
    """Rows in the order of issue, the engine (or queue) of each and the ports it holds there, and
    when the greedy machine shows the last result, in ns."""

    rows: Ints
    queue: Ints
    lock: Ints
    end: float


def order(stream: InstructionStream, known: Dependences, ways: IssueWays, rule: Rule) -> Order:
    """The order in which a greedy machine issues the rows of a stream."""
    n, semaphore = len(stream), float(stream.core.semaphore_ns)
    remaining = ways.busy[::WAYS].copy()
    _longest(len(known.later), semaphore, known.earlier, known.later, known.flow, ways, remaining)
    start = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount(known.earlier, minlength=n), out=start[1:])
    by_earlier = np.argsort(known.earlier, kind="stable")
    graph = _Graph(
        start, known.later[by_earlier], known.flow[by_earlier], np.diff(known.start),
        remaining - rule.drift * np.arange(n),
    )  # fmt: skip
    machine = _Machine(
        np.zeros(n * WAYS), np.zeros(FIRST_DMA_QUEUE + 1), np.zeros(2),
        np.zeros(n + 1, dtype=np.int64), np.zeros(LOOK_AHEAD), np.zeros(LOOK_AHEAD, dtype=np.int64),
        np.zeros(n, dtype=np.int64), np.zeros(1),
    )  # fmt: skip
    done = _issue(n, int(rule.swaps), semaphore, ways, graph, machine)
    assert done == n, "rows follow earlier ones only"
    taken = machine.order
    return Order(taken // WAYS, ways.queue[taken], ways.lock[taken], float(machine.end[0]))


def shortest(stream: InstructionStream, choices: Choices, rules: Sequence[Rule]) -> Order:
    """The order that ends first, of those by some rules; where rows may go is given. Tiles that
    share a place stay apart."""
    known, ways = dependences(stream, tiles=True), ways_of(stream, choices)
    return min((order(stream, known, ways, rule) for rule in rules), key=lambda one: one.end)


def schedules(
    stream: InstructionStream, rules: Sequence[Rule] = RULES
) -> Iterator[InstructionStream]:
    """A stream, which needs no semaphores yet, as a greedy machine would issue it by each rule, and
    with them; `position` says what rows were written as."""
    known = dependences(stream)
    ways = {
        kind: ways_of(stream, movable(stream) if kind else no_choices())
        for kind in {rule.movable for rule in rules}
    }
    for rule in rules:
        one = order(stream, known, ways[rule.movable], rule)
        rows = {name: np.ascontiguousarray(c[one.rows]) for name, c in stream.rows.items()}
        rows["queue"], rows["lock"] = one.queue, one.lock
        immediates = np.ascontiguousarray(stream.immediates[one.rows])
        moved = replace(stream, rows=rows, immediates=immediates)
        yield with_semaphores(moved, known.reordered(one.rows))


def soonest(stream: InstructionStream, rules: Sequence[Rule] = RULES) -> InstructionStream:
    """A stream, which needs no semaphores yet, in the order that ends first on the nominal machine:
    as written, or by one of the rules; with semaphores, its rows in grant order."""
    return in_grant_order(min((with_semaphores(stream), *schedules(stream, rules)), key=ending))


def rescheduled(stream: InstructionStream) -> InstructionStream:
    """A finished stream as `soonest` orders it, from the order it was written in, every
    instruction on the engine it was written for."""
    order = np.argsort(stream.rows["position"], kind="stable")
    rows = {name: np.ascontiguousarray(column[order]) for name, column in stream.rows.items()}
    immediates = np.ascontiguousarray(stream.immediates[order])
    return soonest(replace(stream, rows=rows, immediates=immediates), REORDERING)


def scheduled(stream: InstructionStream, rule: Rule = RULES[0]) -> InstructionStream:
    """As `schedules`, by one rule."""
    return next(schedules(stream, (rule,)))
