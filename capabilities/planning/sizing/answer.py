"""The nouns of sizing: candidates, options, answers, and the bounds that a candidate misses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilesmith.capabilities.planning.batching.events import Engine, Policy
from tilesmith.capabilities.planning.batching.served import Served
from tilesmith.capabilities.planning.batching.stages import StageAvailability, StageTimes
from tilesmith.capabilities.planning.batching.step_times import DeploymentTimes
from tilesmith.capabilities.planning.sweeps.fleet import InstanceFleet
from tilesmith.capabilities.planning.sweeps.prices import usd_per_million


@dataclass(frozen=True, eq=False)
class ReplicaCandidate:
    """One way to build a replica.

    Attributes:
        label: how it is called, such as "tp=8 bf16".
        fleet: where replicas stand, and what they cost.
        times: seconds of its steps.
        cache_tokens: tokens of all sequences that its cache holds.
        deployment: what it was made from, for whoever shows it.
        transfer_s: seconds to hand the cache of one token on to another replica.
        stages: seconds of the stages of a pipeline, where a replica is one.
    """

    label: str
    fleet: InstanceFleet
    times: DeploymentTimes
    cache_tokens: int
    deployment: Any = None
    transfer_s: float = 0.0
    stages: StageTimes | None = None

    def alone_s(self, tokens: int, budget: int) -> float:
        """Seconds to the first token of a prompt that meets nobody.

        Args:
            budget: tokens of a step; pieces of a longer prompt follow each other through stages.
        """
        whole = self.times.prefill(1, tokens, 0)
        if self.stages is None or tokens <= budget:
            return whole
        line = StageAvailability(len(self.stages))
        for done in range(0, tokens, budget):
            end = line.enter(0.0, self.stages.prefill(1, min(budget, tokens - done), done))
        return min(whole, end + self.stages.host + self.stages.host_prompt)

    def busy_s(self, tokens: int) -> float:
        """Seconds until the next prompt may begin, where there are prompts alone."""
        if self.stages is not None:
            return max(self.stages.prefill(1, tokens, 0))
        return self.times.prefill(1, tokens, 0)

    def prompt_s(self, tokens: int) -> float:
        """Seconds of a replica that a prompt costs at best, beyond what other work pays."""
        if self.stages is not None:
            return self.stages.each_prompt(tokens)
        return max(0.0, self.times.prefill(1, tokens, 0) - self.times.shared)


@dataclass(frozen=True)
class ReplicaOptions:
    """How replicas may schedule.

    Attributes:
        policies: those to try.
        batch: most sequences at once.
        budget: tokens of prompts in a step.
        block: tokens of a block of the cache.
        chips: most chips there may be; 0: any number.
        by_cost: the cheapest in place of the fewest chips.
        split: try replicas of their own for prompts, too.
    """

    policies: Sequence[Policy] = ("prefill_first", "chunked")
    batch: int = 256
    budget: int = 2048
    block: int = 16
    chips: int = 0
    by_cost: bool = False
    split: bool = False


@dataclass(frozen=True, eq=False)
class PrefillPool:
    """Replicas that work on prompts alone, and hand their caches on.

    Attributes:
        transfer_s: seconds that the cache of one token is under way.
    """

    candidate: ReplicaCandidate
    replicas: int
    transfer_s: float


@dataclass(frozen=True, eq=False)
class Answer:
    """A fleet that serves the demand."""

    candidate: ReplicaCandidate
    engine: Engine
    replicas: int
    served: Served
    capacity: float
    """Requests a second that one replica does at most."""
    rate: float
    """Requests a second that there are."""
    prefill: PrefillPool | None = None
    """Replicas of their own for prompts, where there are any."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens of answers a second, of all replicas: what comes in must go out."""
        if math.isfinite(self.rate):
            return self.rate * float(self.served.outputs.mean())
        return self.served.tokens_per_s

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Dollars for a million tokens of answers at this load; none without a price."""
        usd = self.usd_per_hour
        return None if usd is None else usd_per_million(usd, self.tokens_per_s)

    @property
    def pools(self) -> list[tuple[InstanceFleet, int]]:
        """Fleets, and the replicas of each."""
        pools = [(self.candidate.fleet, self.replicas)]
        if self.prefill is not None:
            pools.append((self.prefill.candidate.fleet, self.prefill.replicas))
        return pools

    @property
    def chips(self) -> int:
        return sum(fleet.chips(replicas) for fleet, replicas in self.pools)

    @property
    def instances(self) -> int:
        return sum(fleet.instances(replicas) for fleet, replicas in self.pools)

    @property
    def usd_per_hour(self) -> float | None:
        """Dollars an hour for whole instances; none without a price."""
        prices = [fleet.usd_per_hour(replicas) for fleet, replicas in self.pools]
        known = [price for price in prices if price is not None]
        return sum(known) if len(known) == len(prices) else None

    def size(self, options: ReplicaOptions) -> tuple[float, ...]:
        """The sizes that answers are compared by, the most important first."""
        chips = float(self.chips)
        cost = math.inf if self.usd_per_hour is None else self.usd_per_hour
        first = (cost, chips) if options.by_cost else (chips, cost)
        return (*first, float(np.percentile(self.served.ttft_s, 99)))


@dataclass(frozen=True)
class Miss:
    """Why a candidate is rejected: the bound that it misses, and by how much."""

    label: str
    bound: str
    reached: float
    allowed: float
    alone: bool = False
    """Even a request that is alone takes so long."""

    def sentence(self) -> str:
        """The bound that was missed, as a sentence."""
        what, _, percentile = self.bound.partition("_p")
        name = {"ttft": "time to first token", "tpot": "time per output token"}[what]
        how = "even alone" if self.alone else f"at the {percentile}th percentile"
        return f"{self.label} has a {name} of {self.reached:.4g} ms {how}, not {self.allowed:g} ms"
