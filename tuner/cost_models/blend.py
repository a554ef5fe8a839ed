"""Boosted trees and a Gaussian process, averaged: the default where a simulator measures.

The trees rank the bulk of a space well and share what they learn between tasks; the process
extrapolates beyond the best seen and knows its doubt. Both predict centred log latencies, so their
mean is one too. Its uncertainty is the process's, widened by how far the two disagree.

With a pretrained model's prior p, both learn what is left of the log latency after `slope * p`; the
slope is fitted by least squares, shrunk towards 1 as if `_TRUST` samples had said so. The trees see
p as one more feature.
"""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray

from tuner.boosting import Booster, parse
from tuner.cost_model import (
    CostModel,
    Floats,
    Joint,
    Samples,
    centred,
    centred_logs,
    cost_models,
)
from tuner.cost_models.gaussian_process import GaussianProcess

_DISAGREEMENT = 0.5
"""How much of the two members' disagreement counts as doubt."""
_TRUST = 8


@cost_models.register("blend")
class Blend(CostModel):
    """See the module's docstring."""

    name = "blend"

    def __init__(self) -> None:
        self._trees = Booster({"objective": "reg:squarederror", "max_depth": 4, "eta": 0.15}, 100)
        self._process = GaussianProcess()
        self._slope = 0.0

    def fit(self, samples: Samples, latencies: Floats) -> None:
        labels = centred_logs(latencies, samples.groups)
        self._slope = 0.0
        if samples.prior is not None:
            prior = centred(samples.prior, samples.groups)
            trust = _TRUST * float(prior.var()) + 1e-12
            self._slope = float((labels @ prior + trust) / (prior @ prior + trust))
            self._slope = min(max(self._slope, 0.0), 2.0)
            labels = labels - self._slope * prior
        self._trees.fit(_with_prior(samples), labels)
        self._process.fit(samples, np.exp(labels))

    def predict(self, samples: Samples) -> Floats:
        return self.estimate(samples)[0]

    def uncertainty(self, samples: Samples) -> Floats:
        return self.estimate(samples)[1]

    def estimate(self, samples: Samples) -> tuple[Floats, Floats]:
        """Scores and their standard deviations, each shape (n,)."""
        return self._joined(samples, *self._process.estimate(samples))

    def joint(self, samples: Samples) -> Joint:
        process = self._process.joint(samples)
        mean, deviation = self._joined(samples, process.mean, process.deviation)
        return Joint(mean, deviation, process.covariance)

    def save(self) -> str:
        members = {"trees": self._trees.save(), "process": self._process.save()}
        return json.dumps({"kind": self.name, "slope": self._slope, **members})

    @classmethod
    def load(cls, text: str) -> Blend:
        model = cls()
        saved = parse(text, cls.name)
        model._slope = float(saved["slope"])
        model._trees.restore(saved["trees"])
        model._process = GaussianProcess.load(saved["process"])
        return model

    def _joined(self, samples: Samples, mean: Floats, deviation: Floats) -> tuple[Floats, Floats]:
        """The process's estimate joined with the trees' and the prior."""
        trees = self._trees.predict(_with_prior(samples))
        base = 0.0 if samples.prior is None else self._slope * samples.prior
        apart = 0.5 * (trees - mean) * _DISAGREEMENT
        return base + 0.5 * (trees + mean), np.hypot(deviation, apart)


def _with_prior(samples: Samples) -> NDArray[np.float32]:
    """Features, and the prior as one more column (zero without one)."""
    prior = np.zeros(len(samples)) if samples.prior is None else samples.prior
    return np.column_stack([samples.features, prior]).astype(np.float32)
