"""A Gaussian process on program features, one a task: few measurements, honest doubt.

Trees cannot extrapolate: they never score anything below the best leaf they have seen. A process
with a smooth kernel can, and says how unsure it is, which is what a search needs that is to find
the one good corner of a space. Kernel: Matern 5/2 on standardised features, one length scale and
one noise for all, chosen from a grid by marginal likelihood (Rasmussen and Williams, 2006, ch. 5),
the amplitude in closed form. Written out in numpy because scikit-learn's optimiser takes a hundred
times as long. Up to `_MOST` samples a task are used: the fastest half and the latest.

Samples of a task it was not fitted to get score 0 and the spread of the labels as doubt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.boosting import parse
from tuner.cost_model import CostModel, Floats, Joint, Samples, centred_logs, cost_models

_MOST = 256
_SCALES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Length scales tried, in units of sqrt(features / 8)."""
_NOISES = (1e-4, 1e-2)
"""Noise variances tried, relative to the amplitude."""
_FEWEST = 3


@dataclass(frozen=True)
class Process:
    """A fitted process of one task.

    Attributes:
        used: numbers of the feature columns that vary.
        centre, spread: mean and deviation of those columns.
        inputs: standardised features, shape (n, used).
        factor: lower Cholesky factor of the kernel matrix over the amplitude, (n, n).
        weights: kernel matrix inverse times the labels, (n,).
        length, amplitude: of the kernel.
        scale: of the labels: (mean, deviation).
    """

    used: NDArray[np.int64]
    centre: Floats
    spread: Floats
    inputs: Floats
    factor: Floats
    weights: Floats
    length: float
    amplitude: float
    scale: tuple[float, float]

    def estimate(self, features: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation, each shape (n,)."""
        from scipy.linalg import solve_triangular

        asked = (features[:, self.used] - self.centre) / self.spread
        kernel = _matern(asked, self.inputs, self.length)
        mean = kernel @ self.weights
        reduced = solve_triangular(self.factor, kernel.T, lower=True, check_finite=False)
        variance = self.amplitude * np.maximum(1.0 - (reduced**2).sum(axis=0), 1e-9)
        offset, deviation = self.scale
        return mean * deviation + offset, np.sqrt(variance) * deviation

    def joint(self, features: Floats) -> Joint:
        """All of `features` (n, f) as one distribution."""
        from scipy.linalg import solve_triangular

        asked = (features[:, self.used] - self.centre) / self.spread
        kernel = _matern(asked, self.inputs, self.length)
        reduced = solve_triangular(self.factor, kernel.T, lower=True, check_finite=False)
        variance = self.amplitude * np.maximum(1.0 - (reduced**2).sum(axis=0), 1e-9)
        offset, deviation = self.scale

        def covariance(number: int) -> Floats:
            prior = _matern(asked[number : number + 1], asked, self.length)[0]
            left = prior - reduced[:, number] @ reduced
            return np.asarray(left * self.amplitude * deviation**2)

        mean = (kernel @ self.weights) * deviation + offset
        return Joint(mean, np.sqrt(variance) * deviation, covariance)


@cost_models.register("gaussian_process")
class GaussianProcess(CostModel):
    """See the module's docstring."""

    name = "gaussian_process"

    def __init__(self) -> None:
        self._processes: dict[int, Process] = {}
        self._doubt = 1.0

    def fit(self, samples: Samples, latencies: Floats) -> None:
        labels = centred_logs(latencies, samples.groups)
        self._doubt = max(float(labels.std()), 1e-3)
        self._processes = {}
        for group in np.unique(samples.groups).tolist():
            mine = np.flatnonzero(samples.groups == group)
            chosen = mine[_kept(labels[mine])]
            if len(chosen) >= _FEWEST:
                features = _finite(samples.features[chosen])
                self._processes[group] = fitted(features, labels[chosen])

    def predict(self, samples: Samples) -> Floats:
        return self.estimate(samples)[0]

    def uncertainty(self, samples: Samples) -> Floats:
        return self.estimate(samples)[1]

    def estimate(self, samples: Samples) -> tuple[Floats, Floats]:
        """Scores and their standard deviations, each shape (n,)."""
        mean, doubt = np.zeros(len(samples)), np.full(len(samples), self._doubt)
        for group in np.unique(samples.groups).tolist():
            if group in self._processes:
                mine = samples.groups == group
                features = _finite(samples.features[mine])
                mean[mine], doubt[mine] = self._processes[group].estimate(features)
        return mean, doubt

    def joint(self, samples: Samples) -> Joint:
        groups = np.unique(samples.groups).tolist()
        if len(groups) != 1 or groups[0] not in self._processes:
            return super().joint(samples)
        return self._processes[groups[0]].joint(_finite(samples.features))

    def save(self) -> str:
        processes = {str(group): _to_json(process) for group, process in self._processes.items()}
        return json.dumps({"kind": self.name, "doubt": self._doubt, "processes": processes})

    @classmethod
    def load(cls, text: str) -> GaussianProcess:
        model = cls()
        saved = parse(text, cls.name)
        model._doubt = float(saved["doubt"])
        model._processes = {int(g): _from_json(p) for g, p in saved["processes"].items()}
        return model


def fitted(features: Floats, labels: Floats) -> Process:
    """The process of the likeliest length scale and noise; `features` (n, f), `labels` (n,)."""
    from scipy.linalg import cho_solve, solve_triangular

    spread = features.std(axis=0)
    used = np.flatnonzero(spread > 1e-6)
    centre, spread = features[:, used].mean(axis=0), spread[used]
    inputs = (features[:, used] - centre) / spread
    scale = float(labels.mean()), max(float(labels.std()), 1e-9)
    targets = (labels - scale[0]) / scale[1]
    best: tuple[float, float, float, Any] | None = None
    for relative in _SCALES:
        length = relative * max(len(used) / 8, 0.125) ** 0.5
        kernel = _matern(inputs, inputs, length)
        for noise in _NOISES:
            factor = np.linalg.cholesky(kernel + (noise + 1e-8) * np.eye(len(targets)))
            whitened = solve_triangular(factor, targets, lower=True, check_finite=False)
            amplitude = max(float(whitened @ whitened) / len(targets), 1e-9)
            likelihood = -0.5 * len(targets) * np.log(amplitude) - np.log(np.diag(factor)).sum()
            if best is None or likelihood > best[0]:
                best = float(likelihood), float(length), amplitude, factor
    assert best is not None
    _, length, amplitude, factor = best
    weights = cho_solve((factor, True), targets, check_finite=False)
    return Process(used, centre, spread, inputs, factor, weights, length, amplitude, scale)


def _matern(first: Floats, second: Floats, length: float) -> Floats:
    """Matern 5/2 kernel of amplitude 1, shape (len(first), len(second))."""
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None, :]
    distance = np.sqrt(np.maximum(5.0 * (squares - 2.0 * first @ second.T), 0.0)) / length
    return np.asarray((1.0 + distance + distance**2 / 3.0) * np.exp(-distance))


