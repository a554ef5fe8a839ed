"""The greedy machine that interleaving plays: which instruction next, and on which engine.

An instruction waits for others (`Graph`), then for its engine and the memory ports it holds there.
Of all that wait for neither data nor order, the one that can begin first is issued; of those, the
one with the longest way to the end, less `drift` for each place it stands further back in the
program: with a drift, the first chains are finished before the last are begun. An instruction that
several engines may run goes to the one that shows its result first.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from tilesmith.codegen.trainium.isa.core import ENGINES, FIRST_DMA_QUEUE, Core
from tilesmith.codegen.trainium.isa.instructions import InstructionStream
from tilesmith.codegen.trainium.timing.costs import costs

DRIFTS = (1.0, 4.0)
"""ns a place in the program; the order that ends first is taken."""

SHORT = 512
"""Instructions up to which several drifts are tried."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to issue an instruction.

    Attributes:
        queue: engine or DMA queue; `engine`: what it occupies (all DMA queues share one).
        lock: bits of memory ports it holds.
        busy: ns its engine is occupied; `shown`: ns from its start until its result is visible.
    """

    queue: int
    engine: int
    lock: int
    busy: float
    shown: float


@dataclass
class Graph:
    """Instructions (by row), how each may be issued, and what each waits for.

    Attributes:
        options: at least one for each row; `before`: rows that a row follows, and whether it needs
            their results (else only that they have begun before); `after`: the reverse.
    """

    core: Core
    rows: range
    options: dict[int, list[Option]]
    before: dict[int, dict[int, bool]] = field(default_factory=dict)
    after: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.before = {row: {} for row in self.rows}
        self.after = {row: [] for row in self.rows}

    def follow(self, earlier: int, later: int, flow: bool) -> None:
        """Row `later` waits for `earlier`, for its result if `flow`."""
        known = self.before[later]
        if earlier not in known:
            self.after[earlier].append(later)
        known[earlier] = known.get(earlier, False) or flow

    def delay(self, earlier: Option, later: Option, flow: bool) -> float:
        """ns from the start of one instruction to the earliest start of one that waits for it."""
        dma = earlier.queue >= FIRST_DMA_QUEUE
        done = earlier.shown if flow or dma else earlier.busy
        return done + (0.0 if earlier.queue == later.queue else self.core.semaphore_ns)

    def remaining(self) -> dict[int, float]:
        """ns from the start of each row to the end of all that waits for it."""
        found: dict[int, float] = {}
        for row in reversed(self.rows):
            own = self.options[row][0]
            found[row] = own.shown
            for later in self.after[row]:
                step = self.delay(own, self.options[later][0], self.before[later][row])
                found[row] = max(found[row], step + found[later])
        return found


def issue_options(
    stream: InstructionStream, rows: range, choices: dict[int, list[tuple[int, int]]]
) -> dict[int, list[Option]]:
    """How each row may be issued; `choices`: (engine, lock) where several may."""
    core = stream.core
    queue, lock = stream.rows["queue"].tolist(), stream.rows["lock"].tolist()
    cost = costs(stream)
    share = cost.dma_work * cost.dma_engines / core.dma_engines
    dma = stream.rows["queue"] >= FIRST_DMA_QUEUE
    busy = np.where(dma, share, cost.issue).tolist()
    shown = np.where(dma, cost.dma_work, cost.issue) + cost.latency
    ends = shown.tolist()
    found = {
        row: [Option(queue[row], min(queue[row], FIRST_DMA_QUEUE), lock[row], busy[row], ends[row])]
        for row in rows
    }
    for engine in {engine for ways in choices.values() for engine, _ in ways}:
        moved = np.where(stream.rows["queue"] < len(ENGINES), engine, stream.rows["queue"])
        there = costs(replace(stream, rows={**stream.rows, "queue": moved}))
        for row, ways in choices.items():
            for other, held in ways:
                if other == engine and engine != queue[row]:
                    issue, late = float(there.issue[row]), float(there.latency[row])
                    found[row].append(Option(engine, engine, held, issue, issue + late))
    return found


def arrange(graph: Graph) -> list[tuple[int, Option]]:
    """Rows in the order of issue, with how each is issued."""
    remaining = graph.remaining()
    drifts = DRIFTS if len(graph.rows) <= SHORT else DRIFTS[:1]
    played = [_play(graph, remaining, drift) for drift in drifts]
    return min(played, key=lambda found: found[0])[1]


def _play(
    graph: Graph, remaining: dict[int, float], drift: float
) -> tuple[float, list[tuple[int, Option]]]:
    """(when the last result shows, order) of one greedy run."""
    missing = {row: len(graph.before[row]) for row in graph.rows}
    ready = {
        row: [(option, 0.0) for option in graph.options[row]]
        for row in graph.rows
        if not missing[row]
    }
    rank = {row: drift * row - remaining[row] for row in graph.rows}
    free: dict[int, float] = {}
    held = [0.0, 0.0]
    order: list[tuple[int, Option]] = []
    begun: dict[int, tuple[float, Option]] = {}
    end = 0.0
    while ready:
        best, best_key, chosen = -1, (0.0, 0.0), None
        for row, ways in ready.items():
            begin, option = _soonest(ways, free, held)
            key = (begin, rank[row])
            if chosen is None or key < best_key:
                best, best_key, chosen = row, key, option
        assert chosen is not None
        begin = best_key[0]
        begun[best] = begin, chosen
        order.append((best, chosen))
        end = max(end, begin + chosen.shown)
        del ready[best]
        free[chosen.engine] = begin + chosen.busy
        for bit in (0, 1):
            if chosen.lock >> bit & 1:
                held[bit] = begin + chosen.busy
        for later in graph.after[best]:
            missing[later] -= 1
            if not missing[later]:
                ready[later] = _ways(graph, later, begun)
    return end, order


def _ways(
    graph: Graph, row: int, begun: dict[int, tuple[float, Option]]
) -> list[tuple[Option, float]]:
    """Each option of a row, and when all it waits for has come."""
    waits = [(*begun[earlier], flow) for earlier, flow in graph.before[row].items()]
    return [
        (option, max(time + graph.delay(other, option, flow) for time, other, flow in waits))
        for option in graph.options[row]
    ]


def _soonest(
    ways: list[tuple[Option, float]], free: dict[int, float], held: list[float]
) -> tuple[float, Option]:
    """(start, option) of the way that shows its result first."""
    found: tuple[float, float, Option] | None = None
    for option, time in ways:
        begin = max(time, free.get(option.engine, 0.0))
        if option.lock:
            begin = max([begin, *(held[bit] for bit in (0, 1) if option.lock >> bit & 1)])
        if found is None or begin + option.shown < found[0]:
            found = begin + option.shown, begin, option
    assert found is not None
    return found[1], found[2]
