"""What the pages about jobs and their workers show: values for the templates."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from statistics import median
from typing import Any

from sqlalchemy import Connection

from tilesmith.dashboard.convergence import Chart, chart
from tilesmith.dashboard.progress import Told
from tilesmith.dashboard.tally import FailureTally, JobTally, Tallies, TaskTally
from tilesmith.records import Database, Job
from tilesmith.records.clock import now
from tilesmith.records.jobs import job_of, row_of
from tilesmith.records.record import WorkerReport
from tilesmith.records.watching import (
    job_exists,
    job_numbers,
    workers_seen,
)

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

SECTIONS = ("convergence", "tasks", "failures", "workers", "about")
"""Parts of a job's page, one shown at a time; the first one unless asked."""


@dataclass(frozen=True)
class JobLine:
    """A job as a list shows it.

    Attributes:
        state: its status, or "lost" for a running one that gave no sign of life for too long.
        rate: trials a second, lately if it runs, else on average; None before there are some.
        left_s: seconds until its budget is spent, as it told; None if it did not.
        gain: best against default, as the job told of the whole, or the median of its tasks.
        ran_s: seconds from start to end, or until now.
        told: what the job says of itself.
    """

    job: Job
    title: str
    state: str
    trials: int
    rate: float | None
    left_s: float | None
    gain: float | None
    ran_s: float
    told: Told

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


class Watch:
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
        tally = self._tallies.of(self._generation, job.id)
        with tally.lock:
            trials = tally.count(self.database)
            if trials - tally.seen <= _COUNTED_WHOLE:
                tally.advance(self.database, READ_AT_ONCE, READ_S)
            told = Told.of(job.progress)
            rate = told.rate or (tally.rate(self.database) if job.runs else None)
            return _line(job, tally, told, max(trials, tally.seen), rate)

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

    def tally(self, number: int) -> JobTally:
        """The trials of a job, brought up to date; take its `lock` to read it."""
        tally = self._tallies.of(self._generation, number)
        with tally.lock:
            tally.advance(self.database, READ_AT_ONCE, READ_S)
        return tally

    def page(self, job: Job, section: str, text: str) -> dict[str, Any]:
        """Values of a job's page."""
        tally = self.tally(job.id)
        line = self.line(job)
        workers = self.workers(job.id)
        with tally.lock:
            weights = line.told.weights
            tasks = sorted(tally.tasks.values(), key=lambda t: _cost(t, weights), reverse=True)
            tasks = _found(tasks, text)
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
                "counted": tally.trials,
                "complete": tally.complete,
                "models": list(tally.models),
                "hosts": tally.hosts.most_common(20),
                "workers": workers,
                "set_aside": [w for w in workers if w.worker.state == "set aside"],
                "gain": median(gains) if gains else None,
                "greatest": max(gains, default=None),
                "widest": max([1.0, *gains]),
                "text": text,
            }


def charts(tasks: Sequence[TaskTally]) -> list[tuple[TaskTally, Chart]]:
    """Convergence of each task that has something to draw."""
    drawn = [(task, chart([("best", task.points, task.trials)], task.default_s)) for task in tasks]
    return [(task, found) for task, found in drawn if found is not None]


def title_of(command: str) -> str:
    """What a job tunes, in a few words: its models' file names, or its operators."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        return command[:80]
    operators = [after for word, after in pairwise(words) if word == "--op"]
    if operators:
        more = f" and {len(operators) - 1} more" if len(operators) > 1 else ""
        return operators[0] + more
    after = words[words.index("tune") + 1 :] if "tune" in words else words
    if after and not after[0].startswith("-"):
        return PurePath(after[0]).name or after[0]
    return command[:80]


def _jobs(connection: Connection, numbers: Sequence[int]) -> list[Job]:
    moment = now(connection)
    return [job_of(row_of(connection, number), moment) for number in numbers]


def _line(job: Job, tally: JobTally, told: Told, trials: int, rate: float | None) -> JobLine:
    runs, ran = job.runs, _ran(job)
    if not runs:
        rate = trials / ran if ran > 0 and trials else None
    gains = [task.gain for task in tally.tasks.values() if task.gain]
    left = told.left_s
    if left is None and told.limit and rate:
        left = max(0.0, told.limit - (told.trials or 0)) / rate
    return JobLine(
        job,
        title_of(job.command),
        "lost" if job.lost else job.status,
        trials,
        rate,
        left if runs else None,
        told.gain or (median(gains) if gains else None),
        ran,
        told,
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


def _failures(found: Mapping[str, FailureTally]) -> list[dict[str, Any]]:
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
        for status, failure in sorted(found.items(), key=lambda item: -item[1].count)
    ]
