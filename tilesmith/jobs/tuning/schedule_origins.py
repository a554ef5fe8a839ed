"""How the schedules of a job's workloads were found, as compiling them will say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilesmith.compiler.settling.chooser import ScheduleChooser
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.origin import Origin
from tilesmith.search_space.support.errors import TilesmithError

if TYPE_CHECKING:
    from tilesmith.jobs.tuning.tune_reports import WorkloadReport
    from tilesmith.records import Database


def with_origins(
    tasks: Sequence[WorkloadReport], database: Database, target: Target, threads: int
) -> tuple[WorkloadReport, ...]:
    """Reports of tasks with the origin of what is on record of each, or stands in for it."""
    chooser = ScheduleChooser(target, database, threads)
    reports = []
    for task in tasks:
        origin = None
        if task.best_us is not None:
            origin = database.origin(task.workload, target, threads, task.measured_by)
        try:
            origin = origin or chooser.best(task.workload).origin
        except TilesmithError:  # no schedule at all
            origin = Origin(task.schedule)
        reports.append(replace(task, schedule=origin))
    return tuple(reports)
