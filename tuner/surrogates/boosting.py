"""What the xgboost cost models share: one thread, fixed seed, models as JSON text."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.support.errors import InputError
from tilesmith.tuner.surrogates.cost_model import CostModel, Floats, Samples

_COMMON: Mapping[str, Any] = {"nthread": 1, "seed": 0, "verbosity": 0, "tree_method": "hist"}


class Booster:
    """Gradient-boosted trees of fixed parameters.

    Args:
        parameters: xgboost's training parameters.
        rounds: number of trees.
    """

    def __init__(self, parameters: Mapping[str, Any], rounds: int) -> None:
        self._parameters = {**_COMMON, **parameters}
        self._rounds = rounds
        self._booster: Any = None

    def fit(
        self,
        features: NDArray[np.float32],
        labels: NDArray[np.float64],
        groups: NDArray[np.int64] | None = None,
    ) -> None:
        """Train from scratch; `groups` are query numbers for a ranking objective (sorted here)."""
        import xgboost

        data = xgboost.DMatrix(_finite(features), labels, nthread=1)
        if groups is not None:
            order = np.argsort(groups, kind="stable")
            data = xgboost.DMatrix(
                _finite(features[order]), labels[order], qid=groups[order], nthread=1
            )
        self._booster = xgboost.train(self._parameters, data, self._rounds)

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        assert self._booster is not None, "predict before fit"
        return np.asarray(self._booster.inplace_predict(_finite(features)), np.float64)

    def save(self) -> str:
        assert self._booster is not None, "save before fit"
        return bytes(self._booster.save_raw("json")).decode()

    def restore(self, text: str) -> None:
        """Undo `save`; `InputError` for other text."""
        import xgboost

        booster = xgboost.Booster({"nthread": 1})
        try:
            json.loads(text)
            booster.load_model(bytearray(text.encode()))
        except (json.JSONDecodeError, xgboost.core.XGBoostError) as error:
            raise InputError(f"not a saved xgboost model: {text[:40]!r}") from error
        self._booster = booster


class BoostedTrees(CostModel):
    """A cost model of 100 boosted trees; a subclass sets the booster's `parameters`."""

    parameters: ClassVar[Mapping[str, Any]]

    def __init__(self) -> None:
        self._trees = Booster(self.parameters, 100)

    def predict(self, samples: Samples) -> Floats:
        return self._trees.predict(samples.features)

    def save(self) -> str:
        return self._trees.save()

    @classmethod
    def load(cls, text: str) -> Self:
        model = cls()
        model._trees.restore(text)
        return model


def _finite(features: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.ascontiguousarray(np.nan_to_num(features, posinf=3e38, neginf=-3e38), np.float32)


def parse(text: str, kind: str) -> dict[str, Any]:
    """A saved model's JSON object of one kind; `InputError` for anything else."""
    try:
        saved = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"not a saved cost model: {text[:40]!r}") from error
    if not isinstance(saved, dict) or saved.get("kind") != kind:
        raise InputError(f"not a saved cost model of kind '{kind}': {text[:40]!r}")
    return saved
