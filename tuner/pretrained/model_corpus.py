"""What pretrained models learn from: measured schedules of many workloads, as a job sees them.

`corpus` makes it from lessons of a tuning database. A row's features are those that a job's model
would be shown: where the judge measures what is learned, nothing that tells the label. Workloads
are dealt into folds by kin, so that a model is never tested on a shape it was trained on in another
precision or with another epilogue.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.programs.structures import space_of
from tilesmith.records.learning.samples import Lesson
from tilesmith.records.trials.toolchain import calibration_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge, judges_as_measured
from tilesmith.tuner.pretrained.pretrained import Pretrained, inputs, reference, usual
from tilesmith.tuner.surrogates.cost_model import Floats
from tilesmith.tuner.surrogates.knob_features import KnobColumns
from tilesmith.tuner.tasks.feature_source import JudgedFeatures
from tilesmith.tuner.tasks.task import TuningState, TuningTask

FOLDS = 5
"""Parts that workloads are dealt into."""


@dataclass(frozen=True)
class Subject:
    """Which workload, on which target (identity), with how many threads."""

    workload: Workload
    target: str
    threads: int = 1

    @property
    def kin(self) -> str:
        """The operator and its extents: equal for workloads that differ in types, layouts, epilogue
        or which operands are constant or transposed.
        """
        extents = [f"{n}={v}" for n, v in self.workload.parameters if isinstance(v, int) and v > 1]
        return " ".join([self.workload.operator, *extents])


@dataclass(frozen=True)
class Corpus:
    """Measured schedules of many workloads.

    Attributes:
        features: shape (n, f).
        configs: the schedules, n.
        latencies: as measured, seconds, shape (n,).
        analytical: as judged, where a model may see that, else NaN, shape (n,).
        groups: number of the subject, ascending, shape (n,).
        bred: whether bred over generations, and so no fair sample to test on, shape (n,).
        usually: what features are compared with, shape (2, f), by group.
        subjects: by group; empty where nobody asks.
    """

    features: NDArray[np.float32]
    configs: Sequence[Config]
    latencies: Floats
    analytical: Floats
    groups: NDArray[np.int64]
    bred: NDArray[np.bool_]
    usually: Mapping[int, NDArray[np.float32]]
    subjects: Mapping[int, Subject]

    def of(self, chosen: NDArray[np.bool_]) -> "Corpus":
        configs = [config for config, taken in zip(self.configs, chosen, strict=True) if taken]
        return Corpus(
            self.features[chosen], configs, self.latencies[chosen], self.analytical[chosen],
            self.groups[chosen], self.bred[chosen], self.usually, self.subjects,
        )  # fmt: skip

    def drawn(self) -> "Corpus":
        """Return the trials whose configurations were drawn at random, not bred."""
        return self.of(~self.bred)

    def by_workload(self) -> "Iterator[Corpus]":
        for group in np.unique(self.groups):
            yield self.of(self.groups == group)

    def predicted(self, model: Pretrained) -> Floats:
        """What a model says of (one workload's) schedules, shape (n,)."""
        usually = self.usually[int(self.groups[0])]
        return model.predict(self.features, usually, self.configs, self.analytical)

    def inputs(self, knobs: KnobColumns) -> NDArray[np.float32]:
        """Return the learner's inputs for all trials, shape (n, 3 f + knobs)."""
        rows = knobs.rows(self.configs)
        parts = [self.groups == group for group in np.unique(self.groups)]
        return np.concatenate(
            [
                inputs(self.features[mine], self.usually[int(self.groups[mine][0])], rows[mine])
                for mine in parts
            ]
        )

    def folds(self, count: int = FOLDS) -> NDArray[np.int64]:
        """The fold of each row, shape (n,): kin together, every operator's kin dealt to all."""
        kin = {group: self.subjects[group].kin for group in np.unique(self.groups).tolist()}
        dealt = {name: number % count for number, name in enumerate(sorted(set(kin.values())))}
        return np.array([dealt[kin[group]] for group in self.groups.tolist()], np.int64)


def judged(asked: Mapping[str, Any], measured_by: MeasuredBy) -> dict[str, Any] | str:
    """A lesson as a job's model sees it, or why nothing can be learned from it; plain data both
    ways, since it may be done elsewhere.

    Args:
        asked: the fields of a `Lesson`, samples as pairs.
    """
    try:
        return _judged(asked, measured_by)
    except TilesmithError as error:
        return str(error)
    except (KeyError, TypeError, ValueError) as error:  # what others wrote into a shared database
        return f"its records are damaged ({type(error).__name__})"


def _judged(asked: Mapping[str, Any], measured_by: MeasuredBy) -> dict[str, Any] | str:
    if not asked["facts"]:
        return f"nothing is known of its target '{asked['target']}'"
    target, workload = Target.from_json(asked["facts"]), Workload.parse(asked["workload"])
    if measured_by == "simulator" and asked["calibration"] != calibration_of(target):
        return f"target '{asked['target']}' was calibrated anew"
    space = space_of(workload, target)
    shown = measured_by == "hardware" or not judges_as_measured(target)
    source = JudgedFeatures(judge, target, shown)
    rng = np.random.default_rng(0)
    state = TuningState(TuningTask(workload), space, Config(()), measured_by, rng)
    samples = {Config.from_json(config): latency for config, latency in asked["samples"]}
    configs = [config for config in samples if config in space]
    if not configs:
        return "none of its configurations is legal any more"
    others = space.breeder.decode(reference(space, workload))
    usually = usual(source.describe(state, others).features)
    known = source.describe(state, configs)
    latencies = np.array([samples[config] for config in configs])
    good = ~known.rejected & np.isfinite(latencies) & (latencies > 0)
    return {
        "features": known.features[good],
        "configs": [dict(config) for config, fine in zip(configs, good, strict=True) if fine],
        "latencies": latencies[good],
        "analytical": known.analytical[good],
        "usually": usually,
    }


Mapped = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], Iterable[Any]]
"""Calls a function with each tuple of arguments, anywhere; the answers in the order asked for."""


