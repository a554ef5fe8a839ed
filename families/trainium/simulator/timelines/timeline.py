"""The event timeline: when each instruction of a stream starts and ends, in one compiled pass.

Every engine and queue is a resource that is free from some time on; an instruction starts when its
queue, its port and everything it waits for allow, and moves those times on. Only `max` and `+` of
non-negative numbers occur and resources are granted in the stream's own order, so the whole is a
max-plus system: a faster engine or more bandwidth can never make a program later.

- issue (how long the engine is occupied) and latency (until the result shows) are apart:
  independent instructions follow each other at the issue rate, dependent ones pay the latency too;
- results appear in a queue's order; another engine sees a semaphore `semaphore_ns` later;
- the tensor engine loads a new stationary tile behind the pass before;
- a DMA transfer begins `dma.start_ns` after its semaphore and is spread over the DMA engines,
  which, as HBM itself, serve transfers in grant order; its data take no less than a floor, during
  which engines serve others.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tilesmith.codegen.compiled import Floats, Ints, compiled
from tilesmith.families.trainium.codegen.isa.core import (
    COLLECTIVE_QUEUE,
    ENGINES,
    FIRST_DMA_QUEUE,
    QUEUES,
    Core,
)
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Issue
from tilesmith.families.trainium.codegen.timing.costs import InstructionCosts, costs
from tilesmith.families.trainium.codegen.timing.scheduling import rescheduled

SYNCHRONISATION_SHARE = 0.6
"""Below this share of its time, no engine "bounds" the program: it waits on latencies."""


class _Machine(NamedTuple):
    """The machine's state, in ns, and what is found.

    Attributes:
        free, shown: when each queue is free, and when its latest result shows.
        dma_free: when each DMA engine is free; `turn`: whose turn it is.
        ports: when the shared ports of SBUF and PSUM are free.
        latest: when the tensor engine's latest pass began, and when HBM is free.
        start, end: of each row; `busy`: of each queue.
    """

    free: Floats
    shown: Floats
    dma_free: Floats
    turn: Ints
    ports: Floats
    latest: Floats
    start: Floats
    end: Floats
    busy: Floats


@compiled
def _ready(i: int, across: float, issue: Issue, machine: _Machine) -> float:
    """When all that row `i` waits for shows to it: results of other queues `across` later."""
    time = 0.0
    for w in range(issue.wait_start[i], issue.wait_start[i + 1]):
        d = issue.waits[w]
        when = machine.end[d]
        if issue.queue[d] != issue.queue[i]:
            when = when + across
        time = max(time, when)
    return time


@compiled
def _issue(i: int, time: float, issue: Issue, costs: InstructionCosts, machine: _Machine) -> float:
    """Occupy an engine and the ports of row `i` from `time` on; when it really starts."""
    held = issue.lock[i]
    if held % 2 == 1:
        time = max(time, machine.ports[0])
    if held >= 2:
        time = max(time, machine.ports[1])
    if issue.queue[i] == 0:
        time = max(time, machine.latest[0] + costs.stationary[i])
        machine.latest[0] = time
    if held % 2 == 1:
        machine.ports[0] = time + costs.issue[i]
    if held >= 2:
        machine.ports[1] = time + costs.issue[i]
    return time


@compiled
def _transfer(
    i: int, time: float, engines: int, costs: InstructionCosts, machine: _Machine
) -> float:
    """Serve a transfer's data from `time` on, engines in turn; when the last of it is there."""
    machine.latest[1] = max(machine.latest[1], time) + costs.hbm[i]
    finish = max(machine.latest[1], time + costs.dma_floor[i])
    for _ in range(costs.dma_engines[i]):
        t = machine.turn[0]
        done = max(time, machine.dma_free[t]) + costs.dma_work[i]
        machine.dma_free[t] = done
        finish = max(finish, done)
        machine.turn[0] = t + 1
        if t + 1 == engines:
            machine.turn[0] = 0
    return float(finish)


@compiled
def _meet(i: int, time: float, costs: InstructionCosts, machine: _Machine) -> float:
    """Take part in a collective from `time` on, DMA engines for a part of it; when it is done."""
    finish = time + costs.latency[i]
    for t in range(costs.dma_engines[i]):
        machine.dma_free[t] = max(time, machine.dma_free[t]) + costs.dma_work[i]
        finish = max(finish, machine.dma_free[t])
    return float(finish)


