"""Chains of a program placed in space and time: a list scheduler.

Chains are taken one by one, of those whose predecessors are placed the one with the longest way to
the end; each is given units, slices, streams and the earliest start at which no law is broken. What
a chain needs of MXM's planes is appended to them; all else may go into gaps.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from tilesmith.families.lpu.codegen import dataflow
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.isa.bursts import BURST, BurstSchedule, Table, TensorPlace
from tilesmith.families.lpu.codegen.scheduling.copies import ClashError, with_copy
from tilesmith.families.lpu.codegen.scheduling.emission import BurstEmitter, region
from tilesmith.families.lpu.codegen.scheduling.planes import ProgramPlanes
from tilesmith.families.lpu.codegen.scheduling.readiness import earliest
from tilesmith.families.lpu.codegen.scheduling.requests import (
    ChainRequest,
    chain_request,
)
from tilesmith.families.lpu.codegen.scheduling.residents import check_room, place_constants
from tilesmith.families.lpu.codegen.scheduling.resources.board import Board
from tilesmith.families.lpu.codegen.scheduling.resources.dependences import (
    heights,
    predecessors,
    progress,
    touched,
)
from tilesmith.families.lpu.codegen.scheduling.rewriting.normal_form import normalised, zeros_of
from tilesmith.families.lpu.codegen.scheduling.rigid import (
    Choice,
    Rigid,
    UnfitError,
    interval_of,
    rigid,
)
from tilesmith.families.lpu.codegen.scheduling.settling import commit, probe, settle
from tilesmith.families.lpu.codegen.scheduling.units import choices
from tilesmith.search_space.support.errors import CodegenError, NoRoomError

Order = Literal["critical", "program"]


@dataclass(frozen=True)
class SchedulerOptions:
    """How the scheduler goes about it.

    Attributes:
        order: by the longest way to the end, or as given.
        window: chains looked at for one that may start at once.
        ranks: of every chain, the smallest first, in place of `order`.
        units: of chains, by number, if they are not to be searched for.
        constants_first: place constants before all else, however little of MEM they take.
    """

    order: Order = "critical"
    window: int = 8
    ranks: tuple[int, ...] = ()
    units: Mapping[int, Choice] = field(default_factory=dict)
    constants_first: bool = False


Entry = tuple[tuple[int, float], int]
"""A chain that may be placed: what it is ordered by, and its number."""

SLACK = 64
"""Cycles that a plane may idle before another chain is looked for."""


Plan = tuple[dict[tuple[str, int, bool | None], tuple[bool, ...]], Rigid, ChainRequest]
"""A chain's times and its request, with the sides of tensors that they rest on."""


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A chain with its units.

    Attributes:
        start: about when it may start.
        idle: cycles that its planes are free before.
    """

    number: int
    types: dict[dataflow.ChainValue, str]
    plan: Rigid
    request: ChainRequest
    start: int
    idle: int


def schedule(
    flow: dataflow.Dataflow, chip: Chip, options: SchedulerOptions = SchedulerOptions()
) -> BurstSchedule:
    """Place a program on a chip.

    By the longest way, tiles of a product grow side by side; what does not fit MEM that way is
    tried once more with constants placed first, and as given, one tile after the other.

    Raises:
        CodegenError: a chain fits no unit, tensors do not fit into MEM.
    """
    return ordered(flow, chip, options)[0]


def ordered(
    flow: dataflow.Dataflow, chip: Chip, options: SchedulerOptions
) -> tuple[BurstSchedule, SchedulerOptions]:
    """A schedule, and the options by which a program that is alike (`likeness`) has the same one
    without a search.

    Raises:
        CodegenError: as `schedule`.
    """
    check_room(flow, chip)
    try:
        scheduler = _Scheduler(flow, chip, options)
        schedule = scheduler.run()
    except UnfitError:
        raise
    except CodegenError as error:
        if options.ranks:
            raise
        if isinstance(error, NoRoomError) and not options.constants_first:
            return ordered(flow, chip, replace(options, constants_first=True))
        if options.order == "program":
            raise
        return ordered(flow, chip, replace(options, order="program"))
    turns = {number: turn for turn, number in enumerate(scheduler.chosen)}
    ranks = tuple(turns[number] for number in range(len(flow.chains)))
    return schedule, replace(options, window=1, ranks=ranks, units=scheduler.chosen)


class _Scheduler:
    def __init__(self, flow: dataflow.Dataflow, chip: Chip, options: SchedulerOptions) -> None:
        chains = tuple(normalised(c, dataflow.types_of(c, flow.tensors)) for c in flow.chains)
        self.flow = dataflow.Dataflow(flow.name, {**flow.tensors, **zeros_of(chains)}, chains)
        self.chains, self.order = list(chains), list(range(len(chains)))
        self.chip, self.options = chip, options
        self.board = Board.of(self.flow, chip)
        place_constants(self.board, always=options.constants_first)
        self.emitter = BurstEmitter(self.board)
        self.planes = ProgramPlanes(self.board, self.emitter)
        self.users = dict.fromkeys(self.flow.tensors, 0)
        self.counted: dict[int, set[str]] = {}
        self.sent: dict[tuple[str, int], int] = {}
        self.types: dict[int, dict[dataflow.ChainValue, str]] = {}
        self.chosen: dict[int, Choice] = {}
        self.plans: dict[int, dict[tuple[int, ...], Plan]] = {}
        for chain in chains:
            for name in touched(chain):
                self.users[name] += 1

    def run(self) -> BurstSchedule:
        chains = self.flow.chains
        before = predecessors(self.flow)
        durations = [
            chain.count * interval_of(chain, dataflow.types_of(chain, self.flow.tensors), self.chip)
            for chain in chains
        ]
        height = heights(self.flow, before, durations)
        after: list[list[int]] = [[] for _ in chains]
        for number, earlier in enumerate(before):
            for other in earlier:
                after[other].append(number)
        missing = [len(earlier) for earlier in before]
        keys = [(-way, progress(c, self.flow)) for way, c in zip(height, chains, strict=True)]
        if self.options.ranks:
            keys = [(rank, 0.0) for rank in self.options.ranks]
        elif self.options.order == "program":
            keys = [(0, 0.0)] * len(keys)
        waiting = [(keys[n], n) for n, m in enumerate(missing) if not m]
        heapq.heapify(waiting)
        while waiting:
            chosen = self.next(waiting)
            self.chosen[chosen.number] = chosen.plan.choice
            self.place(chosen)
            for other in after[chosen.number]:
                missing[other] -= 1
                if not missing[other]:
                    heapq.heappush(waiting, (keys[other], other))
        return self.finished()

    def next(self, waiting: list[Entry]) -> _Candidate:
        """Of the foremost chains the first that starts as soon as its planes are free; if none
        does, the one that starts first."""
        seen: list[Entry] = []
        best: _Candidate | None = None
        while waiting and len(seen) < self.options.window:
            entry = heapq.heappop(waiting)
            seen.append(entry)
            candidate = self.candidate(entry[1], self.options.units.get(entry[1]))
            slack = min(SLACK, candidate.plan.span // 4)
            if best is None or candidate.idle <= slack or candidate.start < best.start - slack:
                best = candidate
            if candidate.idle <= slack:
                break
        assert best is not None, "somebody waits"
        for entry in seen:
            if entry[1] != best.number:
                heapq.heappush(waiting, entry)
        return best

    def place(self, candidate: _Candidate) -> None:
        """Give one chain its place."""
        chain, emitter = self.chains[candidate.number], self.emitter
        emitter.chain = candidate.number
        types, plan, request = candidate.types, candidate.plan, candidate.request
        start = earliest(self.board, request)
        for step_number, step in enumerate(chain.steps):
            if isinstance(step, dataflow.Product):
                held = self.flow.tensors[step.weights.tensor].dtype
                ready = self.planes.install(plan, step_number, step, held)
                start = max(start, ready - (plan.times[step_number] or 0))
        try:
            settled = settle(self.board, request, start)
        except ClashError as clash:
            self.copied(candidate.number, clash)
            return
        commit(self.board, request, settled)
        emitter.emit(plan, request, settled)
        self.plans.pop(candidate.number, None)
        for step_number, step in enumerate(chain.steps):
            if isinstance(step, dataflow.Send):
                self.sent[chain.name, step.link] = settled.start + (plan.times[step_number] or 0)
            if isinstance(step, dataflow.Product):
                end = settled.start + (plan.times[step_number] or 0) + plan.span
                for plane in self.planes.of(plan.choice.planes[step_number], types[step.moving]):
                    plane.free = end
        for name in self.counted.pop(candidate.number, ()) or touched(chain):
            self.users[name] -= 1
            if not self.users[name]:
                self.release(name)

    def copied(self, number: int, clash: ClashError) -> None:
        """Place a chain that reads a copy of what it cannot read where it lies."""
        before, turn = self.chains[number], len(self.chains)
        copying, reading, name = with_copy(self.board, before, clash, turn)
        self.flow.tensors[name] = self.board.layouts[name].tensor
        self.users[name] = 2
        types = dataflow.types_of(copying, self.flow.tensors)
        self.chains.append(normalised(copying, types))
        self.order.insert(self.order.index(number) + clash.written, turn)
        self.users[clash.tensor] += 1
        counted = self.counted.get(number) or touched(before)
        self.counted[number] = counted | {name}
        self.chains[number] = reading
        self.plans.pop(number, None)
        self.types.pop(number, None)
        for each in (number, turn) if clash.written else (turn, number):
            self.place(self.candidate(each, known=None))

    def candidate(self, number: int, known: Choice | None) -> _Candidate:
        """A chain with the choice of units under which it may be done first, or that is known."""
        chain, types = self.chains[number], self.typed(number)
        best: tuple[int, _Candidate] | None = None
        reason: UnfitError | None = None
        for choice in [known] if known else choices(chain, types, self.planes.when(chain, types)):
            try:
                plan, request = self.planned(number, choice)
            except UnfitError as error:
                reason = error
                continue
            request.floor = max(chain.not_before, self.comes(plan, request))
            free = self.planes.free(plan, types)
            start = max(*free, earliest(self.board, request), 0 if known else request.probed)
            reach = sum(abs(flow.cell(0) - flow.tau) for flow in plan.flows)
            if best is not None and start + reach >= best[0]:
                continue  # nor does it when it is probed, which makes it later
            if not known:
                start = request.probed = probe(self.board, request, start)
            if best is None or start + reach < best[0]:
                idle = start - min(free) if plan.choice.planes else 0
                best = start + reach, _Candidate(number, types, plan, request, start, idle)
        if best is None:
            raise reason or UnfitError(
                f"chain '{chain.name}' has more products than there are planes"
            )
        return best[1]

    def typed(self, number: int) -> dict[dataflow.ChainValue, str]:
        """Types of what flows in a chain."""
        if number not in self.types:
            self.types[number] = dataflow.types_of(self.chains[number], self.flow.tensors)
        return self.types[number]

    def planned(self, number: int, choice: Choice) -> tuple[Rigid, ChainRequest]:
        """A chain's times and what it asks for, kept from one look at it to the next: as long as
        tensors are on the sides that they were found on."""
        key, side = (choice.east, *choice.planes.values()), self.board.side
        known = self.plans.get(number, {}).get(key)
        if known and all(side(*which) == answer for which, answer in known[0].items()):
            return known[1:]
        answers: dict[tuple[str, int, bool | None], tuple[bool, ...]] = {}

        def noted(tensor: str, row: int, wanted: bool | None) -> tuple[bool, ...]:
            answers[tensor, row, wanted] = side(tensor, row, wanted)
            return answers[tensor, row, wanted]

        plan = rigid(self.chains[number], self.typed(number), self.chip, choice, noted)
        request = chain_request(self.board, plan)
        self.plans.setdefault(number, {})[key] = answers, plan, request
        return plan, request

    def comes(self, plan: Rigid, request: ChainRequest) -> int:
        """The floor by which nothing is received before its like has been sent and flown."""
        starts = [
            self.sent[step.sender, step.sent_on] + step.flight - (plan.times[number] or 0)
            for number, step in enumerate(plan.chain.steps)
            if isinstance(step, dataflow.Receive) and step.sender
        ]
        return max(starts) + request.first if starts else 0

    def release(self, name: str) -> None:
        """Words of a temporary that no chain will touch any more."""
        tensor = self.flow.tensors[name]
        if tensor.role != "temporary" or tensor.zeros or name not in self.board.ready:
            return
        until = max(int(self.board.ready[name].max()), int(self.board.read_until[name].max()))
        for key in [key for key in self.board.homes if key[0] == name]:
            for homes in self.board.homes.pop(key):
                words = [words for stripe in homes for words in stripe]
                self.board.homes_held[key[2]] -= len(words)
                self.board.memory.give(words, until + 1, self.board.layouts[name].outer)

    def finished(self) -> BurstSchedule:
        """The program as placed."""
        flow, board = self.flow, self.board
        table = np.array(self.emitter.rows, BURST).view(Table)
        number = {name: n for n, name in enumerate(flow.tensors)}
        named = np.array([*map(number.__getitem__, self.emitter.tensors), -1])
        table["tensor"] = named[table["tensor"]]
        regions = tuple(
            region(board, name, block, homes)
            for (name, block, _), several in sorted(board.homes.items(), key=lambda item: item[0])
            for homes in several
        )
        places = tuple(
            TensorPlace(t.name, t.rows, t.dtype, t.role, t.parts) for t in flow.tensors.values()
        )
        return BurstSchedule(
            flow.name, self.chip, table, tuple(self.emitter.units), places, regions,
            tuple(chain.name for chain in self.chains), tuple(np.argsort(self.order).tolist()),
        )  # fmt: skip
