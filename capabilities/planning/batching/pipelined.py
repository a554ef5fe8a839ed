"""Continuous batching on a pipeline: as many steps are under way as there are stages.

Sequences that decode are dealt to *lanes*, one a stage, each of which has one step under way at a
time, so that all stages have work (the virtual engines of vLLM). Prompts enter as soon as the
first stage is free and fewer steps than stages are under way:

- `prefill_first`: whole prompts, before anybody decodes on;
- `chunked`: pieces of prompts, in the steps of lanes and, where none is ready, in steps of their
  own. A piece follows the one before from stage to stage, for its keys and values are there by then
  (vLLM's scheduler counts tokens as worked on when they are scheduled; Qin et al. 2024, Mooncake,
  call it chunked pipeline parallelism).

Where lanes do nothing but decode, rounds of all lanes follow each other at a constant distance (a
linear system over (max, +)): the busiest stage's time for all lanes, or the longest way of one.
Such rounds are taken at once, and all that is under way moves on with them.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

from tilesmith.capabilities.planning.batching.replica import Engine, Replica
from tilesmith.capabilities.planning.batching.running import CacheBlocks, Running
from tilesmith.capabilities.planning.batching.stages import StageAvailability
from tilesmith.capabilities.planning.batching.traffic import Traffic

Piece = tuple[int, int, int]
"""A request, the tokens of its prompt that are done, and those worked on."""


@dataclass(eq=False)
class _Lane:
    """Sequences that decode together.

    Attributes:
        last: when the sequences that were there got their last token; `joined` since then.
        count: how many take part in the step under way; 0: none is. `first_time`: when those got
            their first token for which it is the first step.
    """

    running: Running
    last: float = 0.0
    joined: list[float] = field(default_factory=list)
    count: int = 0
    first_time: list[float] = field(default_factory=list)

    def begin(self) -> None:
        """A step gives all sequences a token."""
        self.count, self.first_time, self.joined = len(self.running), self.joined, []
        self.running.advance(1)


@dataclass(order=True)
class _Step:
    """A step under way, which leaves the last stage before it ends: the host's part is behind."""

    end: float
    number: int
    leaves: float = field(compare=False)
    lane: _Lane | None = field(compare=False)
    pieces: list[Piece] = field(compare=False)


