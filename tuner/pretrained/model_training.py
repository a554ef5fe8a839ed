"""Training a pretrained model on recorded trials, and finding out whether it is of use.

Every recipe is fitted to all folds but one, and asked about that one: workloads whose kin it has
not seen. Which recipe is best is decided, for each fold, by the other folds, so that what is said
of the choice is not flattered by it. Beside the model, what a job uses without it is asked about
the same trials. Then the best recipe is fitted to everything.

Invariant: the same trials give the same model, whoever fits its parts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.support.errors import InputError
from tilesmith.tuner.pretrained.model_corpus import FOLDS, Corpus, Mapped, Subject, here
from tilesmith.tuner.pretrained.model_fitting import FittingRecipe, fit, learned, model_of
from tilesmith.tuner.pretrained.pretrained import Pretrained
from tilesmith.tuner.surrogates.cost_model import Floats, rank_agreement
from tilesmith.tuner.surrogates.knob_features import KnobColumns

FEWEST = 4
"""Kinds of workloads that a machine must have on record, before anything is said of it."""
_SURE = 1.0
"""Standard errors by which a model has to rank better."""
_PICKED = (1, 8)
"""Of a ranking's first so many, the fastest counts."""
_NO_WORSE = 0.005
"""Regret among the first eight that a better ranking may cost."""


@dataclass(frozen=True)
class Quality:
    """How well a workload's trials were ranked.

    Attributes:
        accuracy: share of pairs in the right order.
        regret_1, regret_8: how much slower than the best on record the fastest of the first one,
            or eight, is: 0.05 is 5 %.
    """

    accuracy: float
    regret_1: float
    regret_8: float

    @classmethod
    def of(cls, scores: Floats, latencies: Floats) -> "Quality":
        order = latencies[np.argsort(scores, kind="stable")]
        accuracy = rank_agreement(scores, latencies, np.zeros(len(scores), np.int64))
        regrets = (float(order[:k].min() / order.min() - 1) for k in _PICKED)
        return cls(accuracy, *regrets)

    @classmethod
    def of_chance(cls, latencies: Floats) -> "Quality":
        """What drawing comes to, on average: the k-th fastest of n is the best of m drawn with
        probability C(n - k, m - 1) / C(n, m).
        """
        order, regrets = np.sort(latencies), []
        for picked in _PICKED:
            left, total = 1.0, 0.0
            for place, latency in enumerate(order.tolist()):
                chance = min(1.0, picked / (len(order) - place))
                total, left = total + left * chance * latency, left * (1 - chance)
            regrets.append(float(total / order[0] - 1))
        return cls(0.5, *regrets)

    @classmethod
    def mean(cls, of: "Sequence[Quality]") -> "Quality":
        return cls(*(float(np.mean([getattr(q, n) for q in of])) for n in _NAMES))

    def to_json(self) -> dict[str, float]:
        return {name: round(getattr(self, name), 4) for name in _NAMES}


_NAMES = ("accuracy", "regret_1", "regret_8")


@dataclass(frozen=True)
class Scores:
    """What held-out workloads of one machine say of a model.

    Attributes:
        workloads: kinds of them.
        model: the model's ranking.
        others: those of what there is without it, by name: "analytical", "none".
        instead: which of these a job uses without the model.
        better: whether the model ranks better than that.
    """

    workloads: int
    model: Quality
    others: Mapping[str, Quality]
    instead: str
    better: bool

    @property
    def sentence(self) -> str:
        """What people want to know."""
        other = self.others[self.instead]
        word = "better than" if self.better else "no better than"
        return (
            f"on {self.workloads} kinds of held-out workloads it ranks {word} '{self.instead}': "
            f"{self.model.accuracy:.1%} of pairs ({other.accuracy:.1%}), the best of its first "
            f"eight {self.model.regret_8:.1%} from the best ({other.regret_8:.1%})"
        )

    def to_json(self) -> dict[str, Any]:
        others = {name: quality.to_json() for name, quality in self.others.items()}
        return {**vars(self), "model": self.model.to_json(), "others": others}


@dataclass(frozen=True)
class Trained:
    """A pretrained model, and how well it ranks.

    Attributes:
        recipe: how it was fitted.
        scores: by target identity; targets with too few workloads are missing.
        subjects: workloads on targets that it was fitted to; `trials` counts their trials.
    """

    model: Pretrained
    recipe: FittingRecipe
    scores: Mapping[str, Scores]
    subjects: Sequence[Subject]
    trials: int