def _kept(labels: Floats) -> NDArray[np.int64]:
    """Numbers of the samples to fit to: all, or the fastest half and the latest others."""
    if len(labels) <= _MOST:
        return np.arange(len(labels))
    fastest = np.argsort(labels, kind="stable")[: _MOST // 2]
    others = np.setdiff1d(np.arange(len(labels)), fastest)[-_MOST // 2 :]
    return np.sort(np.concatenate([fastest, others]))


def _finite(features: NDArray[np.float32]) -> Floats:
    return np.nan_to_num(features, nan=0.0, posinf=1e6, neginf=-1e6).astype(np.float64)


def _to_json(process: Process) -> dict[str, Any]:
    arrays = ("used", "centre", "spread", "inputs", "factor", "weights")
    plain = {name: getattr(process, name).tolist() for name in arrays}
    rest = {"length": process.length, "amplitude": process.amplitude, "scale": process.scale}
    return {**plain, **rest}


def _from_json(saved: Mapping[str, Any]) -> Process:
    arrays = ("centre", "spread", "inputs", "factor", "weights")
    columns = {name: np.array(saved[name], np.float64) for name in arrays}
    columns["inputs"] = columns["inputs"].reshape(len(columns["weights"]), -1)
    offset, deviation = saved["scale"]
    return Process(
        used=np.array(saved["used"], np.int64),
        length=float(saved["length"]),
        amplitude=float(saved["amplitude"]),
        scale=(float(offset), float(deviation)),
        **columns,
    )
