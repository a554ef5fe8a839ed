"""What a tuning job's report says, gathered from the database: values for the template to show.

Invariant: everything comes from the database (and, for the roofline, from the simulator), so that a
report can be written long after the job, on another machine, by someone else.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

from tilesmith.capabilities.dashboard.report.job_curves import TaskCurve, curve_of
from tilesmith.display.titles import title_of
from tilesmith.records import Database, Job, TuningRecord
from tilesmith.records.questions.queries import Filter
from tilesmith.records.trials.counting import TrialCounts, way_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.json_object import JsonObject

_PAUSE_S = 120.0
"""Between two trials of a job at work there is never so long: it was stopped and resumed."""


@dataclass(frozen=True)
class _Failure:
    """Trials that failed alike: how many, and what one of them said."""

    status: str
    count: int
    workload: str
    message: str


@dataclass(frozen=True)
class InModel:
    """What comparing schedules inside the whole model came to.

    Attributes:
        key: the model's.
        measured_by: how its latencies were.
        latency_s: with the schedules chosen, seconds.
        choices: how many are pinned or left untuned.
        latencies_ms: by the names of `in_model` in `tilesmith tune --json`; empty for
            jobs of versions that did not keep them.
        compared: schedules tried in the model.
        pinned, reverted: workloads.
    """

    key: str
    measured_by: str
    latency_s: float
    choices: int
    latencies_ms: Mapping[str, float]
    compared: int = 0
    pinned: tuple[str, ...] = ()
    reverted: tuple[str, ...] = ()

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Names of `latencies_ms` that say something of their own, with what they are."""
        kept = bool(self.pinned or self.reverted)
        return [
            (name, what)
            for name, what, says in (
                ("untuned_ms", "no schedule tuned", True),
                ("after_ms", "the schedules that it keeps", True),
                ("before_ms", "each kernel's best alone", kept),
                ("foretold_ms", "foretold: kernels as trials measured them, and conversions", True),
                ("kernels_ms", "of which the kernels alone", True),
                ("kernels_in_place_ms", "the same kernels measured in their places", True),
                ("added_ms", "conversions of layouts, and what no trial measured", True),
            )
            if says and self.latencies_ms.get(name) is not None
        ]

    @classmethod
    def of(cls, record: TuningRecord) -> "InModel":
        """From a model's record, whose message tells it as JSON."""
        assert record.latency is not None, "only of records that work"
        fields = _object(record.result.message)
        return cls(
            record.workload_key,
            record.result.measured_by,
            record.latency,
            len(record.config),
            {
                name: float(value)
                for name, value in fields.items()
                if name.endswith("_ms") and isinstance(value, int | float)
            },
            int(fields.get("compared") or 0),
            *(tuple(map(str, fields.get(name) or ())) for name in ("pinned", "reverted")),
        )


