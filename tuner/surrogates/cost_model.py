"""`CostModel`: how fast a configuration will probably be, learned from measurements.

A cost model is one class in one file of `cost_models/`. Contract, checked for every registered
model:

- `fit` learns from scratch, deterministically in its arguments, so that a model is a pure function
  of the trials and need not be stored to resume exactly;
- `predict` gives scores, lower is faster, comparable within a group;
- `save` gives text (JSON), `load` a model that predicts the same; no pickle.

Labels are latencies in seconds of one way of measuring; a model never sees both. Runs aborted as
slow enter with the time they were aborted at, a lower bound.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.registry import Registry

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Samples:
    """Configurations as a cost model sees them.

    Attributes:
        features: shape (n, f), float32.
        analytical: the simulator's latency in seconds, shape (n,); NaN where there is none.
        groups: number of the task each is of, shape (n,): scores compare within a group only.
        prior: what a pretrained model says, log seconds less a constant of the group, shape (n,);
            None where there is no such model, or it is not trusted.
        knobs: the knobs as numbers, shape (n, k), the same columns within a group, zeros where a
            group has fewer; None where the features tell them already.
    """

    features: NDArray[np.float32]
    analytical: Floats
    groups: NDArray[np.int64]
    prior: Floats | None = None
    knobs: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        assert len(self.features) == len(self.analytical) == len(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def take(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> "Samples":
        return Samples(
            self.features[chosen],
            self.analytical[chosen],
            self.groups[chosen],
            None if self.prior is None else self.prior[chosen],
            None if self.knobs is None else self.knobs[chosen],
        )

    def without_prior(self) -> "Samples":
        return replace(self, prior=None)


@dataclass(frozen=True)
class Joint:
    """Scores of n samples as one distribution.

    Attributes:
        mean: shape (n,), lower is faster.
        deviation: standard deviations, shape (n,); zero: unknown.
        covariance: of one sample (by number) with all, shape (n,).
    """

    mean: Floats
    deviation: Floats
    covariance: Callable[[int], Floats]

    @classmethod
    def independent(cls, mean: Floats, deviation: Floats) -> "Joint":
        """Samples that tell nothing of each other."""

        def covariance(number: int) -> Floats:
            column = np.zeros(len(mean))
            column[number] = deviation[number] ** 2
            return column

        return cls(mean, deviation, covariance)


class CostModel(ABC):
    """See the module's docstring for the contract."""

    name: ClassVar[str]

    @abstractmethod
    def fit(self, samples: Samples, latencies: Floats) -> None:
        """Learn from measured latencies in seconds, shape (n,), n >= 1."""

    @abstractmethod
    def predict(self, samples: Samples) -> Floats:
        """Scores, shape (n,), lower is faster. Only after `fit` or `load`."""

    def uncertainty(self, samples: Samples) -> Floats | None:
        """Standard deviations of the scores, shape (n,), or None if the model has none."""
        return None

    def estimate(self, samples: Samples) -> tuple[Floats, Floats]:
        """Scores and their standard deviations (zero if the model has none), each shape (n,)."""
        doubt = self.uncertainty(samples)
        return self.predict(samples), np.zeros(len(samples)) if doubt is None else doubt

    def joint(self, samples: Samples) -> Joint:
        """Return the estimate as one distribution; samples are independent by default."""
        return Joint.independent(*self.estimate(samples))

    @abstractmethod
    def save(self) -> str:
        """The fitted model as JSON text."""

    @classmethod
    @abstractmethod
    def load(cls, text: str) -> "CostModel":
        """Undo `save`. Raises `InputError` for text that `save` did not write."""


CostModelFactory = Callable[[], CostModel]

cost_models: Registry[type[CostModel]] = Registry(
    "cost model", "tilesmith.tuner.cost_models", InputError
)


def centred_logs(latencies: Floats, groups: NDArray[np.int64]) -> Floats:
    """Return log latencies minus their group's mean, which are comparable between tasks."""
    return centred(np.log(latencies), groups)


def centred(values: Floats, groups: NDArray[np.int64]) -> Floats:
    """Values less their group's mean."""
    _, index = np.unique(groups, return_inverse=True)
    means = np.bincount(index, values) / np.bincount(index)
    return np.asarray(values - means[index])


def log_analytical(analytical: Floats) -> Floats:
    """Logarithms of latencies in seconds, shape (n,); zero where there is none."""
    known = np.isfinite(analytical) & (analytical > 0)
    return np.log(np.where(known, analytical, 1.0))


def rank_agreement(scores: Floats, latencies: Floats, groups: NDArray[np.int64]) -> float:
    """Pairwise accuracy: share of pairs within groups whose order the scores get right.

    Ties in score count half. Pairs of equal latency are left out; 0.5 if there are no pairs.
    """
    right = total = 0.0
    for group in np.unique(groups):
        mine = groups == group
        true = np.sign(latencies[mine][:, None] - latencies[mine][None, :])
        guess = np.sign(scores[mine][:, None] - scores[mine][None, :])
        pairs = true != 0
        right += float(((true == guess) & pairs).sum() + 0.5 * ((guess == 0) & pairs).sum())
        total += float(pairs.sum())
    return right / total if total else 0.5
