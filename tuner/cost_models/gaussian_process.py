"""A Gaussian process, one a task: few measurements, honest doubt.

Trees cannot extrapolate: they never score anything below the best leaf they have seen. A process
with a smooth kernel can, and says how unsure it is, which is what a search needs that is to find
the one good corner of a space. Its inputs are the program features and the knobs, all standardised:
configurations far apart in knobs may come to the same program, and programs that look alike may
differ in what only a knob tells. Kernel: Matern 5/2 with one length scale for the features and one
for the knobs; both and the noise are chosen from grids by marginal likelihood, one after another
(Rasmussen and Williams, 2006, ch. 5), the amplitude in closed form. Written out in numpy because
scikit-learn's optimiser takes a hundred times as long. Up to `_MOST` samples a task are used: the
fastest half and the latest.

By itself the model learns latencies as `compressed` gives them: what is slow is told apart less, so
that the process spends its flexibility where a search looks.

Samples of a task it was not fitted to get score 0 and the spread of the labels as doubt.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.tuner.surrogates.boosting import parse
from tilesmith.tuner.surrogates.compression import Compression
from tilesmith.tuner.surrogates.cost_model import CostModel, Floats, Joint, Samples, cost_models

_MOST = 256
_SCALES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Length scales tried, in units of sqrt(columns / 8)."""
_NO_MATTER = 1e3
"""A length scale at which the knobs do not matter."""
_NOISES = (1e-4, 1e-2)
"""Noise variances tried, relative to the amplitude."""
_FEWEST = 3


