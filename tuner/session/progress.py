"""How far a tuning job is, and what it came to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tilesmith.records.trials.counting import TrialCounts
from tilesmith.records.trials.record import WorkerReport
from tilesmith.search_space.results.gain import Gain, gain_of
from tilesmith.search_space.results.measure import MeasuredBy
from tilesmith.search_space.results.origin import Origin
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.confirmation.in_place import NOTHING, InPlace
from tilesmith.tuner.tasks.options import DRIFT_LIMIT
from tilesmith.tuner.tasks.task import Layouts

Ending = Literal["finished", "cancelled"]


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
    in_place: InPlace = NOTHING
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
