"""`Judgement`: what a simulator says of many configurations of a workload at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.results.measure import MeasureResult


@dataclass(frozen=True)
class Judgement:
    """A batch of configurations, judged.

    Attributes:
        latency: seconds, shape (n,), float64; NaN where there is a failure.
        features: what a cost model learns from, shape (n, f), float32.
        bound: what limits each configuration ("tensor", "dma", "l2", ...), n texts.
        verdict: numbers of the feature columns that tell the latency or its parts; what learns to
            predict this very latency must not see them.
        failures: why a configuration has no latency, by row.
    """

    latency: NDArray[np.float64]
    features: NDArray[np.float32]
    bound: list[str]
    verdict: tuple[int, ...] = ()
    failures: Mapping[int, MeasureResult] = field(default_factory=dict)

    def __post_init__(self) -> None:
        failed = np.flatnonzero(~np.isfinite(self.latency)).tolist()
        assert failed == sorted(self.failures), "a row has either a latency or a failure"
        assert self.latency.shape == (len(self.bound),), (self.latency.shape, len(self.bound))
        assert self.features.shape[:1] == self.latency.shape, self.features.shape
