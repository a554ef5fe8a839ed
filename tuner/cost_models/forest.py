"""A random forest (scikit-learn) with an uncertainty: the spread of its trees.

Trees are kept as plain arrays after training; predictions walk them in numpy. That makes the model
storable as JSON, and one code path predicts whether it was just trained or loaded.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.tuner.surrogates.boosting import parse
from tilesmith.tuner.surrogates.cost_model import (
    CostModel,
    Floats,
    Samples,
    centred_logs,
    cost_models,
)

_TREES = 60


@dataclass(frozen=True)
class _Tree:
    """Nodes by number: a leaf has `left` -1; go left where feature <= threshold."""

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: Floats
    value: Floats

    def predict(self, features: NDArray[np.float32]) -> Floats:
        node = np.zeros(len(features), np.int64)
        active = np.arange(len(features))[self.left[node] >= 0]
        while len(active):
            at = node[active]
            lower = features[active, self.feature[at]] <= self.threshold[at]
            node[active] = np.where(lower, self.left[at], self.right[at])
            active = active[self.left[node[active]] >= 0]
        return self.value[node]

    def to_json(self) -> list[list[float]]:
        return [
            c.tolist() for c in (self.left, self.right, self.feature, self.threshold, self.value)
        ]

    @classmethod
    def from_json(cls, columns: list[list[float]]) -> "_Tree":
        left, right, feature = (np.array(column, np.int64) for column in columns[:3])
        return cls(left, right, feature, np.array(columns[3]), np.array(columns[4]))


@cost_models.register("forest")
class Forest(CostModel):
    """Mean of 60 trees on centred log latency; their standard deviation is the uncertainty."""

    name = "forest"

    def __init__(self) -> None:
        self._trees: list[_Tree] = []

    def fit(self, samples: Samples, latencies: Floats) -> None:
        from sklearn.ensemble import RandomForestRegressor

        model = RandomForestRegressor(
            _TREES, min_samples_leaf=1, max_features=0.5, random_state=0, n_jobs=1
        )
        model.fit(_finite(samples.features), centred_logs(latencies, samples.groups))
        self._trees = [_exported(estimator.tree_) for estimator in model.estimators_]

    def predict(self, samples: Samples) -> Floats:
        return np.asarray(self._each(samples).mean(axis=0))

    def uncertainty(self, samples: Samples) -> Floats:
        return np.asarray(self._each(samples).std(axis=0))

    def save(self) -> str:
        trees = [tree.to_json() for tree in self._trees]
        return json.dumps({"kind": self.name, "trees": trees})

    @classmethod
    def load(cls, text: str) -> "Forest":
        model = cls()
        model._trees = [_Tree.from_json(tree) for tree in parse(text, cls.name)["trees"]]
        return model

    def _each(self, samples: Samples) -> Floats:
        assert self._trees, "predict before fit"
        features = _finite(samples.features)
        return np.stack([tree.predict(features) for tree in self._trees])


def _finite(features: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.nan_to_num(features, nan=0.0, posinf=3e38, neginf=-3e38)


def _exported(tree: Any) -> _Tree:
    """The arrays of a scikit-learn tree."""
    return _Tree(
        np.array(tree.children_left, np.int64),
        np.array(tree.children_right, np.int64),
        np.maximum(np.array(tree.feature, np.int64), 0),
        np.array(tree.threshold, np.float64),
        np.array(tree.value[:, 0, 0], np.float64),
    )
