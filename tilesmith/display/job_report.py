"""What a tuning job's report says, gathered from the database: values for the template to show.

Invariant: everything comes from the database (and, for the roofline, from the simulator), so that a
report can be written long after the job, on another machine, by someone else.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

from tilesmith.codegen.structures import default_of
from tilesmith.records import Database, Job, TuningRecord
from tilesmith.records.queries import Filter
from tilesmith.search_space.errors import InputError, TilesmithError
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.target import Target
from tilesmith.search_space.template import template_of
from tilesmith.search_space.workload import Workload

_PAUSE_S = 120.0
"""Between two trials of a job at work there is never so long: it was stopped and resumed."""


@dataclass(frozen=True)
class TaskCurve:
    """One workload by one way of measuring.

    Attributes:
        points: (trial number within the job's task, best latency so far in seconds).
        default_s, best_s: latencies in seconds; None where nothing worked.
        config: the best's.
        layouts: its input and output layout.
        roofline_s: what the simulator says the best's roofline is; None where it cannot say.
        elapsed_s: seconds its trials took.
        spread: median over trials of (largest - smallest sample) / median sample.
        weight: how often the model runs it; None where the job did not keep that.
        bound: what that roofline is of, as the simulator calls it; "" where it cannot say.

    Latencies of a job that found some in the database are those it told of, its own trials or not.
    """

    workload: str
    measured_by: str
    trials: int
    failed: int
    points: tuple[tuple[int, float], ...]
    default_s: float | None
    best_s: float | None
    config: Config | None
    layouts: tuple[str, str]
    flops: int
    bytes_: int
    roofline_s: float | None
    elapsed_s: float
    spread: float | None
    weight: float | None = None
    bound: str = ""

    @property
    def gain(self) -> float | None:
        """How many times faster than the default."""
        return self.default_s / self.best_s if self.default_s and self.best_s else None


@dataclass(frozen=True)
class Failure:
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
        latency_s: with the schedules chosen, seconds.
        choices: how many are pinned or left untuned.
        told: latencies in milliseconds by the names of `in_model` in `tilesmith tune --json`;
            empty for jobs of versions that did not keep them.
        compared: schedules tried in the model.
        pinned, reverted: workloads.
    """

    key: str
    latency_s: float
    choices: int
    told: Mapping[str, float]
    compared: int = 0
    pinned: tuple[str, ...] = ()
    reverted: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: TuningRecord) -> InModel:
        """From a model's record, whose message tells it as JSON."""
        assert record.latency is not None, "only of records that work"
        found = _object(record.result.message)
        return cls(
            record.workload_key,
            record.latency,
            len(record.config),
            {
                name: float(value)
                for name, value in found.items()
                if name.endswith("_ms") and isinstance(value, int | float)
            },
            int(found.get("compared") or 0),
            *(tuple(map(str, found.get(name) or ())) for name in ("pinned", "reverted")),
        )


def _object(text: str) -> dict[str, Any]:
    """A JSON object, {} for any other text."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Spent:
    """Where a share of the time went."""

    what: str
    seconds: float


@dataclass(frozen=True)
class Told:
    """What a job last told of a workload; None: that it did not tell. Latencies in seconds."""

    weight: float | None
    default_s: float | None
    best_s: float | None


@dataclass(frozen=True)
class JobReport:
    """Everything the page shows. Times in seconds unless named otherwise; `told`: what the job last
    told of its workloads, measured by `told_by`, those without a trial of its own included.
    """

    job: Job
    database: str
    target: Target | None
    target_identity: str
    threads: int
    tasks: tuple[TaskCurve, ...]
    failures: tuple[Failure, ...]
    spent: tuple[Spent, ...]
    toolchains: tuple[dict[str, str], ...]
    calibrations: tuple[str, ...]
    hosts: tuple[str, ...]
    trials: int
    in_model: tuple[InModel, ...] = ()
    told_by: str = ""
    told: Mapping[str, Told] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What `tilesmith report --json` prints."""
        return {
            "job": self.job.id,
            "status": self.job.status,
            "trials": self.trials,
            "tasks": len({task.workload for task in self.tasks}),
            "failures": {found.status: found.count for found in self.failures},
            "spent_s": {found.what: found.seconds for found in self.spent},
        }


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
        _tasks(trials, target, job),
        _failures(trials),
        _spent(job, trials),
        tuple({str(r.toolchain): r.toolchain.to_dict() for r in trials if r.toolchain}.values()),
        tuple(dict.fromkeys(r.calibration for r in trials if r.calibration)),
        tuple(dict.fromkeys(record.host for record in trials)),
        len(trials),
        tuple(
            InModel.of(record)
            for record in records
            if record.is_of_model and record.latency is not None
        ),
        *_told(job),
    )


