"""The fewest chips that serve a demand within bounds, and how they are used.

A candidate is one way to build a replica. What a request costs it at best says how many replicas
the demand needs at least; its saturated throughput, simulated, says it better. From there on
replicas are added until the simulated times keep the bounds, by galloping and bisection (more
replicas never make times longer, but for noise). Candidates are looked at in the order of the chips
they need at least, and left when that is no fewer than what is known to do; how many sequences may
run at once, and the policy, are tried for each.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilesmith.capabilities.planning.batching.events import Engine, serve, simulate
from tilesmith.capabilities.planning.batching.served import Served
from tilesmith.capabilities.planning.sizing.answer import (
    Answer,
    Miss,
    ReplicaCandidate,
    ReplicaOptions,
)
from tilesmith.capabilities.planning.sizing.demand import Bounds, Demand
from tilesmith.display.html.charts import number
from tilesmith.search_space.support.errors import InputError

Told = Callable[[str], None]
"""A callback that gets a sentence about the candidate under test."""

_SATURATING = 6
"""Batches that wait when saturated throughput is measured; the first and the last are left out."""
_MOST_REPLICAS = 1 << 14
_OPTIMISM = 0.85
"""Of a request's cost at best, so that lengths that vary do not make it more than it is."""
_HOPELESS = 1.15
"""How far one replica must exceed a bound for the others not to be looked at."""
_CAPS = (1, 2, 4)
"""Shares of the largest batch that are tried: a smaller one stalls less for prompts."""


def smallest(
    candidates: Sequence[ReplicaCandidate],
    demand: Demand,
    bounds: Bounds,
    options: ReplicaOptions,
    progress: Told = lambda _: None,
) -> Answer:
    """The smallest fleet that serves a demand.

    Raises:
        InputError: no candidate keeps the bounds, or all need more chips than there may be.
    """
    return _Search(demand, bounds, options, progress).smallest(candidates)


@dataclass(frozen=True, eq=False)
class _Start:
    """A candidate with an engine, requests a second it does at most, and the replicas needed."""

    candidate: ReplicaCandidate
    engine: Engine
    capacity: float
    replicas: int

    @classmethod
    def at(
        cls, candidate: ReplicaCandidate, engine: Engine, capacity: float, rate: float
    ) -> "_Start":
        """The start with the fewest replicas that a rate needs; infinite: all come at once."""
        needed = rate / capacity if math.isfinite(rate) else 0.0
        replicas = _MOST_REPLICAS if needed >= _MOST_REPLICAS else math.floor(needed) + 1
        return cls(candidate, engine, capacity, replicas)


def spoken(rate: float, unit: str) -> str:
    """A rate of requests as text."""
    return f"{number(rate)} {unit}" if math.isfinite(rate) else "requests that come all at once"


