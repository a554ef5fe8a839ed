"""What jobs tell of their tasks, and so of what tuning gained (`search_space.results.gain`).

A job tells its tasks in `jobs.progress` (docs/database.md), which is anybody's text: whatever of it
does not read as expected is left out.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tilesmith.records.trials.record import Best, Job
from tilesmith.search_space.results.gain import Gain, gain_of

_ASKED = re.compile(r" --threads (\d+)\b.*  # (\S+), workloads ")

Subject = tuple[str, str, int]
"""Workload's key, target's identity, threads."""


@dataclass(frozen=True)
class Task:
    """A workload as a job saw it.

    Attributes:
        weight: how often the job's model runs it.
        default_s: seconds of the untuned schedule; None where it was not measured.
        best_s: of the best that the job knew.
        measured_by: how both were measured.
        flops: operations of the workload, in direct form; None where the job does not tell.
    """

    weight: float
    default_s: float | None
    best_s: float | None
    measured_by: str
    flops: float | None = None

    @property
    def told_s(self) -> float:
        """Seconds gained, as the job itself saw it; nothing where it does not tell."""
        gain = gain_of([(self.weight, self.default_s, self.best_s)])
        return 0.0 if gain is None else gain.seconds

    def gained_s(self, best: Best) -> float | None:
        """Return the seconds that a best saves; None without a default measured in the same way."""
        gain = self._gain(best)
        return None if gain is None else gain.seconds

    def gain(self, best: Best) -> float | None:
        """Return how many times as fast as the default a best is; None as `gained_s`."""
        gain = self._gain(best)
        return None if gain is None else gain.times

    def _gain(self, best: Best) -> Gain | None:
        if best.record.result.measured_by != self.measured_by:
            return None
        return gain_of([(self.weight, self.default_s, best.latency)])


def tasks_of(jobs: Iterable[Job]) -> dict[Subject, Task]:
    """What the newest job that tells of it says of each subject.

    Args:
        jobs: the newest first.
    """
    tasks: dict[Subject, Task] = {}
    for job in jobs:
        asked = _ASKED.search(job.command)
        if asked is None:
            continue
        way = str(job.progress.get("measured_by"))
        for key, entry in _entries(job.progress):
            subject = key, asked[2], int(asked[1])
            if subject not in tasks:
                tasks[subject] = _task(entry, way)
    return tasks


def _entries(progress: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """What a job tells of each workload."""
    tasks = progress.get("tasks")
    for entry in tasks if isinstance(tasks, list) else ():
        if isinstance(entry, Mapping) and isinstance(entry.get("workload"), str):
            yield entry["workload"], entry


def _task(entry: Mapping[str, Any], way: str) -> Task:
    weight = _number(entry.get("weight")) or 1.0
    times = (_number(entry.get(name)) for name in ("default_us", "best_us"))
    default_s, best_s = (None if us is None else us * 1e-6 for us in times)
    return Task(weight, default_s, best_s, way, _number(entry.get("flops")))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None
