"""An ensemble: squared-error trees, ranking trees and the forest vote by rank.

Scores of different objectives have no common scale, so each member's scores are standardised over
the samples asked about, and averaged. The uncertainty is how far the members disagree.
"""

import json

import numpy as np

from tilesmith.tuner.cost_models.forest import Forest
from tilesmith.tuner.cost_models.xgboost_ranking import XgboostRanking
from tilesmith.tuner.cost_models.xgboost_squared import XgboostSquared
from tilesmith.tuner.surrogates.boosting import parse
from tilesmith.tuner.surrogates.cost_model import CostModel, Floats, Samples, cost_models

_MEMBERS: tuple[type[CostModel], ...] = (XgboostSquared, XgboostRanking, Forest)


@cost_models.register("ensemble")
class _Ensemble(CostModel):
    """See the module's docstring."""

    name = "ensemble"

    def __init__(self) -> None:
        self._members = [member() for member in _MEMBERS]

    def fit(self, samples: Samples, latencies: Floats) -> None:
        for member in self._members:
            member.fit(samples, latencies)

    def predict(self, samples: Samples) -> Floats:
        return np.asarray(self._votes(samples).mean(axis=0))

    def uncertainty(self, samples: Samples) -> Floats:
        return np.asarray(self._votes(samples).std(axis=0))

    def save(self) -> str:
        return json.dumps({"kind": self.name, "members": [m.save() for m in self._members]})

    @classmethod
    def load(cls, text: str) -> "_Ensemble":
        model = cls()
        saved = parse(text, cls.name)["members"]
        pairs = zip(_MEMBERS, saved, strict=True)
        model._members = [member.load(part) for member, part in pairs]
        return model

    def _votes(self, samples: Samples) -> Floats:
        scores = np.stack([member.predict(samples) for member in self._members])
        spread = np.maximum(scores.std(axis=1, keepdims=True), 1e-12)
        return np.asarray((scores - scores.mean(axis=1, keepdims=True)) / spread)
