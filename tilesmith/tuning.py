"""A tuning job, put together: workloads, target, database, runners, and the search over them.

The one place where tuner, records, simulator and compiler meet; each knows the others not.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from records.database import Database
from search_space.errors import InputError, JobError
from search_space.target import Target
from search_space.template import template_of
from simulator import judge, measure, simulators
from tilesmith.reports import TaskReport, TuneReport
from tilesmith.subjects import WeightedWorkload
from tuner.cancel import CancelToken, cancel_on_signals
from tuner.database_ledger import DatabaseLedger
from tuner.options import Progress, TuneOptions, TuningSummary
from tuner.options import TaskReport as TunedTask
from tuner.publish import NEAR_TIE
from tuner.runner import Runner, RunnerOptions, runners
from tuner.session import tune
from tuner.task import TuningTask

Measure = Literal["simulator", "hardware", "both"]
Observer = Callable[[Progress], None]


@dataclass(frozen=True)
class TuningJob:
    """What to tune, for what, and how to measure it.

    Attributes:
        subject: the words by which a command line names what is tuned.
        workloads: what that comes to.
    """

    subject: tuple[str, ...]
    workloads: Sequence[WeightedWorkload]
    target: Target
    threads: int
    measure: Measure
    resume: bool


def way_of_measuring(asked: str | None, target: Target) -> Measure:
    """How to measure: what was asked for, else both ways on a CPU and the simulator elsewhere.

    Raises:
        InputError: no such way, or hardware that is not here.
    """
    ways = ["simulator"] if target.family in simulators else []
    if target.family == "cpu":
        ways.append("hardware")
    if not ways:
        raise InputError(f"nothing here measures targets of the family '{target.family}'")
    allowed = [*ways, *(["both"] if len(ways) == 2 else [])]
    if asked is None:
        return allowed[-1]  # type: ignore[return-value]
    if asked not in allowed:
        raise InputError(
            f"target '{target.name}' cannot be measured by '{asked}'; "
            f"one of {', '.join(allowed)} is expected"
        )
    return asked  # type: ignore[return-value]


def run_job(
    job: TuningJob, database: str, options: TuneOptions, observer: Observer | None
) -> TuneReport:
    """Run (or resume) the job; every finished trial is in the database whatever happens.

    Raises:
        DatabaseError: the database cannot be opened or written.
        JobError: interrupted; or no worker could be started; or the disk is full.
    """
    tasks = [TuningTask(found.workload, found.weight) for found in job.workloads]
    token = CancelToken()
    judged = judge if job.target.family in simulators else None
    with Database.open(database) as opened, cancel_on_signals(token):
        ledger = _ledger(job, options, opened)
        measuring = _runners(job)
        try:
            summary = tune(
                tasks,
                job.target,
                ledger,
                measuring,
                options,
                judge=judged,
                on_progress=observer,
                cancel=token,
            )
        finally:
            for runner in measuring:
                runner.close()
    if token.cancelled:
        raise JobError(
            f"stopped by {token.reason} after {summary.trials} trials, all of them kept in "
            f"'{database}'; the same job with --resume (resume=True) goes on"
        )
    return _report(summary)


def _ledger(job: TuningJob, options: TuneOptions, database: Database) -> DatabaseLedger:
    command = _signature(job, options)
    if job.resume:
        return DatabaseLedger.resume(database, job.target, job.threads, command=command)
    return DatabaseLedger.start(
        database, job.target, job.threads, command=command, seed=options.seed,
        strategy=options.strategy,
    )  # fmt: skip


def _runners(job: TuningJob) -> list[Runner]:
    names = {"both": ("simulator", "hardware")}.get(job.measure, (job.measure,))
    options = RunnerOptions(job.target, threads=job.threads, judge=measure)
    return [runners[name](options) for name in names]


def _signature(job: TuningJob, options: TuneOptions) -> str:
    """The command that asks for the job again, and in a comment what must be equal to resume it."""
    keys = "\n".join(f"{found.weight:g} {found.workload.key}" for found in job.workloads)
    digest = hashlib.sha256(keys.encode()).hexdigest()[:16]
    words = ["tilesmith", "tune", *job.subject, "--target", job.target.name]
    words += ["--threads", str(job.threads), "--measure", job.measure]
    words += ["--seed", str(options.seed), "--strategy", options.strategy]
    return f"{shlex.join(words)}  # {job.target.identity}, workloads {digest}"


def _report(summary: TuningSummary) -> TuneReport:
    return TuneReport(
        trials=summary.trials,
        simulated=summary.simulated,
        wall_s=summary.wall_s,
        tasks=tuple(_task(task) for task in summary.tasks),
        stopped=summary.reason,
        failures=dict(summary.failures),
    )


def _task(task: TunedTask) -> TaskReport:
    flops = template_of(task.workload.operator).flops(task.workload)
    best_s = task.best_s
    if best_s and task.default_s and best_s <= task.default_s * (1 + NEAR_TIE):
        best_s = min(best_s, task.default_s)  # measurements cannot tell near-ties apart
    return TaskReport(
        workload=task.workload,
        weight=task.weight,
        default_us=None if task.default_s is None else task.default_s * 1e6,
        best_us=None if best_s is None else best_s * 1e6,
        gflops=flops / best_s / 1e9 if best_s and flops else None,
        config=task.config,
        measured_by=task.measured_by,
        trials=task.trials,
    )
