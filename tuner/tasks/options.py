"""What a tuning job may be told, how far it is, and what it found, also inside the whole model."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tilesmith.records.trials.counting import TrialCounts
from tilesmith.records.trials.record import WorkerReport
from tilesmith.search_space.results.gain import Gain, gain_of
from tilesmith.search_space.results.measure import MeasuredBy
from tilesmith.search_space.results.origin import Origin
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.tasks.task import Layouts


@dataclass(frozen=True)
class ModelParts:
    """What a model is made up of, in seconds.

    Attributes:
        alone_s: sum of what its kernels take as trials measured them, each alone.
        in_place_s: what the same kernels take where they stand.
        added_s: what is in the model beside them: conversions of layouts, schedules in layouts
            that no trial measured.
    """

    alone_s: float
    in_place_s: float
    added_s: float


@dataclass(frozen=True)
class InPlace:
    """What re-ranking came to.

    Attributes:
        choices: schedules that make the model faster than the best on record do.
        before_s, after_s: seconds of the model without and with them; None if nothing was compared.
        compared: candidates tried in place.
        untuned_s: seconds of the model without any tuning, in turns with the tuned one; None if
            that was not compared.
        reverted: workloads that are pinned to their untuned schedule: the model is faster so.
        parts: what the model comes to by its parts; None if that is not known.
    """

    choices: dict[Workload, Config] = field(default_factory=dict)
    before_s: float | None = None
    after_s: float | None = None
    compared: int = 0
    untuned_s: float | None = None
    reverted: frozenset[Workload] = frozenset()
    parts: ModelParts | None = None


NOTHING = InPlace()


DRIFT_LIMIT = 0.03
"""Relative change of a baseline kernel's time above which a machine counts as unsteady."""

Ending = Literal["finished", "cancelled"]


@dataclass(frozen=True)
class TuneOptions:
    """Settings of a job.

    Attributes:
        trials: measurements of the job's last runner, all tasks together; None: no limit.
        time_limit_s: seconds for the whole job, publishing included; None: no limit.
        early_stopping: a task ends after so many trials without improvement; None: never.
        seed: of all randomness.
        strategy, scheduler: registered names.
        cost_model: registered name; "" chooses by the way of measuring.
        screening_trials: simulated trials a task gets before hardware measures it.
        layout_trials: trials every promising layout pair of a task gets at least.
        in_flight: rounds under way while the results of one are waited for; a proposal knows the
            results of all before those. Trials depend on it, and a job is resumed with the same.
            None: as many as the runner likes; what measures elsewhere needs as many as keep it
            busy.
        choosing: of the rounds in flight, how many may be chosen at once, by whoever the runner
            knows for that; 0: each is chosen here, knowing all before it. As for `in_flight`.
        rivals: top candidates measured again in turns before one is published.
        started: when the caller began to prepare the job (`time.monotonic`), which its time limit
            counts from; None: when it is handed over.
    """

    trials: int | None = 1000
    time_limit_s: float | None = None
    early_stopping: int | None = None
    seed: int = 0
    strategy: str = "evolutionary"
    scheduler: str = "expected_gain"
    cost_model: str = ""
    screening_trials: int = 64
    layout_trials: int = 3
    in_flight: int | None = None
    choosing: int = 0
    rivals: int = 4
    started: float | None = None

    def __post_init__(self) -> None:
        for name in ("trials", "time_limit_s", "early_stopping"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                shown = name.removesuffix("_s").replace("_", "-")
                raise InputError(f"--{shown} = {value} is out of range; it is above 0 and finite")
        if self.seed < 0:
            raise InputError(f"--seed = {self.seed} is out of range; it is 0 or more")
        in_flight = self.in_flight or 0
        if in_flight < 0:
            raise InputError(f"--in-flight = {in_flight} is out of range; it is 0 or more")
        if not 0 <= self.choosing <= in_flight:
            raise InputError(
                f"--choosing = {self.choosing} is out of range; it is at least 0 and at most as "
                f"many as the rounds in flight, {in_flight}"
            )


@dataclass(frozen=True)
class TaskReport:
    """One task's state for people and for `--json`.

    Attributes:
        default_s, best_s: latencies in seconds, None before they are known.
        config: the best configuration.
        layouts: its layout pair.
        measured_by: the label of these latencies.
        trials: what this job tried on this task by that label.
        accuracy: pairwise accuracy of the cost model's ranking on recent trials, None if unknown.
        default: the untuned configuration.
        origin: how the best was found, by what this job knows.
    """

    workload: Workload
    weight: float
    default_s: float | None
    best_s: float | None
    config: Config | None
    layouts: Layouts
    measured_by: MeasuredBy
    trials: int
    accuracy: float | None = None
    default: Config | None = None
    origin: Origin = Origin.UNMEASURED


@dataclass(frozen=True)
class Progress:
    """Where a running job is.

    Attributes:
        measured_by: the way of measuring at work.
        trials, trials_limit: spent, and allowed (None: no limit), by this way of measuring.
        counts: what the job did by now, by all its ways.
        elapsed_s, left_s: seconds since the start, and until the time limit or the estimated end.
        tasks: reports of all tasks, by this way of measuring.
        workers: who measures, where that is several.
        screening: whether these trials are simulated to choose what is measured then.
        doing: what is done beside trials, while none are; "" while there are.
    """

    measured_by: MeasuredBy
    trials: int
    trials_limit: int | None
    elapsed_s: float
    left_s: float | None
    tasks: tuple[TaskReport, ...]
    workers: tuple[WorkerReport, ...] = ()
    screening: bool = False
    doing: str = ""
    counts: TrialCounts = TrialCounts()  # noqa: RUF009  (frozen)

    @property
    def gain(self) -> Gain | None:
        """The gain over all tasks whose default and best are known; None without any."""
        return gain_of((t.weight, t.default_s, t.best_s) for t in self.tasks)

    @property
    def default_s(self) -> float:
        return self.gain.default_s if self.gain else 0.0

    @property
    def best_s(self) -> float:
        return self.gain.best_s if self.gain else 0.0


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class TuningSummary:
    """What a job came to.

    Attributes:
        counts: what it did; its trials are those of its last runner.
        wall_s: seconds from start to end; `search_s` of them went into the search itself, while
            nothing was measured: choosing what to measure, learning from it, committing it.
        ending: "cancelled" if a token ended it early.
        reason: one phrase, why it ended.
        tasks: one report for each task.
        failures: failed trials by status.
        drift: largest relative change of the baseline during the job; above `DRIFT_LIMIT` the
            machine was not steady, and only the confirmed choices should be believed.
        in_place: what re-ranking in the whole model came to.
        trial_ms: what a trial of the last runner cost in this run, see `TrialCosts.milliseconds`.
        noise: how far apart the samples of the chosen schedules are, see `reporting.noise`.
    """

    counts: TrialCounts
    wall_s: float
    search_s: float
    ending: Ending
    reason: str
    tasks: tuple[TaskReport, ...]
    failures: dict[str, int]
    drift: float = 0.0
    in_place: InPlace = InPlace()
    trial_ms: dict[str, float] = field(default_factory=dict)
    noise: float = 0.0

    @property
    def trials(self) -> int:
        """The number of trials of its last runner."""
        return self.counts.trials

    @property
    def simulated(self) -> int:
        """Judged by a simulator on the way there."""
        return self.counts.simulated

    @property
    def steady(self) -> bool:
        """Whether the machine measured alike throughout."""
        return self.drift <= DRIFT_LIMIT