def train(
    data: Corpus,
    recipes: Sequence[FittingRecipe],
    mapped: Mapped = here,
) -> Trained:
    """The best recipe fitted to all of `data`, and its scores on workloads held out.

    Args:
        mapped: fits parts elsewhere.

    Raises:
        InputError: there are too few workloads to hold any out.
    """
    subjects = [data.subjects[group] for group in np.unique(data.groups).tolist()]
    kinds = len({subject.kin for subject in subjects})
    if kinds < FEWEST:
        raise InputError(
            f"trials of {kinds} kinds of workloads are too few to learn from and to test on; tune "
            f"{FEWEST} or more first"
        )
    knobs, folds = KnobColumns.met(data.configs), data.folds(min(FOLDS, kinds))
    rows, labels, numbers = data.inputs(knobs), learned(data), np.unique(folds).tolist()
    parts: list[NDArray[np.bool_]] = [folds != number for number in numbers]
    parts.append(np.ones(len(folds), np.bool_))
    jobs = [(recipe, part) for recipe in recipes for part in parts]
    asked = [
        (vars(recipe), rows[part], *(column[part] for column in labels)) for recipe, part in jobs
    ]
    models = [
        model_of(saved, recipe, data, knobs)
        for saved, (recipe, _) in zip(mapped(fit, asked), jobs, strict=True)
    ]
    wholes = models[len(numbers) :: len(parts)]
    held_out: list[dict[int, Quality]] = []
    for first in range(0, len(models), len(parts)):
        qualities: dict[int, Quality] = {}
        for number, model in zip(numbers, models[first : first + len(numbers)], strict=True):
            qualities |= _qualities(data.of(folds == number), model)
        held_out.append(qualities)
    fold_of = dict(zip(data.groups.tolist(), folds.tolist(), strict=True))
    chosen = {n: _best([{g: q for g, q in fold.items() if fold_of[g] != n} for fold in held_out])
              for n in numbers}  # fmt: skip
    fair = {group: held_out[chosen[fold]][group] for group, fold in fold_of.items()}
    best = _best(held_out)
    scores = _scores(data, fair)
    return Trained(wholes[best], recipes[best], scores, subjects, len(data.groups))


def _best(held_out: Sequence[Mapping[int, Quality]]) -> int:
    """Number of the recipe that gets most pairs right."""
    means = [Quality.mean(list(qualities.values())) for qualities in held_out]
    return max(range(len(means)), key=lambda n: (means[n].accuracy, -n))


def _qualities(data: Corpus, model: Pretrained) -> dict[int, Quality]:
    return {
        int(part.groups[0]): Quality.of(part.predicted(model), part.latencies)
        for part in data.by_workload()
    }


def _scores(data: Corpus, fair: Mapping[int, Quality]) -> dict[str, Scores]:
    """Of every target with enough workloads."""
    others: dict[str, dict[int, Quality]] = {"none": {}}
    for part in data.by_workload():
        group = int(part.groups[0])
        others["none"][group] = Quality.of_chance(part.latencies)
        if np.isfinite(part.analytical).all():
            others.setdefault("analytical", {})[group] = Quality.of(part.analytical, part.latencies)
    instead = "analytical" if "analytical" in others else "none"
    scores = {}
    for target in sorted({subject.target for subject in data.subjects.values()}):
        groups = [g for g, subject in data.subjects.items() if subject.target == target]
        groups = [group for group in groups if group in others[instead]]
        if len({data.subjects[group].kin for group in groups}) >= FEWEST:
            scores[target] = _compared(data, groups, fair, others, instead)
    return scores


def _compared(
    data: Corpus,
    groups: Sequence[int],
    fair: Mapping[int, Quality],
    others: Mapping[str, Mapping[int, Quality]],
    instead: str,
) -> Scores:
    """The scores of one target; each kind of workload counts once."""

    def by_kin(of: Mapping[int, Quality]) -> list[Quality]:
        kin: dict[str, list[Quality]] = {}
        for group in groups:
            kin.setdefault(data.subjects[group].kin, []).append(of[group])
        return [Quality.mean(qualities) for qualities in kin.values()]

    ours = by_kin(fair)
    theirs = {n: by_kin(of) for n, of in others.items() if all(group in of for group in groups)}
    gains = np.array([a.accuracy - b.accuracy for a, b in zip(ours, theirs[instead], strict=True)])
    model, other = Quality.mean(ours), Quality.mean(theirs[instead])
    doubt = float(gains.std(ddof=1)) / len(gains) ** 0.5
    sure = float(gains.mean()) > _SURE * doubt
    better = sure and model.regret_8 <= other.regret_8 + _NO_WORSE
    means = {name: Quality.mean(qualities) for name, qualities in theirs.items()}
    return Scores(len(ours), model, means, instead, better)