def here(function: Callable[..., Any], asked: Sequence[tuple[Any, ...]]) -> Iterable[Any]:
    """One after another, in this process."""
    return (function(*arguments) for arguments in asked)


def corpus(
    lessons: Iterable[Lesson], measured_by: MeasuredBy, mapped: Mapped = here
) -> tuple[Corpus | None, dict[str, str]]:
    """All lessons as one corpus (None: nothing is left), and by workload why some were left out."""
    asked = list(lessons)
    plain = [
        ({**lesson._asdict(), "samples": [tuple(s) for s in lesson.samples]}, measured_by)
        for lesson in asked
    ]
    kept: list[tuple[Lesson, dict[str, Any]]] = []
    left_out: dict[str, str] = {}
    for lesson, part in zip(asked, mapped(judged, plain), strict=True):
        if isinstance(part, str):
            left_out[f"{lesson.workload} on {lesson.target}"] = part
        elif len(part["configs"]) > 1:
            kept.append((lesson, part))
    widths = [part["features"].shape[1] for _, part in kept]
    usual_width = max(set(widths), key=lambda width: (widths.count(width), width), default=0)
    kept = [pair for pair in kept if pair[1]["features"].shape[1] == usual_width]
    return _joined(kept) if kept else None, left_out


def _joined(judged: Sequence[tuple[Lesson, Mapping[str, Any]]]) -> Corpus:
    """Judged lessons as one corpus."""
    names = ("features", "latencies", "analytical")
    columns = {name: np.concatenate([part[name] for _, part in judged]) for name in names}
    sizes = [len(part["configs"]) for _, part in judged]
    return Corpus(
        configs=[Config.of(config) for _, part in judged for config in part["configs"]],
        groups=np.repeat(np.arange(len(judged)), sizes),
        bred=np.zeros(sum(sizes), np.bool_),
        usually={number: part["usually"] for number, (_, part) in enumerate(judged)},
        subjects={
            number: Subject(Workload.parse(lesson.workload), lesson.target, lesson.threads)
            for number, (lesson, _) in enumerate(judged)
        },
        **columns,
    )
