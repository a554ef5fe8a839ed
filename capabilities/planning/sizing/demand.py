"""What has to be served, and how well: a rate or a trace, and bounds on times."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from tilesmith.capabilities.planning.batching.served import Served
from tilesmith.capabilities.planning.batching.traffic import Lengths, Traffic, poisson

LOOKED_AT = 4
"""Replicas looked at where requests are drawn: dealt in turns, all see the like."""


@dataclass(frozen=True)
class Bounds:
    """Upper bounds in milliseconds; None where there is no bound."""

    ttft_p50: float | None = None
    ttft_p99: float | None = None
    tpot_p50: float | None = None
    tpot_p99: float | None = None

    def given(self) -> Mapping[str, float]:
        """The bounds that are set, by name."""
        limits = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in limits.items() if value is not None}

    def tightest(self, what: str) -> float | None:
        """The smallest bound of `ttft` or `tpot`."""
        return min((v for name, v in self.given().items() if name.startswith(what)), default=None)

    def missed(self, served: Served) -> Mapping[str, float]:
        """The times that exceed a bound, in milliseconds, by the bound's name."""
        seconds = {"ttft": served.ttft_s, "tpot": served.tpot_s}
        reached = {}
        for name, bound in self.given().items():
            what, _, percentile = name.partition("_p")
            if len(seconds[what]):
                value = float(np.percentile(seconds[what], int(percentile))) * 1e3
                if value > bound:
                    reached[name] = value
        return reached


@dataclass(frozen=True)
class Demand:
    """Requests to be served: drawn at a rate, or those of a trace.

    Attributes:
        rate: requests a second.
        lengths: of prompts and answers; of a trace, their means.
        requests: how many each simulated replica gets, where they are drawn.
        seed: of the generator they are drawn with.
        trace: requests to serve as they come.
    """

    rate: float
    lengths: Lengths
    requests: int = 2000
    seed: int = 0
    trace: Traffic | None = None

    @classmethod
    def of_trace(cls, trace: Traffic, seed: int = 0) -> "Demand":
        """The demand of a trace."""
        means = (max(1, round(float(tokens.mean()))) for tokens in (trace.inputs, trace.outputs))
        return cls(trace.rate, Lengths(*means), len(trace), seed, trace)

    def shares(self, replicas: int, most: int = LOOKED_AT) -> list[Traffic]:
        """What each replica gets, where requests are dealt to so many in turns.

        Args:
            most: how many are looked at where requests are drawn; all replicas of a trace are.
        """
        if self.trace is not None:
            shares = [self.trace.share(number, replicas) for number in range(replicas)]
            return [share for share in shares if len(share)]
        return [_drawn(self, replicas, number) for number in range(min(replicas, most))]

    def sample(self) -> Traffic:
        """Requests as they come, if all waited from the beginning."""
        one = self.trace or _drawn(self, 1, 0)
        return Traffic(np.zeros(len(one)), one.inputs, one.outputs)


@lru_cache(maxsize=16)
def _drawn(demand: Demand, replicas: int, number: int) -> Traffic:
    generator = np.random.default_rng((demand.seed, number))
    return poisson(demand.rate, demand.requests, demand.lengths, generator, replicas)