def _object(text: str) -> dict[str, Any]:
    """A JSON object, {} for any other text."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class Spent:
    """Where a share of the time went."""

    what: str
    seconds: float


@dataclass(frozen=True)
class WorkloadProgress:
    """What a job last told of a workload; None: that it did not tell. Latencies in seconds."""

    weight: float | None
    default_s: float | None
    best_s: float | None


@dataclass(frozen=True)
class JobReport(
    JsonObject,
    keys="job:job.id title status:job.status *counts schedules:origins tasks:_workloads "
    "failures:_failed spent_s:_spent",
):
    """Everything the page shows. Times in seconds unless named otherwise; `progress`: what the job
    last told of its workloads, measured by `told_by`, those without a trial of its own included.
    """

    job: Job
    database: str
    target: Target | None
    target_identity: str
    threads: int
    tasks: tuple[TaskCurve, ...]
    failures: tuple[_Failure, ...]
    spent: tuple[Spent, ...]
    toolchains: tuple[dict[str, str], ...]
    calibrations: tuple[str, ...]
    hosts: tuple[str, ...]
    counts: TrialCounts
    in_model: tuple[InModel, ...] = ()
    told_by: str = ""
    progress: Mapping[str, WorkloadProgress] = field(default_factory=dict)

    @property
    def trials(self) -> int:
        """Those of `counts`."""
        return self.counts.trials

    @property
    def title(self) -> str:
        """What people call the job."""
        return title_of(self.job.command)

    @property
    def way(self) -> str:
        """How the job measured, hardware where it did both."""
        labels = {task.measured_by for task in self.tasks}
        return way_of(self.job.command) or ("hardware" if "hardware" in labels else "simulator")

    @property
    def origins(self) -> Counter[str]:
        """How schedules were found, by that way of measuring."""
        return Counter(t.origin for t in self.tasks if t.measured_by == self.way and t.origin)

    @property
    def _workloads(self) -> int:
        return len({task.workload for task in self.tasks})

    @property
    def _failed(self) -> dict[str, int]:
        return {failure.status: failure.count for failure in self.failures}

    @property
    def _spent(self) -> dict[str, float]:
        return {part.what: part.seconds for part in self.spent}


def gather(database: Database, number: int | None = None) -> JobReport:
    """The report of a job (None: the newest).

    Raises:
        InputError: there is no such job, or it has no trials.
    """
    jobs = {job.id: job for job in database.jobs()}
    if not jobs or (number is not None and number not in jobs):
        known = ", ".join(str(known) for known in sorted(jobs)[-10:]) or "none"
        named = "job" if number is None else f"job {number}"
        raise InputError(f"database '{database.name}' has no {named}; its newest jobs: {known}")
    job = jobs[max(jobs) if number is None else number]
    records = database.query(Filter(job=job.id), sort="oldest", limit=None)
    trials = [record for record in records if not record.is_of_model]
    if not trials:
        raise InputError(f"job {job.id} of database '{database.name}' has no trials to report on")
    identity = trials[0].target_identity
    target = database.target_facts(identity)
    return JobReport(
        job,
        database.name,
        target,
        identity,
        trials[0].threads,
        _tasks(database, trials, target, job),
        _failures(trials),
        _spent(job, trials),
        tuple({str(r.toolchain): r.toolchain.to_dict() for r in trials if r.toolchain}.values()),
        tuple(dict.fromkeys(r.calibration for r in trials if r.calibration)),
        tuple(dict.fromkeys(record.host for record in trials)),
        database.trial_counts(job),
        tuple(
            InModel.of(record)
            for record in records
            if record.is_of_model and record.latency is not None
        ),
        *_told(job),
    )


def _told(job: Job) -> tuple[str, dict[str, WorkloadProgress]]:
    """How the job measured when it last told of itself, and what it told, by workload key."""
    tasks = job.progress.get("tasks")
    by_key: dict[str, WorkloadProgress] = {}
    for task in tasks if isinstance(tasks, list) else ():
        if isinstance(task, dict):
            weight, default, best = (
                float(value) if isinstance(value := task.get(name), int | float) else None
                for name in ("weight", "default_us", "best_us")
            )
            by_key[str(task.get("workload"))] = WorkloadProgress(
                weight, default and default / 1e6, best and best / 1e6
            )
    return str(job.progress.get("measured_by", "")), by_key


def _tasks(
    database: Database, trials: Sequence[TuningRecord], target: Target | None, job: Job
) -> tuple[TaskCurve, ...]:
    """Those that cost most first; hardware before simulator."""
    way, by_task = _told(job)
    groups: defaultdict[tuple[str, str], list[TuningRecord]] = defaultdict(list)
    for record in trials:
        groups[record.result.measured_by, record.workload_key].append(record)
    nothing = WorkloadProgress(None, None, None)
    curves = []
    for (label, key), members in groups.items():
        curve, said = curve_of(members, target), by_task.get(key, nothing)
        first = members[0]
        subject = first.workload_key, first.target_identity, first.threads
        origin = database.origin(*subject, curve.measured_by) or ""
        curve = replace(curve, weight=said.weight, origin=origin)
        if label == way:
            default_s, best_s = curve.default_s or said.default_s, said.best_s or curve.best_s
            curve = replace(curve, default_s=default_s, best_s=best_s)
        curves.append(curve)
    return tuple(
        sorted(
            curves,
            key=lambda task: (
                task.measured_by,
                -(task.weight or 1.0) * (task.best_s or task.default_s or 0.0),
            ),
        )
    )


def _failures(trials: Sequence[TuningRecord]) -> tuple[_Failure, ...]:
    """By status, the most frequent message of each."""
    failures = []
    failed = [record for record in trials if not record.result.ok]
    for status, count in Counter(record.result.status for record in failed).most_common():
        alike = [record for record in failed if record.result.status == status]
        message = Counter(record.result.message for record in alike).most_common(1)[0][0]
        example = next(record for record in alike if record.result.message == message)
        failures.append(_Failure(status, count, example.workload_key, message))
    return tuple(failures)


def _spent(job: Job, trials: Sequence[TuningRecord]) -> tuple[Spent, ...]:
    """Measuring by label, choosing what to measure and all else, pauses."""
    measuring: defaultdict[str, float] = defaultdict(float)
    for record in trials:
        measuring[record.result.measured_by] += record.result.elapsed
    moments: list[datetime] = [r.created_at for r in trials if r.created_at is not None]
    ends = [job.ended_at] if job.ended_at is not None else []
    line = sorted([job.started_at, *moments, *ends])
    gaps = [(after - before).total_seconds() for before, after in pairwise(line)]
    paused = sum(gap for gap in gaps if gap > _PAUSE_S)
    left = max(0.0, sum(gaps) - paused - sum(measuring.values()))
    names = {"hardware": "measuring on hardware", "simulator": "simulating"}
    parts = [Spent(names[label], seconds) for label, seconds in measuring.items()]
    parts.append(Spent("choosing, learning, storing and all else", left))
    return (*parts, Spent("paused", paused)) if paused else tuple(parts)