def _told(job: Job) -> tuple[str, dict[str, Told]]:
    """How the job measured when it last told of itself, and what it told, by workload key."""
    tasks = job.progress.get("tasks")
    found: dict[str, Told] = {}
    for task in tasks if isinstance(tasks, list) else ():
        if isinstance(task, dict):
            weight, default, best = (
                float(value) if isinstance(value := task.get(name), int | float) else None
                for name in ("weight", "default_us", "best_us")
            )
            found[str(task.get("workload"))] = Told(
                weight, default and default / 1e6, best and best / 1e6
            )
    return str(job.progress.get("measured_by", "")), found


def _tasks(
    trials: Sequence[TuningRecord], target: Target | None, job: Job
) -> tuple[TaskCurve, ...]:
    """Those that cost most first; hardware before simulator."""
    way, told = _told(job)
    groups: defaultdict[tuple[str, str], list[TuningRecord]] = defaultdict(list)
    for record in trials:
        groups[record.result.measured_by, record.workload_key].append(record)
    nothing = Told(None, None, None)
    curves = []
    for (label, key), members in groups.items():
        curve, said = _curve(members, target), told.get(key, nothing)
        curve = replace(curve, weight=said.weight)
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


def _curve(trials: Sequence[TuningRecord], target: Target | None) -> TaskCurve:
    first, known = trials[0], {record.config: record for record in trials}
    best = min((r for r in known.values() if r.latency), key=_latency, default=None)
    default, flops, bytes_ = _facts(first, target)
    spreads = [
        (max(r.result.samples) - min(r.result.samples)) / r.latency
        for r in trials
        if r.latency and len(r.result.samples) > 1
    ]
    started = known.get(default) if default is not None else None
    roofline_s, bound = _roofline(best, target)
    return TaskCurve(
        first.workload_key,
        first.result.measured_by,
        len(trials),
        sum(not record.result.ok for record in trials),
        tuple(_thinned(_best_so_far(trials))),
        started.latency if started else None,
        best.latency if best else None,
        best.config if best else None,
        best.layouts if best else ("", ""),
        flops,
        bytes_,
        roofline_s,
        sum(record.result.elapsed for record in trials),
        median(spreads) if spreads else None,
        bound=bound,
    )


def _best_so_far(trials: Sequence[TuningRecord]) -> Iterator[tuple[int, float]]:
    """(trial number, best latency in seconds); the last word on a configuration counts."""
    works: dict[Config, float] = {}
    best: Config | None = None
    for count, record in enumerate(trials, 1):
        latency = record.latency
        if latency is not None:
            works[record.config] = latency
        else:
            works.pop(record.config, None)
        if record.config == best:
            best = min(works, key=works.__getitem__, default=None)
        elif latency is not None and (best is None or latency < works[best]):
            best = record.config
        if best is not None:
            yield count, works[best]


def _latency(record: TuningRecord) -> float:
    return record.latency or 0.0


def _thinned(points: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """The ends, and where the value changes."""
    found = list(points)
    last = len(found) - 1
    return [
        point
        for i, point in enumerate(found)
        if i in (0, last) or point[1] != found[i - 1][1] or point[1] != found[i + 1][1]
    ]


def _facts(record: TuningRecord, target: Target | None) -> tuple[Config | None, int, int]:
    """The default configuration, operations and bytes moved at least; as far as known here."""
    from tilesmith.search_space.dtypes import size_of

    try:
        workload = record.workload
        template = template_of(workload.operator)
        operands = (*template.operands(workload), template.output(workload))
        bytes_ = sum(_elements(operand.shape) * size_of(operand.dtype) for operand in operands)
        default = None if target is None else default_of(workload, target)
        return default, template.flops(workload), bytes_
    except TilesmithError:  # an operator that this installation does not know
        return None, 0, 0


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _roofline(best: TuningRecord | None, target: Target | None) -> tuple[float | None, str]:
    """The least seconds, and what they are of."""
    from tilesmith.simulator import simulate

    if best is None or target is None:
        return None, ""
    try:
        workload: Workload = best.workload
        found = simulate(workload, target, best.config, "roofline")
    except TilesmithError:
        return None, ""
    return found.latency_us / 1e6, found.bound


def _failures(trials: Sequence[TuningRecord]) -> tuple[Failure, ...]:
    """By status, the most frequent message of each."""
    found = []
    failed = [record for record in trials if not record.result.ok]
    for status, count in Counter(record.result.status for record in failed).most_common():
        alike = [record for record in failed if record.result.status == status]
        message = Counter(record.result.message for record in alike).most_common(1)[0][0]
        example = next(record for record in alike if record.result.message == message)
        found.append(Failure(status, count, example.workload_key, message))
    return tuple(found)


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
