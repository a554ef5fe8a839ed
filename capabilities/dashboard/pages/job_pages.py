"""What the pages about jobs and their workers show: values for the templates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from tilesmith.capabilities.dashboard.data.progress import JobProgress
from tilesmith.capabilities.dashboard.data.tally import FailureTally, JobTally, Tallies, TaskTally
from tilesmith.capabilities.dashboard.data.watching import job_exists, job_numbers, workers_seen
from tilesmith.capabilities.dashboard.pages.convergence import ConvergenceChart, chart
from tilesmith.display.titles import title_of
from tilesmith.records import Database, Job
from tilesmith.records.jobs.clock import now
from tilesmith.records.jobs.job import job_of, row_of
from tilesmith.records.trials.counting import TrialCounts, told_by
from tilesmith.records.trials.record import WorkerReport
from tilesmith.search_space.results.measure import MeasuredBy

JOBS_SHOWN = 25
TASKS_SHOWN = 60
CHARTS_SHOWN = 24
WORKERS_SHOWN = 200
MESSAGES_SHOWN = 30

READ_AT_ONCE, READ_S = 100_000, 0.4
"""Trials of a job that are read for one answer, and for how long; the rest for the next ones."""

_COUNTED_WHOLE = 5_000
"""Jobs of so many trials are counted in full for the list, larger ones when they are looked at."""

STATES = ("running", "lost", "finished", "interrupted", "failed")

SECTIONS = ("convergence", "tasks", "trials", "knobs", "failures", "workers", "about")
"""Parts of a job's page, one shown at a time; the first one unless asked."""


@dataclass(frozen=True)
class JobLine:
    """A job as a list shows it.

    Attributes:
        state: its status, or "lost" for a running one that gave no sign of life for too long.
        rate: trials a second, lately if it runs, else on average; None before there are some.
        left_s: seconds until its budget is spent, as it told; None if it did not.
        counts: what it did, by its rows; as it told while these are counted.
        gain: best against default, as the job told, or of its tasks by their rows.
        ran_s: seconds from start to end, or until now.
        progress: what the job says of itself.
    """

    job: Job
    title: str
    state: str
    counts: TrialCounts
    rate: float | None
    left_s: float | None
    gain: float | None
    ran_s: float
    progress: JobProgress

    @property
    def trials(self) -> int:
        """Those of `counts`."""
        return self.counts.trials

    @property
    def runs(self) -> bool:
        """Whether somebody is at work on it."""
        return self.state == "running"


@dataclass(frozen=True)
class WorkerLine:
    """A worker as a list shows it; `silent_s` is seconds since its last report."""

    job: int
    worker: WorkerReport
    silent_s: float | None


