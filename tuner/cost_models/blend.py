"""Boosted trees and a Gaussian process, averaged: the default where a simulator measures.

The trees rank the bulk of a space well and share what they learn between tasks; the process
extrapolates beyond the best seen and knows its doubt. Both predict centred log latencies, so their
mean is one too. Its uncertainty is the process's, widened by how far the two disagree.
"""

from __future__ import annotations

import json

import numpy as np

from tuner.boosting import Booster, parse
from tuner.cost_model import CostModel, Floats, Joint, Samples, centred_logs, cost_models
from tuner.cost_models.gaussian_process import GaussianProcess

_DISAGREEMENT = 0.5
"""How much of the two members' disagreement counts as doubt."""


@cost_models.register("blend")
class Blend(CostModel):
    """See the module's docstring."""

    name = "blend"

    def __init__(self) -> None:
        self._trees = Booster({"objective": "reg:squarederror", "max_depth": 4, "eta": 0.15}, 100)
        self._process = GaussianProcess()

    def fit(self, samples: Samples, latencies: Floats) -> None:
        self._trees.fit(samples.features, centred_logs(latencies, samples.groups))
        self._process.fit(samples, latencies)

    def predict(self, samples: Samples) -> Floats:
        return self.estimate(samples)[0]

    def uncertainty(self, samples: Samples) -> Floats:
        return self.estimate(samples)[1]

    def estimate(self, samples: Samples) -> tuple[Floats, Floats]:
        """Scores and their standard deviations, each shape (n,)."""
        trees = self._trees.predict(samples.features)
        mean, doubt = self._process.estimate(samples)
        return 0.5 * (trees + mean), np.hypot(doubt, 0.5 * (trees - mean) * _DISAGREEMENT)

    def joint(self, samples: Samples) -> Joint:
        trees, process = self._trees.predict(samples.features), self._process.joint(samples)
        apart = 0.5 * (trees - process.mean) * _DISAGREEMENT
        mean = 0.5 * (trees + process.mean)
        return Joint(mean, np.hypot(process.deviation, apart), process.covariance)

    def save(self) -> str:
        saved = {"kind": self.name, "trees": self._trees.save(), "process": self._process.save()}
        return json.dumps(saved)

    @classmethod
    def load(cls, text: str) -> Blend:
        model = cls()
        saved = parse(text, cls.name)
        model._trees.restore(saved["trees"])
        model._process = GaussianProcess.load(saved["process"])
        return model
