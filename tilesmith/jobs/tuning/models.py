"""Cost models in a shared database: trained on its trials, kept beside them, chosen for jobs.

Hardware's trials make a model for each machine, simulated ones a model for each family of targets;
the two are never mixed. A model is offered to jobs (active) if it ranks workloads held out better
than what a job uses without it; a job uses it on the machines of which that was found.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tilesmith.jobs.tuning.known import model_of
from tilesmith.records.database import Database
from tilesmith.records.learning import cost_models
from tilesmith.records.learning.cost_models import NewModel, StoredModel
from tilesmith.records.learning.samples import Lesson, lessons
from tilesmith.search_space.results.measure import MeasuredBy
from tilesmith.search_space.results.versions import FEATURES
from tilesmith.search_space.support.errors import DatabaseError, InputError
from tilesmith.search_space.support.json_object import JsonObject
from tilesmith.tuner.pretrained.model_corpus import Mapped, corpus, here
from tilesmith.tuner.pretrained.model_fitting import NETWORKS, TREES
from tilesmith.tuner.pretrained.model_training import FEWEST, Scores, Trained, train
from tilesmith.tuner.pretrained.pretrained import versions

_LABELS: tuple[MeasuredBy, ...] = ("hardware", "simulator")


@dataclass(frozen=True)
class _Subject:
    """What one model is for: a machine, or (target "") a family."""

    family: str
    target: str
    measured_by: MeasuredBy

    def __str__(self) -> str:
        return f"{self.target or f'every {self.family}'}, {self.measured_by}"


@dataclass(frozen=True)
class TrainingReport(JsonObject):
    """What became of one subject.

    Attributes:
        id: number of the new model; None if none was made.
        active: whether jobs are offered it.
        reason: why it was not made, or in a sentence how good it is, by target.
        left_out: why records were not learned from, by workload and target.
    """

    subject: _Subject
    id: int | None
    active: bool
    recipe: str
    trials: int
    workloads: int
    scores: dict[str, Scores]
    reason: str
    left_out: dict[str, str]


def train_models(
    database: Database,
    *,
    family: str | None = None,
    target: str | None = None,
    measured_by: MeasuredBy | None = None,
    samples: int = 400,
    mapped: Mapped = here,
) -> list[TrainingReport]:
    """Train, keep and (if they rank better) activate models of what is on record.

    Args:
        family, target, measured_by: only these; `target` is a name or an identity. A family by
            itself makes one model of all its machines for hardware, too.
        samples: trials of a workload that are learned from.
        mapped: does parts elsewhere.

    Raises:
        InputError: nothing on record is of that kind.
        DatabaseError: the database cannot be written.
    """
    reports = []
    for label in _LABELS if measured_by is None else (measured_by,):
        recorded = [
            lesson
            for lesson in lessons(database, label, family=family, most=samples)
            if target in (None, lesson.target, lesson.target.rpartition("-")[0])
        ]
        for subject, part in _subjects(
            recorded, label, family is not None and target is None, target
        ):
            reports.append(_trained(database, subject, part, mapped))
    if not reports:
        raise InputError(
            f"database '{database.name}' holds nothing to learn from: no fresh trials of this kind "
            "with at least 8 for a workload; 'tilesmith db stats' tells what it holds"
        )
    return reports


def _subjects(
    lessons: Sequence[Lesson], label: MeasuredBy, whole_family: bool, target: str | None
) -> list[tuple[_Subject, list[Lesson]]]:
    """Lessons by what a model of them is for."""
    by_target = (label == "hardware" and not whole_family) or target is not None

    def key(lesson: Lesson) -> tuple[str, str]:
        return lesson.family, lesson.target if by_target else ""

    parts = groupby(sorted(lessons, key=key), key=key)
    return [(_Subject(*names, label), list(part)) for names, part in parts]


def _trained(
    database: Database, subject: _Subject, part: Sequence[Lesson], mapped: Mapped
) -> TrainingReport:
    label = subject.measured_by
    data, left_out = corpus(part, label, mapped)
    recipes = TREES if label == "hardware" else (*TREES, NETWORKS)
    try:
        if data is None:
            raise InputError("nothing on record can be learned from")
        trained = train(data, recipes, mapped)
    except InputError as error:
        return TrainingReport(subject, None, False, "", 0, 0, {}, str(error), left_out)
    number = _kept(database, subject, trained)
    active = any(scores.better for scores in trained.scores.values())
    if active:
        cost_models.activate(database, number)
    reasons = [f"{name}: {scores.sentence}" for name, scores in trained.scores.items()]
    few = f"no machine has {FEWEST} kinds of workloads on record, so that nothing can be said of it"
    return TrainingReport(
        subject, number, active, str(trained.recipe), trained.trials,
        len({s.workload.key for s in trained.subjects}), dict(trained.scores),
        "; ".join(reasons) or few, left_out,
    )  # fmt: skip


def _kept(database: Database, subject: _Subject, trained: Trained) -> int:
    keys = sorted({lesson.workload.key for lesson in trained.subjects})
    note = {"family": subject.family, "target": subject.target, "trials": str(trained.trials)}
    new = NewModel(
        subject.family,
        subject.target,
        subject.measured_by,
        FEATURES,
        str(trained.recipe),
        trained.trials,
        keys,
        {target: scores.to_json() for target, scores in trained.scores.items()},
        trained.model.to_text(note, subject.measured_by),
    )
    return cost_models.add(database, new)


def state_of(database: Database, stored: StoredModel) -> str:
    """Whether jobs use a model, in a phrase: "active", "not active", or why it cannot be used."""
    now = versions(stored.measured_by)
    then = {**stored.toolchain.to_dict(), "features": stored.features}
    stale = [
        f"{n} was {then.get(n, 'unknown')}, is {v}" for n, v in now.items() if then.get(n) != v
    ]
    if stale:
        return f"not used: {', '.join(stale)}"
    try:
        model_of(database, stored)
    except (DatabaseError, InputError) as error:
        return f"not used: {error}"
    return "active" if stored.active else "not active"
