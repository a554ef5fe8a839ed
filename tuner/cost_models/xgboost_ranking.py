"""Boosted trees with a pairwise ranking objective: only the order within a task matters."""

from __future__ import annotations

from tilesmith.tuner.surrogates.boosting import Booster
from tilesmith.tuner.surrogates.cost_model import (
    CostModel,
    Floats,
    Samples,
    centred_logs,
    cost_models,
)


@cost_models.register("xgboost_ranking")
class XgboostRanking(CostModel):
    """Maximises the pairs ordered rightly within each task (`rank:pairwise`, LambdaMART)."""

    name = "xgboost_ranking"

    def __init__(self) -> None:
        self._trees = Booster(
            {
                "objective": "rank:pairwise",
                "max_depth": 6,
                "eta": 0.15,
                "lambdarank_pair_method": "mean",
                "lambdarank_num_pair_per_sample": 8,
            },
            100,
        )

    def fit(self, samples: Samples, latencies: Floats) -> None:
        relevance = -centred_logs(latencies, samples.groups)
        self._trees.fit(samples.features, relevance, samples.groups)

    def predict(self, samples: Samples) -> Floats:
        return -self._trees.predict(samples.features)

    def save(self) -> str:
        return self._trees.save()

    @classmethod
    def load(cls, text: str) -> XgboostRanking:
        model = cls()
        model._trees.restore(text)
        return model
