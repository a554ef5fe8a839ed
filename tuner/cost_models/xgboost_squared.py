"""Boosted trees on log latency, squared error (as AutoTVM's and Ansor's models)."""

from typing import ClassVar

from tilesmith.tuner.surrogates.boosting import BoostedTrees
from tilesmith.tuner.surrogates.cost_model import Floats, Samples, centred_logs, cost_models


@cost_models.register("xgboost")
class XgboostSquared(BoostedTrees):
    """Labels are log latencies centred on their task, so that tasks can share one model."""

    name = "xgboost"
    parameters: ClassVar[dict[str, object]] = {
        "objective": "reg:squarederror", "max_depth": 6, "eta": 0.15, "subsample": 0.9,
    }  # fmt: skip

    def fit(self, samples: Samples, latencies: Floats) -> None:
        self._trees.fit(samples.features, centred_logs(latencies, samples.groups))
