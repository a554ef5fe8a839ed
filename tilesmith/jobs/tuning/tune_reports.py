"""What tuning jobs report, as values; `to_json` gives the keys scripts rely on.

Times are microseconds where a name ends in `_us`, milliseconds in `_ms`, seconds in `_s`.
"""

from dataclasses import dataclass, field
from typing import Literal

from tilesmith.records.trials.counting import TrialCounts
from tilesmith.search_space.results.gain import Gain, Part, gain_of, times_of
from tilesmith.search_space.results.measure import MeasuredBy
from tilesmith.search_space.results.origin import Origin
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.json_object import JsonObject
from tilesmith.search_space.workloads.workload import Workload


@dataclass(frozen=True)
class Pinned(JsonObject):
    """A schedule that a model runs though another is best alone.

    Attributes:
        kept: "default", which tuning then leaves as it was, or "other".
    """

    kept: Literal["default", "other"]
    config: Config


@dataclass(frozen=True)
class WorkloadReport(
    JsonObject,
    keys="workload:workload.key key:workload.key weight default_us best_us gflops config "
    "measured_by trials schedule gain in_model",
):
    """What tuning came to for one workload.

    Attributes:
        workload: what was tuned.
        weight: how often the model runs it.
        default_us: latency of the untuned default; None if it could not be measured.
        best_us: latency of the best schedule on record, alone; None if none worked. Schedules
            within 1 % of each other are a tie, which a fixed rule decides: a best that ties with
            the default is given the default's latency where that is lower.
        gflops: throughput of the best, counting the direct form's operations.
        config: the best schedule's knob values.
        measured_by: "hardware" or "simulator": what the latencies come from.
        trials: what the job tried of it, failed ones included (`records.trials`).
        schedule: how the best was found, or what a model runs where there is none (`Origin`).
        in_model: where the whole model is faster with another schedule than the best alone: which.
    """

    workload: Workload
    weight: float
    default_us: float | None
    best_us: float | None
    gflops: float | None
    config: Config | None
    measured_by: MeasuredBy
    trials: int
    schedule: str = Origin.UNMEASURED
    in_model: Pinned | None = None

    @property
    def part(self) -> Part:
        """What it is of the model's gain."""
        return self.weight, self.default_us, self.best_us

    @property
    def gain(self) -> float | None:
        """How many times as fast as the default, alone (`records.questions.gains`)."""
        return times_of(self.default_us, self.best_us)


@dataclass(frozen=True)
class InModelReport(JsonObject, keys="... foretold_ms gain"):
    """What comparing schedules inside the whole model came to.

    Attributes:
        before_ms, after_ms: the model's latency with the schedules that are best alone, and with
            those pinned that make the model faster.
        pinned: workloads whose schedule in the model is not their best alone.
        compared: schedules tried in place.
        untuned_ms: the model's latency without any tuning, in turns with the tuned one; None if
            that was not compared.
        reverted: workloads that keep their untuned schedule, because the model is faster so.
        kernels_ms: what the kernels of the model take by themselves, as their trials measured them;
            None where the model was not looked at kernel by kernel.
        kernels_in_place_ms: what the same kernels take where they stand in the model.
        added_ms: what is in the model beside them: conversions of layouts, and schedules in layouts
            that no trial measured.
    """

    before_ms: float
    after_ms: float
    pinned: tuple[str, ...]
    compared: int
    untuned_ms: float | None = None
    reverted: tuple[str, ...] = ()
    kernels_ms: float | None = None
    kernels_in_place_ms: float | None = None
    added_ms: float | None = None

    @property
    def foretold_ms(self) -> float | None:
        """What the model takes if its kernels take in it what they take by themselves."""
        if self.kernels_ms is None or self.added_ms is None:
            return None
        return self.kernels_ms + self.added_ms

    @property
    def gain(self) -> float | None:
        """How many times as fast as untuned, the whole model; None where that was not compared."""
        return times_of(self.untuned_ms, self.after_ms)


@dataclass(frozen=True)
class TuneReport(
    JsonObject,
    keys="*counts wall_s tasks default_us best_us gain:gain.times stopped failures search_s drift "
    "steady noise trial_ms models in_model",
):
    """What a tuning job did.

    Attributes:
        counts: what the job did (`records.trials`).
        wall_s: how long the job took.
        tasks: one report for each workload.
        stopped: one phrase, why it ended.
        failures: failed trials by status.
        search_s: seconds of `wall_s` that went into choosing what to measure.
        drift: largest relative change of a baseline measured again and again, hardware only.
        steady: whether that drift is within what samples are corrected for without a word.
        in_model: what comparing schedules inside the model came to; None if that was not done.
        trial_ms: what a trial on hardware cost: the `median` and the `mean` one, and what the mean
            is made up of: `compile`, `reference`, `inputs`, `flush`, `run` and `other`.
        models: what scores start from, in a sentence, by way of measuring.
        noise: how far the usual run of a chosen schedule is from its fastest, relative, of the
            middle workload; hardware only.
    """

    counts: TrialCounts
    wall_s: float
    tasks: tuple[WorkloadReport, ...]
    stopped: str = ""
    failures: dict[str, int] = field(default_factory=dict)
    search_s: float = 0.0
    drift: float = 0.0
    steady: bool = True
    in_model: InModelReport | None = None
    trial_ms: dict[str, float] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    noise: float = 0.0

    def __repr__(self) -> str:
        """A line for each workload, not every field: what a notebook or `print` shows."""
        lines = [
            f"{task.workload}: {_told(task.default_us)} -> {_told(task.best_us)}"
            for task in self.tasks
        ]
        done = f"<TuneReport of {self.counts} in {self.wall_s:.1f} s"
        return "\n  ".join([done, *lines]) + ">"

    @property
    def trials(self) -> int:
        """What was tried, failed ones included."""
        return self.counts.trials

    @property
    def gain(self) -> Gain | None:
        """Of the workloads that were measured as most are believed (hardware where there is any),
        in microseconds; the model's own is `in_model.gain`."""
        ways = {task.measured_by for task in self.tasks if task.best_us}
        way = "hardware" if "hardware" in ways else "simulator"
        return gain_of(
            task.part if task.measured_by == way else (task.weight, None, None)
            for task in self.tasks
        )

    @property
    def default_us(self) -> float | None:
        """Sum of the defaults' latencies, weighted; None if one is missing."""
        return _weighted([(task.weight, task.default_us) for task in self.tasks])

    @property
    def best_us(self) -> float | None:
        """Sum of the best latencies, weighted; None if one is missing."""
        return _weighted([(task.weight, task.best_us) for task in self.tasks])


def _told(latency_us: float | None) -> str:
    return "none" if latency_us is None else f"{latency_us:.4g} us"


def _weighted(parts: list[tuple[float, float | None]]) -> float | None:
    known = [(weight, value) for weight, value in parts if value is not None]
    return sum(w * v for w, v in known) if len(known) == len(parts) else None
