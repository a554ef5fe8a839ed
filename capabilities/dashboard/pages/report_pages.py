"""The report of a job, made when it is asked for."""

from __future__ import annotations

import threading

from tilesmith.capabilities.dashboard.data.watching import count_rows
from tilesmith.capabilities.dashboard.report.job_report import gather
from tilesmith.capabilities.dashboard.report.page import page
from tilesmith.records import Database, Job
from tilesmith.search_space.support.errors import JobError

MOST_TRIALS = 50_000
"""A report reads every trial of its job; of larger jobs the command makes it."""

_one_at_a_time = threading.Lock()


def report_of(database: Database, job: Job) -> str:
    """The page.

    Raises:
        InputError: the job has no trials.
        JobError: it has too many for a page that somebody waits for.
    """
    with database.reading() as connection:
        rows = count_rows(connection, job.id).rows
    if rows > MOST_TRIALS:
        raise JobError(
            f"job {job.id} has {rows:,} measurements, too many to gather while you wait; "
            f"'tilesmith report --job {job.id}' writes its report to a file"
        )
    with _one_at_a_time:
        return page(gather(database, job.id))
