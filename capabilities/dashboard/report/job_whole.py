"""The whole of what a job tuned, and two jobs beside each other, from their reports.

A model's latency is what was measured in the model where that was done; else its workloads' added
up, each as often as the model runs it. Invariant: sums are over the same workloads on both sides,
measured in the same way; what one side lacks is counted and named.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilesmith.capabilities.dashboard.report.job_curves import TaskCurve
from tilesmith.capabilities.dashboard.report.job_report import JobReport, WorkloadProgress
from tilesmith.display.output import duration
from tilesmith.search_space.results.gain import gain_of, times_of
from tilesmith.search_space.results.origin import counted
from tilesmith.search_space.support.json_object import JsonObject

_BY = {"hardware": "measured on hardware", "simulator": "by the simulator"}
_MEASURED = "in the whole model"
_ADDED = "workloads added up, each as often as the model runs it"
_ONCE = "workloads added up, each once: the job did not keep how often the model runs them"


@dataclass(frozen=True)
class _Whole(JsonObject, keys="measured_by before_ms:before_s after_ms:after_s gain how missing"):
    """Latency of everything that a job tuned, in seconds, and how that is known.

    Attributes:
        before_s, after_s: untuned and tuned.
        how: in words.
        missing: workloads that are in neither, for one of the two latencies is not known.
    """

    measured_by: str
    before_s: float
    after_s: float
    how: str
    missing: int = 0

    @property
    def gain(self) -> float:
        return times_of(self.before_s, self.after_s) or 1.0


def wholes(report: JobReport) -> tuple[_Whole, ...]:
    """What is known of the whole, the best known first: measured in the model, then added up by way
    of measuring, hardware first.
    """
    parts = [
        _Whole(model.measured_by, untuned / 1e3, model.latency_s, _MEASURED)
        for model in report.in_model
        if (untuned := model.latencies_ms.get("untuned_ms"))
    ]
    for label in ways(report.tasks):
        mine = _latencies(report, label)
        known = [task for task in mine.values() if task.default_s and task.best_s]
        if known:
            how = _ADDED if all(task.weight is not None for task in known) else _ONCE
            gain = gain_of((times(task), task.default_s, task.best_s) for task in mine.values())
            assert gain is not None, "some are known"
            parts.append(_Whole(label, gain.default_s, gain.best_s, how, gain.missing))
    return tuple(parts)


def sentence(report: JobReport) -> str:
    """What a job came to: untuned, tuned, and how that was measured."""
    threads = f"{report.threads} thread{'s' if report.threads != 1 else ''}"
    what = f"{report.title} on {report.target_identity}, {threads}"
    known = wholes(report)
    if not known:
        return f"{what}: nothing worked, so there is no latency to tell; {report.counts}."
    best = known[0]
    return (
        f"{what}: {duration(best.before_s)} untuned, {duration(best.after_s)} tuned, "
        f"{best.gain:.2f} times as fast, {_BY[best.measured_by]}, {best.how}; schedules: "
        f"{counted(report.origins)}; {report.counts}."
    )


def _latencies(report: JobReport, label: str) -> Mapping[str, TaskCurve | WorkloadProgress]:
    """What is known of each workload by one way of measuring, by its key."""
    own = {task.workload: task for task in report.tasks if task.measured_by == label}
    return {**report.progress, **own} if label == report.told_by else own


def ways(tasks: Iterable[TaskCurve]) -> list[str]:
    """Ways of measuring, hardware first."""
    return sorted({task.measured_by for task in tasks})


def times(task: TaskCurve | WorkloadProgress) -> float:
    """How often the model runs it, once if that is not known."""
    return 1.0 if task.weight is None else task.weight


def shares(tasks: Sequence[TaskCurve]) -> dict[tuple[str, str], float]:
    """Of each workload that has a latency: its part, from 0 to 1, of all that were measured as it
    was, after tuning.
    """
    spent = {(t.measured_by, t.workload): times(t) * t.best_s for t in tasks if t.best_s}
    totals = {
        label: sum(seconds for (way, _), seconds in spent.items() if way == label)
        for label in ways(tasks)
    }
    return {key: seconds / totals[key[0]] for key, seconds in spent.items()}


@dataclass(frozen=True)
class _Pair(JsonObject, keys="workload measured_by weight best_us:best_s other_us:other_s ratio"):
    """One workload's best in two jobs, in seconds; None where a job has none."""

    workload: str
    measured_by: str
    weight: float
    best_s: float | None
    other_s: float | None

    @property
    def ratio(self) -> float | None:
        """How many times as fast as in the other job."""
        return self.other_s / self.best_s if self.best_s and self.other_s else None

    @property
    def lost_s(self) -> float:
        """Seconds of a run that the other job is ahead by."""
        return self.weight * ((self.best_s or 0.0) - (self.other_s or 0.0))


