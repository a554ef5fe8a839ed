"""Boosted trees with a pairwise ranking objective: only the order within a task matters."""

from typing import ClassVar

from tilesmith.tuner.surrogates.boosting import BoostedTrees
from tilesmith.tuner.surrogates.cost_model import Floats, Samples, centred_logs, cost_models


@cost_models.register("xgboost_ranking")
class XgboostRanking(BoostedTrees):
    """Maximises the pairs ordered rightly within each task (`rank:pairwise`, LambdaMART)."""

    name = "xgboost_ranking"
    parameters: ClassVar[dict[str, object]] = {
        "objective": "rank:pairwise", "max_depth": 6, "eta": 0.15,
        "lambdarank_pair_method": "mean", "lambdarank_num_pair_per_sample": 8,
    }  # fmt: skip

    def fit(self, samples: Samples, latencies: Floats) -> None:
        relevance = -centred_logs(latencies, samples.groups)
        self._trees.fit(samples.features, relevance, samples.groups)

    def predict(self, samples: Samples) -> Floats:
        return -super().predict(samples)
