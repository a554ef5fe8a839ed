"""A validity classifier: how probably a configuration fails (compile, crash, timeout, wrong).

Trained on failures and successes alike; the predictor adds its log odds as a penalty, so that a
search stops proposing what keeps failing. Not a `CostModel`: its labels are not latencies.
"""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray

from tilesmith.tuner.surrogates.boosting import Booster, parse
from tilesmith.tuner.surrogates.cost_model import Floats

_FEWEST = 5
"""Failures, and successes, below which nothing is learned."""


class ValidityClassifier:
    """Boosted trees on success or failure (logistic loss)."""

    def __init__(self) -> None:
        self._trees = Booster(
            {"objective": "binary:logistic", "max_depth": 4, "eta": 0.2}, rounds=40
        )
        self._trained = False

    def fit(self, features: NDArray[np.float32], failed: NDArray[np.bool_]) -> None:
        """Learn which of `features` (n, f) failed; with too few of either kind, learn nothing."""
        self._trained = min(int(failed.sum()), int((~failed).sum())) >= _FEWEST
        if self._trained:
            self._trees.fit(features, failed.astype(np.float64))

    def failure_probability(self, features: NDArray[np.float32]) -> Floats:
        """Shape (n,); zero while too little is known."""
        return self._trees.predict(features) if self._trained else np.zeros(len(features))

    def save(self) -> str:
        trees = self._trees.save() if self._trained else ""
        return json.dumps({"kind": "validity", "trees": trees})

    @classmethod
    def load(cls, text: str) -> ValidityClassifier:
        """Undo `save`; `InputError` for other text."""
        model = cls()
        trees = parse(text, "validity")["trees"]
        model._trained = bool(trees)
        if trees:
            model._trees.restore(trees)
        return model
