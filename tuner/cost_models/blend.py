"""A Gaussian process and boosted trees, averaged: the default.

The process extrapolates beyond the best seen and knows its doubt; the trees, of smaller weight,
share what they learn between tasks. Both learn `compressed` log latencies, so their mean is one
too. Its uncertainty is the process's, widened by how far the two disagree.

With a prior p both learn what is left after `slope * p`, compressed alike; the slope is fitted by
least squares, shrunk towards 1 as if `_TRUST` samples had said so. The trees see p as one more
feature. The prior is what a pretrained model says; without one, the logarithm of the analytical
latency where that is shown.
"""

import json

import numpy as np
from numpy.typing import NDArray

from tilesmith.tuner.cost_models.gaussian_process import GaussianProcess
from tilesmith.tuner.surrogates.boosting import Booster, parse
from tilesmith.tuner.surrogates.compression import Compression
from tilesmith.tuner.surrogates.cost_model import (
    CostModel,
    Floats,
    Joint,
    Samples,
    centred,
    centred_logs,
    cost_models,
)

_TREES, _TREES_WITH_PRIOR = 0.2, 0.35
"""Weight of the trees: what a prior leaves has more corners."""
_DISAGREEMENT = 0.5
"""How much of the two members' disagreement counts as doubt."""
_TRUST = 8


@cost_models.register("blend")
class Blend(CostModel):
    """See the module's docstring."""

    name = "blend"

    def __init__(self) -> None:
        self._trees = Booster({"objective": "reg:squarederror", "max_depth": 4, "eta": 0.15}, 60)
        self._process = GaussianProcess()
        self._compression = Compression({})
        self._slope = 0.0
        self._usual: dict[int, float] = {}

    def fit(self, samples: Samples, latencies: Floats) -> None:
        self._compression = Compression.of(latencies, samples.groups)
        self._slope, self._usual = 0.0, {}
        prior = _prior(samples)
        if prior is not None:
            logs = centred_logs(latencies, samples.groups)
            numbers = np.unique(samples.groups).tolist()
            self._usual = {g: float(prior[samples.groups == g].mean()) for g in numbers}
            prior = centred(prior, samples.groups)
            trust = _TRUST * float(prior.var()) + 1e-12
            self._slope = float((logs @ prior + trust) / (prior @ prior + trust))
            self._slope = min(max(self._slope, 0.0), 2.0)
        labels = self._compression.labels(latencies, samples.groups)
        self._process.fit_labels(samples, labels - self._base(samples))
        self._trees.fit(self._with_prior(samples), labels - self._base(samples))

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
        scale = {"slope": self._slope, "limits": dict(self._compression.limits)}
        return json.dumps({"kind": self.name, **scale, "usual": self._usual, **members})

    @classmethod
    def load(cls, text: str) -> "Blend":
        model = cls()
        saved = parse(text, cls.name)
        model._slope = float(saved["slope"])
        model._usual = {int(g): float(mean) for g, mean in saved["usual"].items()}
        model._compression = Compression({int(g): float(v) for g, v in saved["limits"].items()})
        model._trees.restore(saved["trees"])
        model._process = GaussianProcess.load(saved["process"])
        return model

    def _joined(self, samples: Samples, mean: Floats, deviation: Floats) -> tuple[Floats, Floats]:
        """The process's estimate joined with the trees' and the prior."""
        trees = self._trees.predict(self._with_prior(samples))
        apart = 0.5 * (trees - mean) * _DISAGREEMENT
        weight = _TREES if samples.prior is None else _TREES_WITH_PRIOR
        joined = self._base(samples) + weight * trees + (1 - weight) * mean
        return joined, np.hypot(deviation, apart)

    def _base(self, samples: Samples) -> Floats:
        """What the prior says, on the labels' scale; zeros without one."""
        prior = _prior(samples)
        if prior is None:
            return np.zeros(len(samples))
        usual = np.array([self._usual.get(g, 0.0) for g in samples.groups.tolist()])
        return self._compression.compressed(self._slope * (prior - usual), samples.groups)

    def _with_prior(self, samples: Samples) -> NDArray[np.float32]:
        """Features, and the prior as one more column (zero where there is none)."""
        prior = _prior(samples)
        priors = np.zeros(len(samples)) if prior is None else prior
        return np.column_stack([samples.features, priors]).astype(np.float32)


def _prior(samples: Samples) -> Floats | None:
    """What is known before anything is measured, log seconds; None where nothing is."""
    if samples.prior is not None:
        return samples.prior
    return _analytical(samples)


def _analytical(samples: Samples) -> Floats | None:
    """The logarithm of the analytical latency; None where it is not shown."""
    known = np.isfinite(samples.analytical) & (samples.analytical > 0)
    return np.log(np.where(known, samples.analytical, 1.0)) if known.any() else None
