"""One replica that serves a queue: what all policies share.

Invariants: time only goes on; every request is admitted in order of arrival; a request holds blocks
of the cache from its admission to its last token, or until it is sent away.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal, get_args

from tilesmith.capabilities.planning.batching.running import CacheBlocks, Running
from tilesmith.capabilities.planning.batching.served import Journal, Served
from tilesmith.capabilities.planning.batching.stages import StageTimes
from tilesmith.capabilities.planning.batching.step_times import DeploymentTimes
from tilesmith.capabilities.planning.batching.traffic import Traffic
from tilesmith.search_space.support.errors import InputError

Policy = Literal["prefill_first", "chunked", "static"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

_WATERMARK = 0.01
"""The share of blocks kept free at admission; vLLM's default."""


@dataclass(frozen=True, eq=False)
class Engine:
    """One replica: its steps' times, what it holds, how it schedules.

    Attributes:
        times: seconds of its steps.
        cache_tokens: tokens of all sequences that its cache holds.
        batch: most sequences at once.
        policy: who works when.
        budget: most tokens of prompts in a step; for `chunked`, of prompts and decoding together.
        block: tokens of a block of the cache.
        stages: seconds of the stages of a pipeline, where it is one.
    """

    times: DeploymentTimes
    cache_tokens: int
    batch: int
    policy: Policy = "prefill_first"
    budget: int = 2048
    block: int = 16
    stages: StageTimes | None = None

    def __post_init__(self) -> None:
        if self.policy == "chunked" and self.budget <= self.batch:
            raise InputError(
                f"a budget of {self.budget} tokens a step leaves nothing for prompts beside "
                f"{self.batch} sequences that decode; give more tokens than sequences"
            )


class Replica:
    """The state that all policies share."""

    def __init__(self, engine: Engine, traffic: Traffic) -> None:
        self.engine, self.times, self.traffic = engine, engine.times, traffic
        self.arrivals: list[float] = traffic.arrivals.tolist()
        self.inputs: list[int] = traffic.inputs.tolist()
        self.outputs: list[int] = traffic.outputs.tolist()
        self.running = Running(CacheBlocks(engine.cache_tokens // engine.block), engine.block)
        self.watermark = math.ceil(_WATERMARK * self.running.held.total)
        self.waiting: deque[int] = deque()
        self.emitted = [0] * len(traffic)
        self.arrived = 0
        self.clock = 0.0
        self.journal = Journal(len(traffic))

    def serve(self) -> Served:
        while self.step():
            self.journal.sample(self.clock, *self.occupancy())
        return self.journal.served(self.traffic, self.running.held.total)

    def occupancy(self) -> tuple[int, int, int]:
        """Sequences that decode, requests that wait, blocks that are held."""
        return len(self.running), len(self.waiting), self.running.held.used

    def step(self) -> bool:
        """Do what comes next; false when all is done."""
        raise NotImplementedError

    def arrive(self) -> None:
        """Those who are there by now wait."""
        while self.arrived < len(self.arrivals) and self.arrivals[self.arrived] <= self.clock:
            self.waiting.append(self.arrived)
            self.arrived += 1

    def idle(self) -> bool:
        """Nobody is there: wait for the next request; false when there is none."""
        if self.arrived == len(self.arrivals):
            return False
        self.clock = self.arrivals[self.arrived]
        return True

    def prompt(self, request: int) -> int:
        """Tokens to work on before a request's next token."""
        return self.inputs[request] + self.emitted[request]

    def admits(self, request: int, others: int) -> bool:
        """Whether there is a place and cache for a request beside `others`."""
        if others >= self.engine.batch:
            return False
        kept = self.watermark if others else 0
        return self.running.blocks_of(self.prompt(request)) + kept <= self.running.held.free

    def start(self, request: int) -> None:
        """A prompt is done: its next token is there, and it decodes on or ends."""
        tokens = self.prompt(request)
        self.emitted[request] += 1
        self.journal.first(request, self.clock)
        remaining = self.outputs[request] - self.emitted[request]
        if remaining:
            self.group().join(request, tokens, remaining)
        else:
            self.running.release(tokens)
            self.journal.last(request, self.clock)

    def group(self) -> Running:
        """Those whom the next sequence joins."""
        return self.running

    def decode(self) -> None:
        """Run the decoding steps until the next event."""
        while not (steps := self.running.lasting(self.running.until_end)):
            self.preempt()
        within = math.inf
        if (
            not self.waiting
            and len(self.running) < self.engine.batch
            and self.arrived < len(self.arrivals)
        ):
            within = self.arrivals[self.arrived] - self.clock
        count, context = len(self.running), self.running.context
        first = self.times.decode(count, context)
        steps, seconds = self.times.decode_run(count, context, steps, within)
        self.journal.decoded(count, steps, first, seconds)
        self.advance(steps, seconds)

    def advance(self, steps: int, seconds: float) -> None:
        """Time goes on; who has its last token leaves."""
        self.clock += seconds
        self.journal.held(self.running.advance(steps), seconds)
        for request in self.running.ended():
            self.journal.last(request, self.clock)

    def preempt(self) -> None:
        """Send away who came last, to begin again at the head of the queue."""
        request, remaining = self.running.preempt()
        self.emitted[request] = self.outputs[request] - remaining
        self.waiting.appendleft(request)
        self.journal.preempted(request)
