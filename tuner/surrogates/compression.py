"""Labels that tell the fast apart and care less for the slow.

A search needs to know which of the fast configurations are fastest; how slow a slow one is teaches
it little, and a model that must follow tenfold differences there smooths over five per cent here.
Centred log latencies are kept up to the quantile `_FAST` of their task, and grow a quarter as fast
above it. The order stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilesmith.tuner.surrogates.cost_model import Floats, centred_logs

_FAST = 0.3
_SLOPE = 0.25


@dataclass(frozen=True)
class Compression:
    """The scale of labels of some tasks.

    Attributes:
        limits: centred log latency by task (group number) above which labels are compressed.
    """

    limits: Mapping[int, float]

    @classmethod
    def of(cls, latencies: Floats, groups: NDArray[np.int64]) -> "Compression":
        logs = centred_logs(latencies, groups)
        numbers = np.unique(groups).tolist()
        return cls({g: float(np.quantile(logs[groups == g], _FAST)) for g in numbers})

    def labels(self, latencies: Floats, groups: NDArray[np.int64]) -> Floats:
        """Latencies in seconds, shape (n,), of all samples of the tasks, as labels."""
        return self.compressed(centred_logs(latencies, groups), groups)

    def compressed(self, values: Floats, groups: NDArray[np.int64]) -> Floats:
        """Centred logarithms, shape (n,), on the labels' scale; unknown tasks' stay as they are."""
        squeezed = values.copy()
        for group in np.unique(groups).tolist():
            if (limit := self.limits.get(group)) is not None:
                above = (groups == group) & (values > limit)
                squeezed[above] = limit + _SLOPE * (values[above] - limit)
        return squeezed
