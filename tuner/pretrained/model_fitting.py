"""Fitting pretrained models: one function over plain arrays, that runs anywhere.

Two kinds. Networks (scikit-learn's) follow slopes beyond what they saw, which is what ranking
schedules of new workloads takes where much is known; boosted trees (xgboost's) learn from little,
and where the judge's latency is shown they learn how far from it measurements are. Squared error on
log latencies ranks unseen workloads better than a ranking objective does (docs/decisions/0055).
Deterministic: one thread, fixed seeds, so that a model is the same wherever its parts were fitted.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilesmith.tuner.pretrained.learners import Ensemble, NeuralNetwork, Trees, standardised
from tilesmith.tuner.pretrained.model_corpus import Corpus
from tilesmith.tuner.pretrained.pretrained import Learner, Pretrained
from tilesmith.tuner.surrogates.cost_model import Floats, centred, log_analytical
from tilesmith.tuner.surrogates.knob_features import KnobColumns

_NETWORKS, _HIDDEN = 4, (128, 64)
_ROWS, _PASSES, _RATE = 8_700_000, (28, 60), 2e-3
"""Schedules learned from, each time counted; least and most passes over all of them; and the rate
of learning in the first pass, which falls by a cosine."""
_SLOWEST = 3.0
"""Centred log latency above which the slow are alike."""
_FASTEST = 0.03
"""Share of a workload's schedules within which ranks count no more."""
_BRED_WEIGHT = 0.3
"""Of a bred schedule in ranks: they are many among the fastest."""
_LEAST_DEVIATION = 1e-3
"""Added to that of inputs: some never vary."""


@dataclass(frozen=True)
class FittingRecipe:
    """A way to fit a model.

    Attributes:
        depth, rounds, rate: of trees: levels, how many, and how much of each is taken.
    """

    kind: Literal["trees", "networks"]
    depth: int = 0
    rounds: int = 0
    rate: float = 0.1

    def __str__(self) -> str:
        return f"{self.rounds} trees of depth {self.depth}" if self.depth else "networks"


TREES = (FittingRecipe("trees", 6, 200, 0.05), FittingRecipe("trees", 3, 100))
NETWORKS = FittingRecipe("networks")


def fitted(data: Corpus, recipe: FittingRecipe) -> Pretrained:
    """A model of a corpus."""
    knobs = KnobColumns.met(data.configs)
    return model_of(fit(vars(recipe), data.inputs(knobs), *learned(data)), recipe, data, knobs)


def learned(data: Corpus) -> tuple[Floats, Floats, NDArray[np.int64], NDArray[np.bool_]]:
    """Beside inputs, what `fit` takes: log latencies, log analytical ones, groups, bred."""
    base = log_analytical(data.analytical)
    return np.log(data.latencies), base, data.groups, data.bred


def model_of(
    saved: Mapping[str, Any], recipe: FittingRecipe, data: Corpus, knobs: KnobColumns
) -> Pretrained:
    """The model of what `fit` gave for a corpus (or a part of it) with these knobs' columns."""
    columns = data.features.shape[1]
    width, shown = 3 * columns + knobs.width, bool(np.isfinite(data.analytical).any())
    trees = recipe.kind == "trees"
    learner: Learner = Trees.from_json(saved, width) if trees else Ensemble.from_json(saved)
    return Pretrained(learner, columns, knobs, residual=trees and shown)


def fit(
    asked: Mapping[str, Any],
    rows: NDArray[np.float32],
    logs: Floats,
    base: Floats,
    groups: NDArray[np.int64],
    bred: NDArray[np.bool_],
) -> dict[str, Any]:
    """A learner as JSON values; all arguments are plain data, since it may be done elsewhere.

    Args:
        asked: the fields of a `FittingRecipe`.
        rows: inputs, shape (n, columns).
        logs, base: log seconds as measured and as judged (zeros where that is not shown), (n,).
        groups: number of the workload, ascending; bred: as `Corpus.bred`, (n,).
    """
    recipe = FittingRecipe(**asked)
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(1):  # sums of many threads differ in their last digits
        if recipe.kind == "trees":
            return _trees(recipe, rows, centred(logs - base, groups)).to_json()
        return _ensemble(rows, logs, groups, bred).to_json()


def _trees(recipe: FittingRecipe, rows: NDArray[np.float32], labels: Floats) -> Trees:
    import xgboost

    parameters = {
        "objective": "reg:squarederror", "max_depth": recipe.depth, "eta": recipe.rate,
        "subsample": 0.8, "colsample_bytree": 0.5, "tree_method": "hist", "base_score": 0.0,
        "nthread": 1, "seed": 0, "verbosity": 0,
    }  # fmt: skip
    data = xgboost.DMatrix(rows, labels, nthread=1)
    return Trees.of_booster(xgboost.train(parameters, data, recipe.rounds))


def _ensemble(
    rows: NDArray[np.float32], logs: Floats, groups: NDArray[np.int64], bred: NDArray[np.bool_]
) -> Ensemble:
    """The mean of networks that differ in what they began from."""
    numbers = np.unique(groups)
    labels = np.concatenate([_labels(logs[groups == g], bred[groups == g]) for g in numbers])
    labels /= max(float(labels.std()), 1e-9)
    mean, deviation = rows.mean(axis=0, dtype=np.float64), rows.std(axis=0, dtype=np.float64)
    deviation += _LEAST_DEVIATION
    seen = standardised(rows, mean, deviation).astype(np.float32)
    layers = [_layers(seen, labels.astype(np.float32), seed) for seed in range(_NETWORKS)]

    def ensemble(scale: float) -> Ensemble:
        """The networks, their outputs times `scale`."""
        networks = [
            NeuralNetwork.of([*w[:-1], scale * w[-1]], [*b[:-1], scale * b[-1]]) for w, b in layers
        ]
        return Ensemble.of(mean, deviation, networks)

    scores = centred(ensemble(1.0).predict(rows), groups)
    spread = max(float((scores**2).sum()), 1e-9)
    return ensemble(float((centred(logs, groups) * scores).sum() / spread))


def _layers(
    rows: NDArray[np.float32], labels: NDArray[np.float32], seed: int
) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Weights and biases of a network's layers."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor

    network = MLPRegressor(
        hidden_layer_sizes=_HIDDEN, batch_size=min(512, len(rows)), max_iter=1, warm_start=True,
        random_state=seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # one pass at a time
        passes = int(np.clip(_ROWS / len(rows), *_PASSES))
        for done in range(passes):
            rate = _RATE * 0.5 * (1 + np.cos(np.pi * done / passes))
            network.set_params(learning_rate_init=rate).fit(rows, labels)
    return network.coefs_, network.intercepts_


def _labels(logs: Floats, bred: NDArray[np.bool_]) -> Floats:
    """What networks learn of one workload's schedules, shape (n,): how much slower than usual each
    is, and the logarithm of its rank, which tells the fast apart.
    """
    ranks = _ranks(logs, np.where(bred, _BRED_WEIGHT, 1.0))
    logs = np.minimum(logs - logs[~bred].mean(), _SLOWEST)
    return np.asarray(logs + np.log(_FASTEST + ranks))


def _ranks(latencies: Floats, weights: Floats) -> Floats:
    """The weight of what is as fast or faster, as a share of all, shape (n,); ties share a mean."""
    order = np.argsort(latencies, kind="stable")
    upto = np.empty(len(latencies))
    upto[order] = np.cumsum(weights[order])
    _, ties = np.unique(latencies, return_inverse=True)
    means = np.bincount(ties, upto) / np.bincount(ties)
    return np.asarray(means[ties] / weights.sum())
