"""Boosted trees on log latency, squared error (as AutoTVM's and Ansor's models)."""

from __future__ import annotations

from tilesmith.tuner.surrogates.boosting import Booster
from tilesmith.tuner.surrogates.cost_model import (
    CostModel,
    Floats,
    Samples,
    centred_logs,
    cost_models,
)


@cost_models.register("xgboost")
class XgboostSquared(CostModel):
    """Labels are log latencies centred on their task, so that tasks can share one model."""

    name = "xgboost"

    def __init__(self) -> None:
        self._trees = Booster(
            {"objective": "reg:squarederror", "max_depth": 6, "eta": 0.15, "subsample": 0.9}, 100
        )

    def fit(self, samples: Samples, latencies: Floats) -> None:
        self._trees.fit(samples.features, centred_logs(latencies, samples.groups))

    def predict(self, samples: Samples) -> Floats:
        return self._trees.predict(samples.features)

    def save(self) -> str:
        return self._trees.save()

    @classmethod
    def load(cls, text: str) -> XgboostSquared:
        model = cls()
        model._trees.restore(text)
        return model
