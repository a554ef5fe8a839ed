"""A running job's signs of life, and what it tells of its progress: a thread beside the search.

While `beating` runs, the database hears every few seconds that the job lives, and where it is. A
beat that fails is not the job's end: the next commit finds out for itself what is wrong.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tilesmith.records.database import Database
from tilesmith.records.jobs.job import BEAT_S
from tilesmith.records.trials.record import WorkerReport
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.support.json_object import object_of
from tilesmith.search_space.workloads.template import template_of
from tilesmith.tuner.session.progress import Progress

Observer = Callable[[Progress], None]

Pause = Callable[[], str]
"""Why a job is to wait before its next batch; "" if it is not."""

_PAUSED_S = 0.5
"""Seconds until a job that is paused asks again."""

_RATE_OVER_S = 60.0
_JOIN_S = 2.0


_TASK = "workload:workload.key weight trials default_us:default_s best_us:best_s"


class _Told:
    """The newest progress as plain data, for whoever asks the database; thread-safe.

    Trials a second are those of the last minute.
    """

    def __init__(self) -> None:
        self._latest: Progress | None = None
        self._counts: deque[tuple[float, int]] = deque()

    def take(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._latest is not None and self._latest.measured_by != progress.measured_by:
            self._counts.clear()
        self._latest = progress
        self._counts.append((now, progress.trials))
        while now - self._counts[0][0] > _RATE_OVER_S and len(self._counts) > 2:
            self._counts.popleft()

    def workers(self, *, ended: bool = False) -> list[WorkerReport]:
        """Who measures, as they last were; `ended` at the end of the job."""
        reports = () if self._latest is None else self._latest.workers
        gone = ("lost", "set aside")
        return [w if not ended or w.state in gone else replace(w, state="ended") for w in reports]

    def to_json(self) -> dict[str, Any] | None:
        """What `jobs.progress` holds (docs/database.md); None before the first trial."""
        latest, counts = self._latest, list(self._counts)
        if latest is None:
            return None
        seconds, trials = counts[-1][0] - counts[0][0], counts[-1][1] - counts[0][1]
        return {
            "measured_by": latest.measured_by,
            "trials": latest.trials,
            "trials_limit": latest.trials_limit,
            "doing": latest.doing,
            "counts": latest.counts.to_json(),
            "elapsed_s": round(latest.elapsed_s, 3),
            "left_s": None if latest.left_s is None else round(latest.left_s, 3),
            "trials_per_s": round(trials / seconds, 3) if seconds > 0 else None,
            "tasks": [
                {
                    **object_of(task, _TASK),
                    "flops": template_of(task.workload.operator).flops(task.workload),
                }
                for task in latest.tasks
            ],
        }


@contextmanager
def beating(
    database: Database, job: int | None, observer: Observer | None, pause: Pause | None = None
) -> Iterator[Observer]:
    """Beat for a job held by `database` while the block runs; gives the observer to run it with.

    Args:
        job: None beats for nothing (a replay writes nothing).
        observer: is told of progress as well.
        pause: as for `run_job`; the job is paused where it tells of progress.
    """
    latest, ended = _Told(), threading.Event()
    number = -1 if job is None else job

    def observe(progress: Progress) -> None:
        latest.take(progress)
        if observer is not None:
            observer(progress)
        while pause is not None and (why := pause()):
            latest.take(replace(progress, doing=why))
            time.sleep(_PAUSED_S)

    def beat() -> None:
        while not ended.wait(BEAT_S):
            with contextlib.suppress(TilesmithError):
                database.beat(number, latest.to_json())
                if workers := latest.workers():
                    database.write_workers(number, workers)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    if job is not None:
        thread.start()
    try:
        yield observe
    finally:
        ended.set()
        if job is not None:
            thread.join(_JOIN_S)
            with contextlib.suppress(TilesmithError):
                database.tell(job, latest.to_json())
                if workers := latest.workers(ended=True):
                    database.write_workers(job, workers)