class JobsWatch:
    """Questions about jobs, answered from what was counted before and what is new.

    Args:
        tallies: shared by everyone who asks.
        generation: of the database, see `Access.generation`.
    """

    def __init__(self, database: Database, tallies: Tallies, generation: int) -> None:
        self.database = database
        self._tallies = tallies
        self._generation = generation

    # -- lists ------------------------------------------------------------------------------------
    def jobs(self, text: str, state: str, before: int | None) -> tuple[list[JobLine], int | None]:
        """Jobs, the newest first, and the number to go on before; None at the end."""
        status = "running" if state == "lost" else state
        with self.database.reading() as connection:
            numbers = job_numbers(connection, text, status, before, JOBS_SHOWN + 1)
            jobs = _jobs(connection, numbers[:JOBS_SHOWN])
        lines = [self.line(job) for job in jobs]
        if state in ("running", "lost"):
            lines = [line for line in lines if line.state == state]
        return lines, numbers[JOBS_SHOWN - 1] if len(numbers) > JOBS_SHOWN else None

    def line(self, job: Job) -> JobLine:
        """A job in one line; of large ones what was read when somebody looked at them."""
        tally = self._tallies.of(self._generation, job.id, job.command)
        with tally.lock:
            rows = tally.count(self.database)
            if rows - tally.seen <= _COUNTED_WHOLE:
                tally.advance(self.database, READ_AT_ONCE, READ_S)
            progress = JobProgress.of(job.progress)
            rate = progress.rate or (tally.rate(self.database) if job.runs else None)
            counts = tally.counts
            if not tally.complete:
                counts = told_by(job) or TrialCounts(rows)
            return _line(job, tally, progress, counts, rate)

    def workers(self, job: int | None = None) -> list[WorkerLine]:
        """Workers that reported, those of the newest jobs first."""
        with self.database.reading() as connection:
            moment = now(connection)
            return [
                WorkerLine(
                    number,
                    worker,
                    (moment - worker.seen_at).total_seconds() if worker.seen_at else None,
                )
                for number, worker in workers_seen(connection, job, WORKERS_SHOWN)
            ]

    # -- one job ----------------------------------------------------------------------------------
    def job(self, number: int) -> Job | None:
        """A job by its number."""
        with self.database.reading() as connection:
            if not job_exists(connection, number):
                return None
            return _jobs(connection, [number])[0]

    def tally(self, job: Job) -> JobTally:
        """The trials of a job, brought up to date; take its `lock` to read it."""
        tally = self._tallies.of(self._generation, job.id, job.command)
        with tally.lock:
            tally.advance(self.database, READ_AT_ONCE, READ_S)
        return tally

    def page(self, job: Job, section: str, text: str) -> dict[str, Any]:
        """Values of a job's page."""
        tally = self.tally(job)
        line = self.line(job)
        workers = self.workers(job.id)
        with tally.lock:
            weights = line.progress.weights
            tasks = sorted(tally.tasks.values(), key=lambda t: _cost(t, weights), reverse=True)
            tasks = _found(tasks, text)
            if section == "tasks":
                for task in tasks[:TASKS_SHOWN]:
                    name = task.name
                    subject = name.workload, name.target, name.threads
                    task.origin = self._origin(subject, name.measured_by)
            gains = [task.gain for task in tally.tasks.values() if task.gain]
            return {
                "line": line,
                "job": job,
                "section": section,
                "sections": SECTIONS,
                "tasks": tasks[:TASKS_SHOWN],
                "tasks_found": len(tasks),
                "tasks_total": len(tally.tasks),
                "charts": charts(tasks[:CHARTS_SHOWN]) if section == "convergence" else [],
                "failures": _failures(tally.failures),
                "failed": tally.failed,
                "counted": sum(task.trials for task in tally.tasks.values()),
                "rows": tally.seen,
                "rows_total": tally.count(self.database),
                "complete": tally.complete,
                "models": list(tally.models),
                "hosts": tally.hosts.most_common(20),
                "workers": workers,
                "set_aside": [w for w in workers if w.worker.state == "set aside"],
                "greatest": max(gains, default=None),
                "widest": max([1.0, *gains]),
                "text": text,
            }

    def _origin(self, subject: tuple[str, str, int], measured_by: str) -> str:
        """How the best on record of a workload, target and thread count was found; "" if none."""
        way: MeasuredBy = "hardware" if measured_by == "hardware" else "simulator"
        return self.database.origin(*subject, way) or ""


def charts(tasks: Sequence[TaskTally]) -> list[tuple[TaskTally, ConvergenceChart]]:
    """Convergence of each task that has something to draw."""
    drawn = [
        (task, chart([("best", task.points, task.trials)], task.default_s, task.again))
        for task in tasks
    ]
    return [(task, chart) for task, chart in drawn if chart is not None]


def _jobs(connection: Connection, numbers: Sequence[int]) -> list[Job]:
    moment = now(connection)
    return [job_of(row_of(connection, number), moment) for number in numbers]


def _line(
    job: Job, tally: JobTally, progress: JobProgress, counts: TrialCounts, rate: float | None
) -> JobLine:
    runs, ran = job.runs, _ran(job)
    if not runs:
        rate = counts.trials / ran if ran > 0 and counts.trials else None
    left = progress.left_s
    if left is None and progress.limit and rate:
        left = max(0.0, progress.limit - (progress.trials or 0)) / rate
    return JobLine(
        job,
        title_of(job.command),
        "lost" if job.lost else job.status,
        counts,
        rate,
        left if runs else None,
        progress.gain or tally.gain(progress.weights),
        ran,
        progress,
    )


def _ran(job: Job) -> float:
    """Seconds it ran; of one that does not tell when it ended, until its last sign of life."""
    end = job.ended_at or job.heartbeat_at
    return max(0.0, (end - job.started_at).total_seconds()) if end else 0.0


def _cost(task: TaskTally, weights: Mapping[str, float]) -> tuple[bool, float]:
    """By what a task costs the model, as far as the job tells how often each runs."""
    weight = weights.get(task.name.workload, 1.0)
    return task.name.measured_by == "hardware", weight * (task.best_s or 0.0)


def _found(tasks: Sequence[TaskTally], text: str) -> list[TaskTally]:
    """Tasks whose workload, target or way of measuring holds every word."""
    words = text.lower().split()
    return [
        task
        for task in tasks
        if all(
            word in f"{task.name.workload} {task.name.target} {task.name.measured_by}".lower()
            for word in words
        )
    ]


def _failures(tallies: Mapping[str, FailureTally]) -> list[dict[str, Any]]:
    """Kinds of failures with their messages, the most frequent first."""
    return [
        {
            "status": status,
            "count": failure.count,
            "messages": [
                {"text": text, "count": count, "workload": failure.workloads[text]}
                for text, count in failure.messages.most_common(MESSAGES_SHOWN)
            ],
            "different": len(failure.messages),
        }
        for status, failure in sorted(tallies.items(), key=lambda item: -item[1].count)
    ]