@dataclass(frozen=True)
class Process:
    """A fitted process of one task.

    Attributes:
        used: numbers of the input columns that vary.
        centre, spread: mean of those columns, and their deviation times the length scale.
        inputs: scaled inputs, shape (n, used).
        factor: lower Cholesky factor of the kernel matrix over the amplitude, (n, n).
        weights: kernel matrix inverse times the labels, (n,).
        amplitude: of the kernel.
        scale: of the labels: (mean, deviation).
    """

    used: NDArray[np.int64]
    centre: Floats
    spread: Floats
    inputs: Floats
    factor: Floats
    weights: Floats
    amplitude: float
    scale: tuple[float, float]

    def estimate(self, rows: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation, each shape (n,)."""
        joint = self.joint(rows)
        return joint.mean, joint.deviation

    def joint(self, rows: Floats) -> Joint:
        """All of `rows` (n, columns) as one distribution."""
        from scipy.linalg import solve_triangular

        asked = (rows[:, self.used] - self.centre) / self.spread
        kernel = _matern(_squares(asked, self.inputs))
        reduced = solve_triangular(self.factor, kernel.T, lower=True, check_finite=False)
        variance = self.amplitude * np.maximum(1.0 - (reduced**2).sum(axis=0), 1e-9)
        offset, deviation = self.scale

        def covariance(number: int) -> Floats:
            prior = _matern(_squares(asked[number : number + 1], asked))[0]
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
        compression = Compression.of(latencies, samples.groups)
        self.fit_labels(samples, compression.labels(latencies, samples.groups))

    def fit_labels(self, samples: Samples, labels: Floats) -> None:
        """Learn any labels, shape (n,), as they are."""
        self._doubt = max(float(labels.std()), 1e-3)
        self._processes = {}
        rows = _rows(samples)
        for group in np.unique(samples.groups).tolist():
            mine = np.flatnonzero(samples.groups == group)
            chosen = mine[_kept(labels[mine])]
            if len(chosen) >= _FEWEST:
                features = samples.features.shape[1]
                self._processes[group] = fitted(rows[chosen], labels[chosen], features)

    def predict(self, samples: Samples) -> Floats:
        return self.estimate(samples)[0]

    def uncertainty(self, samples: Samples) -> Floats:
        return self.estimate(samples)[1]

    def estimate(self, samples: Samples) -> tuple[Floats, Floats]:
        """Scores and their standard deviations, each shape (n,)."""
        mean, doubt = np.zeros(len(samples)), np.full(len(samples), self._doubt)
        rows = _rows(samples)
        for group in np.unique(samples.groups).tolist():
            if group in self._processes:
                mine = samples.groups == group
                mean[mine], doubt[mine] = self._processes[group].estimate(rows[mine])
        return mean, doubt

    def joint(self, samples: Samples) -> Joint:
        groups = np.unique(samples.groups).tolist()
        if len(groups) != 1 or groups[0] not in self._processes:
            return super().joint(samples)
        return self._processes[groups[0]].joint(_rows(samples))

    def save(self) -> str:
        processes = {str(group): _to_json(process) for group, process in self._processes.items()}
        return json.dumps({"kind": self.name, "doubt": self._doubt, "processes": processes})

    @classmethod
    def load(cls, text: str) -> "GaussianProcess":
        model = cls()
        saved = parse(text, cls.name)
        model._doubt = float(saved["doubt"])
        model._processes = {int(g): _from_json(p) for g, p in saved["processes"].items()}
        return model


@dataclass
class _Fit:
    """A choice of length scales and noise, and how likely it makes the labels."""

    likelihood: float
    amplitude: float
    factor: Floats


def fitted(rows: Floats, labels: Floats, features: int) -> Process:
    """The likeliest process found; `rows` (n, columns), the first `features` of them program
    features, the others knobs; `labels` (n,).
    """
    from scipy.linalg import cho_solve

    deviation = rows.std(axis=0)
    used = np.flatnonzero(deviation > 1e-6)
    centre, spread = rows[:, used].mean(axis=0), deviation[used]
    inputs = (rows[:, used] - centre) / spread
    scale = float(labels.mean()), max(float(labels.std()), 1e-9)
    targets = (labels - scale[0]) / scale[1]
    knob = used >= features
    units = [max(int(part.sum()) / 8, 0.125) ** 0.5 for part in (~knob, knob)]
    squares = [_squares(inputs[:, part], inputs[:, part]) for part in (~knob, knob)]

    def tried(first: float, second: float, noise: float) -> _Fit:
        apart = squares[0] / (first * units[0]) ** 2 + squares[1] / (second * units[1]) ** 2
        return _fit(_matern(apart), targets, noise)

    (first, second, _), fit = _likeliest(tried, both=bool(knob.any() and not knob.all()))
    lengths = np.where(knob, second * units[1], first * units[0])
    weights = cho_solve((fit.factor, True), targets, check_finite=False)
    return Process(
        used, centre, spread * lengths, inputs / lengths, fit.factor, weights,
        fit.amplitude, scale,
    )  # fmt: skip


Choice = tuple[float, float, float]


def _likeliest(tried: Callable[..., _Fit], both: bool) -> tuple[Choice, _Fit]:
    """Length scales of features and knobs, and noise: a common scale first, then each by itself."""
    noise = _NOISES[0]
    fits = {(scale, scale, noise): tried(scale, scale, noise) for scale in _SCALES}

    def improve(choices: Iterable[Choice]) -> Choice:
        for choice in choices:
            if choice not in fits:
                fits[choice] = tried(*choice)
        return max(fits, key=lambda choice: fits[choice].likelihood)

    best = improve(())
    if both:
        best = improve([(best[0], scale, noise) for scale in (*_SCALES, _NO_MATTER)])
        best = improve([(scale, best[1], noise) for scale in _SCALES])
    best = improve([(*best[:2], other) for other in _NOISES])
    return best, fits[best]


def _fit(kernel: Floats, targets: Floats, noise: float) -> _Fit:
    from scipy.linalg import solve_triangular

    factor = np.asarray(np.linalg.cholesky(kernel + (noise + 1e-8) * np.eye(len(targets))))
    whitened = solve_triangular(factor, targets, lower=True, check_finite=False)
    amplitude = max(float(whitened @ whitened) / len(targets), 1e-9)
    likelihood = -0.5 * len(targets) * np.log(amplitude) - np.log(np.diag(factor)).sum()
    return _Fit(float(likelihood), amplitude, factor)


def _squares(first: Floats, second: Floats) -> Floats:
    """Squared distances, shape (len(first), len(second))."""
    norms = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None, :]
    return np.asarray(np.maximum(norms - 2.0 * first @ second.T, 0.0))


def _matern(squares: Floats) -> Floats:
    """Matern 5/2 kernel of amplitude and length 1."""
    distance = np.sqrt(5.0 * squares)
    return np.asarray((1.0 + distance + distance**2 / 3.0) * np.exp(-distance))


def _kept(labels: Floats) -> NDArray[np.int64]:
    """Numbers of the samples to fit to: all, or the fastest half and the latest others."""
    if len(labels) <= _MOST:
        return np.arange(len(labels))
    fastest = np.argsort(labels, kind="stable")[: _MOST // 2]
    others = np.setdiff1d(np.arange(len(labels)), fastest)[-_MOST // 2 :]
    return np.sort(np.concatenate([fastest, others]))


def _rows(samples: Samples) -> Floats:
    """Features and knobs side by side, finite."""
    rows = np.nan_to_num(samples.features, nan=0.0, posinf=1e6, neginf=-1e6)
    if samples.knobs is not None:
        rows = np.hstack([rows, samples.knobs])
    return rows.astype(np.float64)


def _to_json(process: Process) -> dict[str, Any]:
    arrays = ("used", "centre", "spread", "inputs", "factor", "weights")
    plain = {name: getattr(process, name).tolist() for name in arrays}
    return {**plain, "amplitude": process.amplitude, "scale": process.scale}


def _from_json(saved: Mapping[str, Any]) -> Process:
    arrays = ("centre", "spread", "inputs", "factor", "weights")
    columns = {name: np.array(saved[name], np.float64) for name in arrays}
    columns["inputs"] = columns["inputs"].reshape(len(columns["weights"]), -1)
    offset, deviation = saved["scale"]
    return Process(
        used=np.array(saved["used"], np.int64),
        amplitude=float(saved["amplitude"]),
        scale=(float(offset), float(deviation)),
        **columns,
    )
