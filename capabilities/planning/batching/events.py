"""Continuous batching by discrete events: requests arrive, wait, are admitted, decode, leave.

One replica of a model serves one queue. Time moves in steps, as engines do: a step works on
prompts, gives every running sequence a token, or both. Steps of pure decoding between two events
(an arrival that may be admitted, an end, a full cache) are taken as one run, so the cost is a few
microseconds a request, however long the answers are.

What engines do, and is done here (vLLM's first scheduler and Sarathi's, Kwon et al. 2023, Agrawal
et al. 2024):

- the cache is paged: a sequence holds whole blocks for the tokens it has in the cache;
- the end of a prompt gives the first token; every further step writes the token before into the
  cache;
- a request is admitted, in order of arrival, if there is a place and blocks for its prompt, and
  one block in a hundred stays free for those that run;
- when a step needs more blocks than are free, who came last is sent away and waits at the head of
  the queue; its prompt and the tokens it had are worked on again (recomputation).

Policies: `prefill_first` stops decoding whenever a request can be admitted; `chunked` puts pieces
of prompts into steps of decoding, up to a budget of tokens a step; `static` starts a batch when
the one before is over, and keeps its size until the longest answer ends. Of a pipeline the first
two have steps in all stages at once (`pipelined.py`).
"""

import math
from collections import deque
from collections.abc import Sequence

from tilesmith.capabilities.planning.batching.pipelined import Pipelined
from tilesmith.capabilities.planning.batching.replica import POLICIES, Engine, Policy, Replica
from tilesmith.capabilities.planning.batching.served import Served
from tilesmith.capabilities.planning.batching.traffic import Traffic
from tilesmith.search_space.support.errors import InputError

__all__ = ["POLICIES", "Engine", "Policy", "serve", "simulate"]