class _Search:
    def __init__(
        self, demand: Demand, bounds: Bounds, options: ReplicaOptions, progress: Told
    ) -> None:
        self.demand, self.bounds, self.options, self.progress = demand, bounds, options, progress
        self.misses: list[Miss] = []
        self.too_many: list[tuple[int, str]] = []

    def smallest(self, candidates: Sequence[ReplicaCandidate]) -> Answer:
        starts = [start for candidate in candidates for start in self.starts(candidate)]
        starts.sort(key=lambda start: self.least(start, start.replicas))
        best: Answer | None = None
        for at, start in enumerate(starts):
            if not self.may_beat(start, best):
                break
            if self.too_large(start, start.replicas):
                continue
            self.progress(f"{at + 1} of {len(starts)}: {describe(start.candidate, start.engine)}")
            capacity = self.capacity(start.engine)
            start = _Start.at(start.candidate, start.engine, capacity, self.demand.rate)
            answer = self.fewest(start, best) if self.may_beat(start, best) else None
            if answer is not None and (
                best is None or answer.size(self.options) < best.size(self.options)
            ):
                best = answer
        if best is None:
            raise InputError(self.why_none())
        return best

    def too_large(self, start: _Start, replicas: int) -> bool:
        """Whether so many replicas need more chips than there may be."""
        chips = start.candidate.fleet.chips(replicas)
        if not self.options.chips or chips <= self.options.chips:
            return False
        self.too_many.append((chips, start.candidate.label))
        return True

    def may_beat(self, start: _Start, best: Answer | None) -> bool:
        """Whether the fewest replicas of a start are less than the best there is."""
        return best is None or self.least(start, start.replicas) < best.size(self.options)[0]

    def least(self, start: _Start, replicas: int) -> float:
        """Chips, or dollars, of so many replicas."""
        if self.options.by_cost:
            usd = start.candidate.fleet.usd_per_hour(replicas)
            return math.inf if usd is None else usd
        return start.candidate.fleet.chips(replicas)

    def starts(self, candidate: ReplicaCandidate) -> Iterator[_Start]:
        """Engines of a candidate that keep the bounds at least where a request is alone."""
        sample = self.demand.sample()
        missed = self.alone(candidate, sample.inputs, sample.outputs)
        if missed is not None:
            self.misses.append(missed)
            return
        for policy in self.options.policies:
            for batch in batches(candidate, self.demand, self.bounds, self.options):
                budget = max(self.options.budget, 2 * batch)
                engine = Engine(
                    candidate.times,
                    candidate.cache_tokens,
                    batch,
                    policy,
                    budget,
                    self.options.block,
                    candidate.stages,
                )
                best = self.at_best(candidate, engine)
                yield _Start.at(candidate, engine, best, self.demand.rate)

    def alone(self, candidate: ReplicaCandidate, inputs: Any, outputs: Any) -> Miss | None:
        """The bound that is missed even by a request that is alone."""
        times = candidate.times
        for name, allowed in self.bounds.given().items():
            what, _, percentile = name.partition("_p")
            if what == "tpot" and outputs.max() == 1:
                continue
            tokens = int(np.percentile(inputs, int(percentile)))
            if what == "ttft":
                reached = candidate.alone_s(tokens, self.options.budget) * 1e3
            else:
                reached = times.decode(1, float(inputs.mean() + outputs.mean() / 2)) * 1e3
            if reached > allowed:
                return Miss(candidate.label, name, reached, allowed, alone=True)
        return None

    def at_best(self, candidate: ReplicaCandidate, engine: Engine) -> float:
        """Requests a second that a replica could do if every batch were full and nothing waited."""
        times, lengths = engine.times, self.demand.lengths
        decoding = times.decode(engine.batch, lengths.inputs + lengths.outputs / 2) / engine.batch
        prompt = candidate.prompt_s(lengths.inputs)
        return 1 / (_OPTIMISM * (prompt + (lengths.outputs - 1) * decoding) + 1e-9)

    def capacity(self, engine: Engine) -> float:
        """Requests a second that one replica does where many wait."""
        sample = self.demand.sample()
        count = min(len(sample), max(100, _SATURATING * engine.batch))
        taken = type(sample)(sample.arrivals[:count], sample.inputs[:count], sample.outputs[:count])
        done = np.sort(simulate(engine, taken).last)
        first, last = count // 4, count - 1 - count // 4
        if last <= first or done[last] <= done[first]:
            return float(count / done[-1])
        return float((last - first) / (done[last] - done[first]))

    def fewest(self, start: _Start, best: Answer | None) -> Answer | None:
        """The fewest replicas of a start that keep the bounds, if that may beat the best."""
        low, high = start.replicas - 1, start.replicas
        while (good := self.tried(start, high, best)) is None:
            if high >= self.ceiling(start, best):
                return None
            low, high = high, min(high + max(1, high - start.replicas + 1), _MOST_REPLICAS)
        while high - low > 1:
            middle = (low + high) // 2
            if (fewer := self.tried(start, middle, best)) is not None:
                good, high = fewer, middle
            else:
                low = middle
        return good

    def ceiling(self, start: _Start, best: Answer | None) -> int:
        """Replicas beyond which nothing is gained any more."""
        most = min(_MOST_REPLICAS, 64 * start.replicas)
        if best is not None:
            while most > 1 and self.least(start, most // 2) >= best.size(self.options)[0]:
                most //= 2
        return most

    def tried(self, start: _Start, replicas: int, best: Answer | None) -> Answer | None:
        """The answer with so many replicas, if it keeps the bounds and the number of chips."""
        if self.too_large(start, replicas):
            return None
        shares = self.demand.shares(replicas)
        served = self.settled(serve(start.engine, shares[:1]))
        missed = self.bounds.missed(served)
        given = self.bounds.given()
        hopeless = any(value > _HOPELESS * given[name] for name, value in missed.items())
        if len(shares) > 1 and (not hopeless or self.demand.trace is not None):
            served = self.settled(serve(start.engine, shares))
            missed = self.bounds.missed(served)
        for name, reached in missed.items():
            self.misses.append(Miss(start.candidate.label, name, reached, given[name]))
        if missed:
            return None
        return Answer(
            start.candidate, start.engine, replicas, served, start.capacity, self.demand.rate
        )

    def settled(self, served: Served) -> Served:
        """The result without the requests that arrived while the machine was still filling up."""
        if self.demand.trace is not None:
            return served
        return served.from_second(float(np.mean(served.whole_s)))

    def why_none(self) -> str:
        """One sentence: which bound is missed, and what would meet it."""
        asked = spoken(self.demand.rate, "requests a second")
        if self.too_many:
            chips, label = min(self.too_many)
            return (
                f"{asked} need at least {chips} chips ({label}), more than the "
                f"{self.options.chips} allowed; allow more chips or longer times"
            )
        nearest = min(self.misses, key=lambda miss: miss.reached / miss.allowed)
        return (
            f"nothing serves {asked} within the bounds: the nearest, {nearest.sentence()}; allow "
            f"{nearest.reached:.4g} ms, shorten the requests or take another mesh"
        )


def describe(candidate: ReplicaCandidate, engine: Engine) -> str:
    """A candidate and its engine in a few words."""
    return f"{candidate.label}, {engine.policy}, batch {engine.batch}"


def batches(
    candidate: ReplicaCandidate, demand: Demand, bounds: Bounds, options: ReplicaOptions
) -> list[int]:
    """Numbers of sequences at once to try: all that cache and bound allow, and fewer."""
    context = demand.lengths.inputs + demand.lengths.outputs / 2
    most = min(options.batch, max(1, int(candidate.cache_tokens / context)))
    bound = bounds.tightest("tpot")
    if bound is not None:
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            fits = candidate.times.decode(middle, context) * 1e3 <= bound
            low, high = (middle, high) if fits else (low, middle - 1)
        most = low
    return sorted({max(1, most // share) for share in _CAPS}, reverse=True)