@compiled
def _run(
    n: int, engines: int, semaphore: float, issue: Issue, costs: InstructionCosts, machine: _Machine
) -> None:
    """Fill `start` and `end` of each row and `busy` of each queue."""
    for i in range(n):
        q = issue.queue[i]
        if q < FIRST_DMA_QUEUE:
            time = max(machine.free[q], _ready(i, semaphore, issue, machine))
            time = _issue(i, time, issue, costs, machine)
            machine.free[q] = time + costs.issue[i]
            finish = machine.free[q] + costs.latency[i]
        else:
            machine.free[q] = max(machine.free[q], _ready(i, 0.0, issue, machine))
            if q == COLLECTIVE_QUEUE:
                time = max(machine.free[q], machine.shown[q])
                finish = _meet(i, time, costs, machine)
            else:
                time = machine.free[q] + costs.latency[i]
                finish = _transfer(i, time, engines, costs, machine)
        finish = max(finish, machine.shown[q])
        machine.busy[q] += max(0.0, finish - max(time, machine.shown[q]))
        machine.shown[q] = finish
        machine.start[i] = time
        machine.end[i] = finish


@dataclass(frozen=True, eq=False)
class Timeline:
    """When everything happened.

    Attributes:
        start, end: ns of each row, shape (n,); for DMA, of its data phase.
        active: ns each queue had an instruction in flight, shape (queues,).
        costs: of each row, as simulated.
    """

    stream: InstructionStream
    core: Core
    start: Floats
    end: Floats
    active: Floats
    costs: InstructionCosts

    def replay(self) -> "Timeline":
        """The same, played again (what the benchmarks time: the engine alone)."""
        return play(self.stream, self.core, self.costs)

    @cached_property
    def makespan(self) -> float:
        """ns from the first instruction to the last result."""
        return float(self.end.max()) if len(self.end) else 0.0

    @cached_property
    def dma_busy(self) -> float:
        """ns the DMA engines moved data, averaged over them."""
        return float((self.costs.dma_engines * self.costs.dma_work).sum()) / self.core.dma_engines

    @cached_property
    def engines(self) -> dict[str, float]:
        """Share of the time each engine had an instruction in flight; "dma": moved data; "cc":
        collectives, if there are any."""
        whole = max(self.makespan, 1e-9)
        shares = {name: float(self.active[i]) / whole for i, name in enumerate(ENGINES)}
        between = float(self.active[COLLECTIVE_QUEUE]) / whole
        return {**shares, "dma": self.dma_busy / whole, **({"cc": between} if between else {})}

    @cached_property
    def occupied(self) -> dict[str, float]:
        """ns each resource was occupied and could take nothing else: the roofs of this program."""
        queue = self.stream.rows["queue"]
        return {
            **{name: float(self.costs.issue[queue == i].sum()) for i, name in enumerate(ENGINES)},
            "dma": self.dma_busy,
            "hbm": float(self.costs.hbm.sum()),
        }

    @cached_property
    def bound(self) -> str:
        """The resource occupied longest, or "synchronisation" if that is far from all the time."""
        name, time = max(self.occupied.items(), key=lambda item: item[1])
        return name if time >= SYNCHRONISATION_SHARE * self.makespan else "synchronisation"


def timeline(
    stream: InstructionStream, core: Core | None = None, schedule: bool = False
) -> Timeline:
    """Play a stream on its own core, or on `core` (a what-if; the program stays as it is).

    Args:
        schedule: put its instructions into the order that ends first before, as the compiler of a
            real kernel does: so hand-written kernels are compared with measured ones.
    """
    core = core or stream.core
    if schedule:
        stream = rescheduled(stream)
    return play(stream, core, costs(stream, core))


def play(stream: InstructionStream, core: Core, cost: InstructionCosts) -> Timeline:
    """Play a stream whose costs are known."""
    n = len(stream)
    machine = _Machine(
        np.zeros(QUEUES), np.zeros(QUEUES), np.zeros(core.dma_engines), np.zeros(1, dtype=np.int64),
        np.zeros(2), np.zeros(2), np.zeros(n), np.zeros(n), np.zeros(QUEUES),
    )  # fmt: skip
    _run(n, core.dma_engines, float(core.semaphore_ns), stream.issue, cost, machine)
    return Timeline(stream, core, machine.start, machine.end, machine.busy, cost)