def simulate(engine: Engine, traffic: Traffic, kind: type[Replica] | None = None) -> Served:
    """Serve all requests.

    Args:
        kind: how, if not as the engine's policy says.

    Raises:
        InputError: a request is longer than the cache.
    """
    longest = int((traffic.inputs + traffic.outputs - 1).max())
    blocks = engine.cache_tokens // engine.block
    if -(-longest // engine.block) > blocks:
        raise InputError(
            f"a request of {longest + 1} tokens needs more than the cache of "
            f"{blocks * engine.block} tokens that is left beside the weights; use more cores for a "
            "replica, narrower numbers for weights or cache, or shorter requests"
        )
    return (kind or kind_of(engine))(engine, traffic).serve()


def kind_of(engine: Engine) -> type[Replica]:
    """How an engine serves: stages of a pipeline have work of their own, but for whole batches."""
    if engine.stages is not None and engine.policy != "static":
        return Pipelined
    return _KINDS[engine.policy]


class PrefillFirst(Replica):
    """Whole prompts, as soon as they can be admitted."""

    def step(self) -> bool:
        self.arrive()
        if self.waiting and (admitted := self.admitted()):
            self.prefill(admitted)
        elif len(self.running):
            self.decode()
        else:
            return self.idle()
        return True

    def admitted(self) -> list[int]:
        """Requests at the head of the queue that fit into the budget of tokens; at least one."""
        admitted: list[int] = []
        tokens = 0
        while self.waiting and self.admits(self.waiting[0], len(self.running) + len(admitted)):
            tokens += self.prompt(self.waiting[0])
            if admitted and tokens > self.engine.budget:
                break
            admitted.append(self.waiting.popleft())
            self.running.reserve(self.prompt(admitted[-1]))
        return admitted

    def prefill(self, requests: list[int]) -> None:
        """Work on whole prompts in one step."""
        seconds = self.prompts_s(requests)
        self.clock += seconds
        self.journal.paused(len(self.running), seconds)
        self.journal.held(self.running.held.used, seconds)
        for request in requests:
            self.start(request)

    def prompts_s(self, requests: list[int]) -> float:
        """Seconds of a step over whole prompts."""
        if not requests:
            return 0.0
        tokens = sum(map(self.prompt, requests))
        return self.times.prefill(len(requests), -(-tokens // len(requests)), 0)


class _Static(PrefillFirst):
    """A batch at a time; places stay taken until all of it is done."""

    def step(self) -> bool:
        self.arrive()
        if not self.waiting:
            return self.idle()
        batch: list[int] = []
        while self.waiting and self.admits_whole(self.waiting[0], len(batch)):
            batch.append(self.waiting.popleft())
            self.running.reserve(self.whole(batch[-1]))
        seconds = self.prompts_s(batch)
        self.clock += seconds
        self.journal.held(self.running.held.used, seconds)
        context = sum(map(self.prompt, batch)) / len(batch)
        for request in batch:
            self.journal.first(request, self.clock)
        self.answers(batch, context)
        for request in batch:
            self.running.release(self.whole(request))
        return True

    def answers(self, batch: list[int], context: float) -> None:
        """Decode until the longest answer ends; every step is a step of the whole batch."""
        done = 1
        for request in sorted(batch, key=lambda number: self.outputs[number]):
            while done < self.outputs[request]:
                first = self.times.decode(len(batch), context)
                steps, seconds = self.times.decode_run(
                    len(batch), context, self.outputs[request] - done, math.inf
                )
                self.journal.decoded(len(batch), steps, first, seconds)
                self.journal.held(self.running.held.used, seconds)
                self.clock, done, context = self.clock + seconds, done + steps, context + steps
            self.journal.last(request, self.clock)

    def whole(self, request: int) -> int:
        """The number of tokens that the cache holds when the request ends."""
        return self.inputs[request] + self.outputs[request] - 1

    def admits_whole(self, request: int, others: int) -> bool:
        fits = self.running.blocks_of(self.whole(request)) <= self.running.held.free
        return others < self.engine.batch and fits


class _Chunked(Replica):
    """Steps of decoding carry pieces of prompts."""

    def __init__(self, engine: Engine, traffic: Traffic) -> None:
        super().__init__(engine, traffic)
        self.filling: deque[tuple[int, int]] = deque()
        """Requests in the order of admission, and how many tokens of the prompt are done."""

    def step(self) -> bool:
        self.arrive()
        while self.waiting and self.admits(self.waiting[0], len(self.running) + len(self.filling)):
            request = self.waiting.popleft()
            self.running.reserve(self.prompt(request))
            self.filling.append((request, 0))
        if self.filling:
            self.mixed()
        elif len(self.running):
            self.decode()
        else:
            return self.idle()
        return True

    def mixed(self) -> None:
        """Give each running request a token, and spend the rest of the budget on prompts."""
        while len(self.running) and not self.running.lasting(1):
            self.give_way()
        count = len(self.running)
        chunks, budget = [], self.engine.budget - count
        for request, done in self.filling:
            chunks.append((request, done, min(budget, self.prompt(request) - done)))
            budget -= chunks[-1][2]
            if not budget:
                break
        seconds = self.seconds(count, chunks)
        if count:
            self.journal.decoded(count, 1, seconds, seconds)
            self.advance(1, seconds)
        else:
            self.clock += seconds
            self.journal.held(self.running.held.used, seconds)
        for request, done, tokens in chunks:
            self.filling.popleft()
            if done + tokens == self.prompt(request):
                self.start(request)
            else:
                self.filling.appendleft((request, done + tokens))

    def seconds(self, count: int, chunks: list[tuple[int, int, int]]) -> float:
        """How long a step of `count` decoding sequences and these pieces takes."""
        decoding = self.times.decode(count, self.running.context) if count else 0.0
        if not chunks:
            return decoding
        tokens = -(-sum(new for _, _, new in chunks) // len(chunks))
        before = sum(done for _, done, _ in chunks) // len(chunks)
        prefilling = self.times.prefill(len(chunks), tokens, before)
        return self.times.mixed(decoding, prefilling) if count else prefilling

    def give_way(self) -> None:
        """Free blocks for the running requests; the prompts that came last give theirs up first."""
        if not self.filling:
            self.preempt()
            return
        request, _ = self.filling.pop()
        self.running.release(self.prompt(request))
        self.waiting.appendleft(request)
        self.journal.preempted(request)


_KINDS: dict[Policy, type[Replica]] = {
    "prefill_first": PrefillFirst,
    "chunked": _Chunked,
    "static": _Static,
}


def serve(engine: Engine, shares: Sequence[Traffic]) -> Served:
    """Serve with several replicas, each its share of the requests."""
    served = [simulate(engine, share) for share in shares]
    return Served.together(served) if len(served) > 1 else served[0]