@dataclass(frozen=True)
class Against(JsonObject, keys="job:other.job.id differs together:_together workloads:pairs"):
    """Two jobs beside each other.

    Attributes:
        other: the job this one is beside.
        differs: what was asked for differently: name, here, there.
        pairs: workloads of both by way of measuring, what is worst here first; then those of one.
        sums: by way of measuring, seconds of all that both have: here, there.
    """

    other: JobReport
    differs: tuple[tuple[str, str, str], ...]
    pairs: tuple[_Pair, ...]
    sums: tuple[tuple[str, float, float], ...]

    @property
    def other_tasks(self) -> dict[tuple[str, str], TaskCurve]:
        return {(t.measured_by, t.workload): t for t in self.other.tasks}

    @property
    def _together(self) -> list[dict[str, Any]]:
        return [
            {"measured_by": way, "ms": here * 1e3, "other_ms": there * 1e3, "ratio": there / here}
            for way, here, there in self.sums
        ]


def beside(report: JobReport, other: JobReport) -> Against:
    """One job beside another."""
    mine, theirs = (
        {
            (label, workload): task
            for label in ways(one.tasks)
            for workload, task in _latencies(one, label).items()
        }
        for one in (report, other)
    )
    pairs = []
    for key in {**mine, **theirs}:
        here, there = mine.get(key), theirs.get(key)
        weights = [t.weight for t in (here, there) if t is not None and t.weight is not None]
        pairs.append(
            _Pair(
                key[1], key[0], weights[0] if weights else 1.0,
                here.best_s if here is not None else None,
                there.best_s if there is not None else None,
            )
        )  # fmt: skip
    pairs.sort(key=lambda pair: (pair.measured_by, pair.ratio is None, -pair.lost_s))
    sums = []
    for way in dict.fromkeys(pair.measured_by for pair in pairs):
        both = [pair for pair in pairs if pair.measured_by == way and pair.ratio is not None]
        if both:
            here_s = sum(pair.weight * (pair.best_s or 0.0) for pair in both)
            sums.append((way, here_s, sum(p.weight * (p.other_s or 0.0) for p in both)))
    return Against(other, _differing(report, other), tuple(pairs), tuple(sums))


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _differing(report: JobReport, other: JobReport) -> tuple[tuple[str, str, str], ...]:
    """What two jobs were asked for, or had, that differs."""
    facts = [
        (
            ("command", one.job.command),
            ("target", one.target_identity),
            ("threads", str(one.threads)),
            ("strategy", one.job.strategy),
            ("seed", str(one.job.seed)),
            ("trials", str(one.trials)),
            ("time", f"{sum(spent.seconds for spent in one.spent):.0f} s"),
            ("host", ", ".join(one.hosts)),
            ("versions", "; ".join(_versions(versions) for versions in one.toolchains)),
            ("calibration", ", ".join(one.calibrations)),
        )
        for one in (report, other)
    ]
    return tuple(
        (name, here, there)
        for (name, here), (_, there) in zip(*facts, strict=True)
        if here != there
    )