class Pipelined(Replica):
    """See the module's docstring."""

    def __init__(self, engine: Engine, traffic: Traffic) -> None:
        super().__init__(engine, traffic)
        assert engine.stages is not None, "of a pipeline"
        self.stages = engine.stages
        self.line = StageAvailability(len(self.stages))
        self.blocks: CacheBlocks = self.running.held
        self.lanes = [_Lane(Running(self.blocks, engine.block)) for _ in range(len(self.stages))]
        self.filling: deque[tuple[int, int]] = deque()
        self.under_way: list[_Step] = []
        self.begun = self.calm = 0

    @property
    def sequences(self) -> int:
        """The sequences that decode."""
        return sum(len(lane.running) for lane in self.lanes)

    @property
    def prompts(self) -> int:
        """The requests whose prompts are not finished."""
        return len(self.filling) + sum(
            done + tokens == self.prompt(request)
            for step in self.under_way
            for request, done, tokens in step.pieces
        )

    def occupancy(self) -> tuple[int, int, int]:
        return self.sequences, len(self.waiting), self.blocks.used

    # -- what happens next ----------------------------------------------------------------------
    def step(self) -> bool:
        self.finish()
        self.arrive()
        leaving = [step.leaves for step in self.under_way if step.leaves > self.clock]
        free = len(leaving) < len(self.stages)
        if free and self.line.entrance <= self.clock and (self.runs() or self.enter()):
            return True
        times = [step.end for step in self.under_way[:1]] + ([] if free else [min(leaving)])
        if free and self.line.entrance > self.clock:
            times.append(self.line.entrance)
        if self.arrived < len(self.arrivals) and not self.waiting:
            times.append(self.arrivals[self.arrived])
        if not times:
            return False
        self.pass_time(min(times))
        return True

    def pass_time(self, until: float) -> None:
        if self.under_way:
            self.journal.held(self.blocks.used, until - self.clock)
        self.clock = until

    def finish(self) -> None:
        """Steps that have left the last stage give their tokens."""
        while self.under_way and self.under_way[0].end <= self.clock:
            step = heapq.heappop(self.under_way)
            if step.lane is not None:
                self.note_tokens(step.lane, step.end)
            for request, done, tokens in step.pieces:
                if done + tokens == self.prompt(request):
                    self.join(request)

    def note_tokens(self, lane: _Lane, end: float) -> None:
        """Note that each sequence of a lane got a token."""
        self.journal.gap(end - lane.last, lane.count - len(lane.first_time))
        for since in lane.first_time:
            self.journal.gap(end - since, 1)
        lane.last, lane.count = end, 0
        for request in lane.running.ended():
            self.journal.last(request, end)

    # -- steps ----------------------------------------------------------------------------------
    def enter(self) -> bool:
        """Begin a step, if there is anything to do."""
        self.admit()
        whole = self.engine.policy != "chunked"
        pieces = self.pieces(self.engine.budget) if whole else []
        lane = None if pieces else self.ready()
        count = len(lane.running) if lane is not None else 0
        if not whole:
            pieces = self.pieces(self.engine.budget - count)
        if lane is None and not pieces:
            return False
        self.begin(lane, pieces)
        return True

    def begin(self, lane: _Lane | None, pieces: list[Piece]) -> None:
        """A step goes into the first stage."""
        seconds, host = self.seconds(lane, pieces)
        leaves = self.line.enter(self.clock, seconds)
        if lane is not None:
            lane.begin()
        self.begun += 1
        self.calm = 0 if pieces else self.calm + 1
        heapq.heappush(self.under_way, _Step(leaves + host, self.begun, leaves, lane, pieces))
        self.journal.held(self.blocks.used, 0.0)

    def seconds(self, lane: _Lane | None, pieces: list[Piece]) -> tuple[list[float], float]:
        """Seconds that a step takes in each stage, and on the host."""
        decoding = (0, 0.0) if lane is None else (len(lane.running), lane.running.context)
        if not pieces:
            return self.stages.decode(*decoding), self.stages.host
        tokens = -(-sum(new for _, _, new in pieces) // len(pieces))
        prompts = len(pieces), tokens, sum(done for _, done, _ in pieces) // len(pieces)
        host = self.stages.host + self.stages.host_prompt
        if lane is None:
            return self.stages.prefill(*prompts), host
        return self.stages.mixed(decoding, prompts), host

    def admit(self) -> None:
        """Admit the requests at the head of the queue that there is room for."""
        while self.waiting and self.admits(self.waiting[0], self.sequences + self.prompts):
            request = self.waiting.popleft()
            self.running.reserve(self.prompt(request))
            self.fill(request)

    def fill(self, request: int) -> None:
        """Work on a prompt as soon as there is a step for it."""
        self.filling.append((request, 0))

    def pieces(self, budget: int) -> list[Piece]:
        """Parts of prompts for one step; whole ones, at least one, unless they go in pieces."""
        pieces: list[Piece] = []
        whole = self.engine.policy != "chunked"
        while self.filling and budget > 0:
            request, done = self.filling[0]
            left = self.prompt(request) - done
            if whole and pieces and left > budget:
                break
            tokens = left if whole else min(left, budget)
            pieces.append((request, done, tokens))
            budget -= tokens
            self.filling.popleft()
            if tokens < left:
                self.filling.appendleft((request, done + tokens))
        return pieces

    def ready(self) -> _Lane | None:
        """The lane that has waited longest, with room for its next tokens; or none."""
        waiting = [lane for lane in self.lanes if len(lane.running) and not lane.count]
        for lane in sorted(waiting, key=lambda one: one.last):
            while len(lane.running) and not lane.running.lasting(1):
                if not self.give_way(lane):
                    break
            if len(lane.running) and lane.running.lasting(1):
                return lane
        return None

    def give_way(self, lane: _Lane) -> bool:
        """Free blocks: prompts that came last go first; false: wait for what is under way."""
        if self.filling and not self.filling[-1][1]:
            request, _ = self.filling.pop()
            self.running.release(self.prompt(request))
        elif len(self.under_way) and len(lane.running) == 1:
            return False
        else:
            request, remaining = lane.running.preempt()
            self.emitted[request] = self.outputs[request] - remaining
            del lane.joined[-1:]
        self.waiting.appendleft(request)
        self.journal.preempted(request)
        return True

    def group(self) -> Running:
        """Of the lane with the fewest sequences; a lane under way takes new ones in next time."""
        return self.least().running

    def least(self) -> _Lane:
        return min(self.lanes, key=lambda lane: len(lane.running))

    def join(self, request: int) -> None:
        """A prompt is done; see `start`."""
        lane = self.least()
        before = len(lane.running)
        self.start(request)
        if len(lane.running) > before:
            lane.joined.append(self.clock)

    # -- many rounds at once --------------------------------------------------------------------
    def runs(self) -> bool:
        """Take rounds in which all lanes decode, and nothing else happens, at once."""
        lanes = [lane for lane in self.lanes if len(lane.running)]
        if not lanes or self.filling or self.calm < 2 * len(lanes):
            return False
        if self.waiting and self.admits(self.waiting[0], self.sequences + self.prompts):
            return False
        if any(lane.joined for lane in lanes) or any(step.pieces for step in self.under_way):
            return False
        rounds = min(self.rounds_of(lane, len(lanes)) for lane in lanes)
        first, last = self.round_s(lanes, 0), self.round_s(lanes, max(0, rounds - 1))
        if self.arrived < len(self.arrivals) and not self.waiting:
            within = self.arrivals[self.arrived] - self.clock
            rounds = min(rounds, math.floor(within / max(first, last)))
            last = self.round_s(lanes, max(0, rounds - 1))
        if rounds < 2:
            return False
        seconds = rounds * (first + last) / 2
        for lane in lanes:
            self.journal.gap(seconds / rounds, len(lane.running) * rounds)
            lane.running.advance(rounds)
            lane.last += seconds
            lane.first_time = [since + seconds for since in lane.first_time]
        self.line.shift(seconds)
        for step in self.under_way:
            step.end, step.leaves = step.end + seconds, step.leaves + seconds
        self.pass_time(self.clock + seconds)
        return True

    def rounds_of(self, lane: _Lane, lanes: int) -> int:
        """Rounds in which a lane does not change: none ends, and its share of the blocks lasts."""
        running = lane.running
        most = running.until_end - (0 if lane.count else 1)
        knot = self.stages.knot(running.context)
        return running.lasting(max(0, min(most, knot)), self.blocks.free // lanes)

    def round_s(self, lanes: list[_Lane], ahead: int) -> float:
        """Seconds from a round to the next, so many rounds ahead."""
        steps = [
            self.stages.decode(len(lane.running), lane.running.context + ahead) for lane in lanes
        ]
        busiest = max(map(sum, zip(*steps, strict=True)))
        return max(busiest, max(map(sum, steps)) + self.stages.host)
