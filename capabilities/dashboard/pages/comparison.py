"""Two jobs side by side: the workloads both tuned, who came further, and who got there sooner."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tilesmith.capabilities.dashboard.data.tally import TaskTally
from tilesmith.capabilities.dashboard.data.watching import job_numbers
from tilesmith.capabilities.dashboard.pages.convergence import ConvergenceChart, chart
from tilesmith.capabilities.dashboard.pages.job_pages import JobsWatch
from tilesmith.display.titles import title_of
from tilesmith.records.trials.reading import by_number

WITHIN = 1.05
"""Latencies up to so many times the better job's best count as reached."""

PAIRS_SHOWN = 60
CHARTS_SHOWN = 12
JOBS_OFFERED = 50


@dataclass(frozen=True)
class _Pair:
    """A workload that both jobs tuned, by one way of measuring.

    Attributes:
        ratio: a's best over b's: above 1 b is faster; None unless both work.
        trials_a, trials_b: trials until within 5 % of the better of the two; None: never.
        knobs: (knob, a's value, b's value) where the best configurations differ; "-" is absent.
    """

    a: TaskTally
    b: TaskTally
    trials_a: int | None
    trials_b: int | None
    knobs: tuple[tuple[str, str, str], ...]
    drawn: ConvergenceChart | None

    @property
    def ratio(self) -> float | None:
        return self.a.best_s / self.b.best_s if self.a.best_s and self.b.best_s else None


def compare(watch: JobsWatch, a: int | None, b: int | None) -> dict[str, Any]:
    """Values of the page; without two jobs that exist, only what may be chosen."""
    with watch.database.reading() as connection:
        offered = job_numbers(connection, "", "", None, JOBS_OFFERED)
    jobs = {number: line for number in offered if (line := watch.job(number)) is not None}
    left, right = (watch.job(n) if n is not None else None for n in (a, b))
    values: dict[str, Any] = {
        "offered": list(jobs.values()),
        "titles": {number: title_of(job.command) for number, job in jobs.items()},
        "a": left,
        "b": right,
        "missing": [n for n, job in ((a, left), (b, right)) if n is not None and job is None],
        "pairs": [],
    }
    if left is None or right is None:
        return values
    tallies = watch.tally(left), watch.tally(right)
    lines = watch.line(left), watch.line(right)
    sides = []
    for tally in tallies:
        with tally.lock:
            sides.append(_by_subject(tally.tasks.values()))
    common = [subject for subject in sides[0] if subject in sides[1]]
    configs = _configs(
        watch, [sides[i][subject] for i in (0, 1) for subject in common[:PAIRS_SHOWN]]
    )
    pairs = [
        _pair(sides[0][subject], sides[1][subject], configs, (left.id, right.id), i < CHARTS_SHOWN)
        for i, subject in enumerate(common[:PAIRS_SHOWN])
    ]
    ratios = [pair.ratio for pair in pairs if pair.ratio]
    return {
        **values,
        "line_a": lines[0],
        "line_b": lines[1],
        "pairs": pairs,
        "common": len(common),
        "only_a": len(sides[0]) - len(common),
        "only_b": len(sides[1]) - len(common),
        "ratio": math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None,
        "complete": all(tally.complete for tally in tallies),
    }


def _by_subject(tasks: Iterable[TaskTally]) -> dict[tuple[str, str], TaskTally]:
    """Tasks by workload and way of measuring; of several targets the one tried most."""
    by_subject: dict[tuple[str, str], TaskTally] = {}
    for task in sorted(tasks, key=lambda task: task.trials):
        by_subject[task.name.workload, task.name.measured_by] = task
    return dict(sorted(by_subject.items(), key=lambda item: -(item[1].best_s or 0.0)))


def _configs(watch: JobsWatch, tasks: Iterable[TaskTally]) -> dict[int, Mapping[str, Any]]:
    """Best configurations by the numbers of their trials."""
    numbers = sorted({task.best_id for task in tasks if task.best_id is not None})
    with watch.database.reading() as connection:
        records = by_number(connection, numbers)
    return {record.id: dict(record.config) for record in records if record.id is not None}


def _pair(
    a: TaskTally,
    b: TaskTally,
    configs: Mapping[int, Mapping[str, Any]],
    jobs: tuple[int, int],
    drawn: bool,
) -> _Pair:
    bests = [task.best_s for task in (a, b) if task.best_s]
    goal = min(bests) * WITHIN if bests else 0.0
    lines = [
        (f"job {job}", task.points, task.trials) for job, task in zip(jobs, (a, b), strict=True)
    ]
    ours, theirs = (configs.get(task.best_id or 0, {}) for task in (a, b))
    knobs = tuple(
        (name, str(ours.get(name, "-")), str(theirs.get(name, "-")))
        for name in dict.fromkeys([*ours, *theirs])
        if ours.get(name) != theirs.get(name)
    )
    return _Pair(
        a,
        b,
        a.reached(goal) if goal else None,
        b.reached(goal) if goal else None,
        knobs,
        chart(lines, a.default_s or b.default_s) if drawn else None,
    )
