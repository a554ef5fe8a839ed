"""The fewest chips where prompts and answers have replicas of their own.

The two pools are found one after the other: the smallest one for prompts that keeps the bounds on
first tokens, then, with the requests as they come from there, the smallest for answers that keeps
the bounds on the tokens after them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilesmith.capabilities.planning.batching.events import Engine
from tilesmith.capabilities.planning.batching.served import Served
from tilesmith.capabilities.planning.batching.traffic import Traffic, poisson
from tilesmith.capabilities.planning.sizing.answer import (
    Answer,
    Miss,
    PrefillPool,
    ReplicaCandidate,
    ReplicaOptions,
)
from tilesmith.capabilities.planning.sizing.demand import LOOKED_AT, Bounds, Demand
from tilesmith.capabilities.planning.sizing.disaggregation import first_tokens, serve_split
from tilesmith.capabilities.planning.sizing.fewest_chips import Told, batches, spoken
from tilesmith.search_space.support.errors import InputError

_MOST_REQUESTS = 200_000
_MOST_REPLICAS = 1 << 12


@dataclass
class _Pools:
    demand: Demand
    bounds: Bounds
    options: ReplicaOptions
    progress: Told

    def __post_init__(self) -> None:
        self.misses: list[Miss] = []

    def traffic(self, replicas: int) -> Traffic:
        """Requests enough for so many replicas."""
        if self.demand.trace is not None:
            return self.demand.trace
        count = min(_MOST_REQUESTS, self.demand.requests * max(2, replicas))
        generator = np.random.default_rng(self.demand.seed)
        return poisson(self.demand.rate, count, self.demand.lengths, generator)

    def kept(self, candidate: ReplicaCandidate, what: str, seconds: np.ndarray) -> bool:
        """Whether the bounds on first tokens, or on those after them, are kept."""
        missed = False
        for name, allowed in self.bounds.given().items():
            kind, _, percentile = name.partition("_p")
            if kind == what and len(seconds):
                reached = float(np.percentile(seconds, int(percentile))) * 1e3
                if reached > allowed:
                    missed = True
                    self.misses.append(Miss(f"{candidate.label} split", name, reached, allowed))
        return not missed

    def least_for_prompts(self, candidate: ReplicaCandidate) -> int:
        """Replicas that prompts keep busy."""
        inputs = self.demand.sample().inputs[:200].tolist()
        each = float(np.mean([candidate.busy_s(tokens) for tokens in inputs]))
        return self._least(1 / each)

    def least_for_answers(self, candidate: ReplicaCandidate) -> int:
        """Replicas that answers keep busy, in full batches."""
        return self._least(self.answers_per_s(candidate))

    def answers_per_s(self, candidate: ReplicaCandidate) -> float:
        """Requests a second whose answers one replica gives, in full batches."""
        lengths, batch = self.demand.lengths, self.batch(candidate)
        step = candidate.times.decode(batch, lengths.inputs + lengths.outputs / 2)
        return batch / (max(1, lengths.outputs - 1) * step)

    def batch(self, candidate: ReplicaCandidate) -> int:
        """Sequences at once that cache and bounds allow."""
        return batches(candidate, self.demand, self.bounds, self.options)[0]

    def _least(self, capacity: float) -> int:
        if not math.isfinite(self.demand.rate):
            return 1
        return min(_MOST_REPLICAS, math.floor(self.demand.rate / capacity) + 1)

    def prompts(self, candidate: ReplicaCandidate, least: int) -> PrefillPool | None:
        """The smallest pool of a candidate for prompts."""
        traffic = self.traffic(LOOKED_AT)

        def keeps(replicas: int) -> bool:
            first = first_tokens(candidate.times, traffic, replicas, candidate.stages)
            return self.kept(candidate, "ttft", first - traffic.arrivals)

        replicas = fewest(least, min(_MOST_REPLICAS, 16 * least), keeps)
        return None if replicas is None else PrefillPool(candidate, replicas, candidate.transfer_s)

    def answers(self, candidate: ReplicaCandidate, least: int, pool: PrefillPool) -> Answer | None:
        """The smallest pool of a candidate for answers."""
        engine = Engine(
            candidate.times,
            candidate.cache_tokens,
            self.batch(candidate),
            block=self.options.block,
            stages=candidate.stages,
        )
        capacity = self.answers_per_s(candidate)
        by_replicas: dict[int, Served] = {}

        def keeps(replicas: int) -> bool:
            served = serve_split(pool, engine, self.traffic(replicas), replicas, LOOKED_AT)
            if self.demand.trace is None:
                served = served.from_second(float(np.mean(served.whole_s)))
            by_replicas[replicas] = served
            return self.kept(candidate, "tpot", served.tpot_s)

        replicas = fewest(least, min(_MOST_REPLICAS, 16 * least), keeps)
        if replicas is None:
            return None
        rate = self.demand.rate
        return Answer(candidate, engine, replicas, by_replicas[replicas], capacity, rate, pool)

    def alone(self, candidate: ReplicaCandidate, what: str) -> bool:
        """Whether a request on an idle fleet keeps the bounds on `what`."""
        lengths, times = self.demand.lengths, candidate.times
        if what == "ttft":
            seconds = times.prefill(1, int(np.median(self.demand.sample().inputs)), 0)
        elif lengths.outputs == 1:
            return True
        else:
            seconds = times.decode(1, lengths.inputs + lengths.outputs / 2)
        return self.kept(candidate, what, np.array([seconds]))

    def for_prompts(self, candidates: Sequence[ReplicaCandidate]) -> PrefillPool | None:
        """The smallest pool for prompts."""
        best, known = None, (math.inf, math.inf)
        for least, candidate in self.sorted(candidates, self.least_for_prompts):
            if self.size(candidate, least) >= known:
                break
            self.progress(f"prompts: {candidate.label}")
            pool = self.prompts(candidate, least) if self.alone(candidate, "ttft") else None
            if pool is not None and self.size(candidate, pool.replicas) < known:
                best, known = pool, self.size(candidate, pool.replicas)
        return best

    def for_answers(
        self, candidates: Sequence[ReplicaCandidate], pool: PrefillPool
    ) -> list[Answer]:
        """Pools for answers, of which one is the smallest."""
        answers, known = [], (math.inf, math.inf)
        for least, candidate in self.sorted(candidates, self.least_for_answers):
            if self.size(candidate, least) >= known:
                break
            self.progress(f"answers: {candidate.label}")
            answer = self.answers(candidate, least, pool) if self.alone(candidate, "tpot") else None
            if answer is not None:
                answers.append(answer)
                known = min(known, self.size(candidate, answer.replicas))
        return answers

    def sorted(
        self, candidates: Sequence[ReplicaCandidate], least: Callable[[ReplicaCandidate], int]
    ) -> list[tuple[int, ReplicaCandidate]]:
        """Candidates with the replicas they need at least, the smallest first."""
        pairs = [(least(candidate), candidate) for candidate in candidates]
        return sorted(pairs, key=lambda pair: self.size(pair[1], pair[0]))

    def size(self, candidate: ReplicaCandidate, replicas: int) -> tuple[float, float]:
        """The sizes that pools are compared by, the most important first."""
        usd = candidate.fleet.usd_per_hour(replicas)
        chips, cost = float(candidate.fleet.chips(replicas)), math.inf if usd is None else usd
        return (cost, chips) if self.options.by_cost else (chips, cost)


def smallest_split(
    candidates: Sequence[ReplicaCandidate],
    demand: Demand,
    bounds: Bounds,
    options: ReplicaOptions,
    progress: Told = lambda _: None,
) -> Answer:
    """The smallest pair of pools that serves a demand.

    Raises:
        InputError: no pair keeps the bounds, or all need more chips than there may be.
    """
    pools = _Pools(demand, bounds, options, progress)
    pool = pools.for_prompts(candidates)
    answers = [] if pool is None else pools.for_answers(candidates, pool)
    asked = spoken(demand.rate, "requests a second")
    if not answers:
        nearest = min(pools.misses, key=lambda miss: miss.reached / miss.allowed)
        raise InputError(
            f"no replicas for prompts and others for answers serve {asked} within the bounds: the "
            f"nearest, {nearest.sentence()}"
        )
    best = min(answers, key=lambda answer: answer.size(options))
    if options.chips and best.chips > options.chips:
        raise InputError(
            f"{asked} need {best.chips} chips for prompts and answers apart, more than the "
            f"{options.chips} allowed; allow more chips or longer times"
        )
    return best


def fewest(least: int, most: int, keeps: Callable[[int], bool]) -> int | None:
    """The smallest of `least` to `most` that keeps something which larger ones keep, too."""
    low, high = least - 1, least
    while not keeps(high):
        if high >= most:
            return None
        low, high = high, min(most, high + max(1, high - least + 1))
    while high - low > 1:
        middle = (low + high) // 2
        if keeps(middle):
            high = middle
        else:
            low = middle
    return high
