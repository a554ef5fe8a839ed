"""Questions of whoever watches jobs while they run: each reads a bounded number of rows.

Functions here take an open connection (`Database.reading`). A watcher asks again every few seconds
and so reads only what is new: trials of a job are told apart by their number, which only one writer
hands out, so what has a higher number than the last one seen is new, and nothing else is.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, func, or_, select

from tilesmith.records.questions.queries import Filter, conditions
from tilesmith.records.schema.models import JOBS, SERIES, TARGETS, TRIALS, WORKERS, WORKLOADS
from tilesmith.records.trials.record import WorkerReport

MESSAGE_LENGTH = 400
"""Characters of a failure's message that are read."""


class Glance(NamedTuple):
    """What is read of each trial of a watched job; `latency_s` is None unless it worked."""

    id: int
    series: int
    status: str
    latency_s: float | None
    config_digest: str
    host: str
    message: str


class SeriesName(NamedTuple):
    """What the trials of a series are about."""

    workload: str
    operator: str
    target: str
    threads: int
    measured_by: str


def new_trials(connection: Connection, job: int, after: int, limit: int) -> list[Glance]:
    """The first `limit` trials of a job with a number above `after`, in their order."""
    query = (
        select(
            TRIALS.c.id,
            TRIALS.c.series_id,
            TRIALS.c.status,
            TRIALS.c.latency_s,
            TRIALS.c.config_digest,
            TRIALS.c.host,
            func.substr(TRIALS.c.message, 1, MESSAGE_LENGTH),
        )
        .where(TRIALS.c.job_id == job, TRIALS.c.id > after)
        .order_by(TRIALS.c.id)
        .limit(limit)
    )
    return [Glance(*row) for row in connection.execute(query)]


def last_moments(connection: Connection, job: int, limit: int) -> list[datetime]:
    """When the last trials of a job were made, by the clock of who committed them, newest first."""
    query = select(TRIALS.c.created_at).where(TRIALS.c.job_id == job)
    return list(connection.execute(query.order_by(TRIALS.c.id.desc()).limit(limit)).scalars())


class Counted(NamedTuple):
    """How many rows of trials, and the lowest and highest number of them."""

    rows: int
    first: int
    last: int


def count_rows(connection: Connection, job: int, after: int = 0) -> Counted:
    """Rows of a job with a number above `after`; its numbers are `after` where there are none.

    The index of jobs tells. Whoever asks for a job's first trials begins at the lowest number:
    a server that is asked for "the first after 0" may walk there through all other jobs' trials.
    """
    query = select(func.count(), func.min(TRIALS.c.id), func.max(TRIALS.c.id))
    query = query.where(TRIALS.c.job_id == job, TRIALS.c.id > after)
    count, first, last = connection.execute(query).one()
    return Counted(int(count), int(first or after), int(last or after))


def names_of(connection: Connection, series: Collection[int]) -> dict[int, SeriesName]:
    """What some series are about."""
    query = (
        select(
            SERIES.c.id,
            WORKLOADS.c.key,
            WORKLOADS.c.operator,
            TARGETS.c.identity,
            SERIES.c.threads,
            SERIES.c.measured_by,
        )
        .join(WORKLOADS, WORKLOADS.c.id == SERIES.c.workload_id)
        .join(TARGETS, TARGETS.c.id == SERIES.c.target_id)
        .where(SERIES.c.id.in_(series))
    )
    return {row[0]: SeriesName(*row[1:]) for row in connection.execute(query)}


def fastest_of_job(
    connection: Connection, job: int, series: Collection[int]
) -> tuple[int, float, str] | None:
    """Number, latency and configuration digest of a job's fastest trial in some series.

    Of each configuration the last word counts; None where nothing works.
    """
    trials: list[tuple[float, str, int]] = []
    for number in series:
        row = connection.execute(
            select(TRIALS.c.latency_s, TRIALS.c.config_digest, TRIALS.c.id)
            .where(TRIALS.c.series_id == number, TRIALS.c.latest, TRIALS.c.latency_s.is_not(None))
            .where(TRIALS.c.job_id == job)
            .order_by(TRIALS.c.latency_s, TRIALS.c.config_digest)
            .limit(1)
        ).first()
        if row is not None and row[0] is not None:
            trials.append((row[0], row[1], row[2]))
    if not trials:
        return None
    latency, digest, number = min(trials)
    return number, latency, digest


def latency_of(connection: Connection, series: Sequence[int], config_digest: str) -> float | None:
    """The last word on a configuration in some series; None if it was not tried or failed."""
    return connection.execute(
        select(TRIALS.c.latency_s)
        .where(TRIALS.c.series_id.in_(series), TRIALS.c.config_digest == config_digest)
        .where(TRIALS.c.latest, TRIALS.c.latency_s.is_not(None))
        .order_by(TRIALS.c.id.desc())
        .limit(1)
    ).scalar()


def job_numbers(
    connection: Connection, text: str, status: str, before: int | None, limit: int
) -> list[int]:
    """Numbers of jobs, the newest first.

    Args:
        text: words, each of which is in the command, the host or the message, ignoring case.
        status: only such jobs; "" any.
        before: only jobs with a lower number.
    """
    query = select(JOBS.c.id).order_by(JOBS.c.id.desc()).limit(limit)
    for word in text.split():
        query = query.where(
            or_(
                *(
                    column.icontains(word, autoescape=True)
                    for column in (JOBS.c.command, JOBS.c.host, JOBS.c.message)
                )
            )
        )
    if status:
        query = query.where(JOBS.c.status == status)
    if before is not None:
        query = query.where(JOBS.c.id < before)
    return list(connection.execute(query).scalars())


def job_exists(connection: Connection, job: int) -> bool:
    """Whether there is a job of that number."""
    return connection.execute(select(JOBS.c.id).where(JOBS.c.id == job)).first() is not None


def workers_seen(
    connection: Connection, job: int | None, limit: int
) -> list[tuple[int, WorkerReport]]:
    """Workers with the number of their job: of one job, or of the newest ones; by job and name."""
    names = list(WorkerReport.__dataclass_fields__)
    columns = [WORKERS.c[name] for name in names]
    query = select(WORKERS.c.job_id, *columns).limit(limit)
    query = query.order_by(WORKERS.c.job_id.desc(), WORKERS.c.name)
    if job is not None:
        query = query.where(WORKERS.c.job_id == job)
    return [
        (row[0], WorkerReport(**dict(zip(names, row[1:], strict=True))))
        for row in connection.execute(query)
    ]


def workload_keys(connection: Connection, where: Filter, limit: int, offset: int) -> list[str]:
    """Keys of the workloads that have series which pass a filter, in their order.

    Only what a filter asks of series counts: workload, operator, target, threads, measured_by.
    """
    about_series, _ = conditions(where)
    query = (
        select(WORKLOADS.c.key)
        .join(SERIES, SERIES.c.workload_id == WORKLOADS.c.id)
        .join(TARGETS, TARGETS.c.id == SERIES.c.target_id)
        .where(*about_series)
        .group_by(WORKLOADS.c.key)
        .order_by(WORKLOADS.c.key)
        .limit(limit)
        .offset(offset)
    )
    return list(connection.execute(query).scalars())


def operators(connection: Connection) -> list[str]:
    """Operators of all workloads."""
    query = select(WORKLOADS.c.operator).distinct().order_by(WORKLOADS.c.operator)
    return list(connection.execute(query).scalars())


def target_identities(connection: Connection, limit: int = 200) -> list[str]:
    """Identities of targets, in their order."""
    query = select(TARGETS.c.identity).order_by(TARGETS.c.identity).limit(limit)
    return list(connection.execute(query).scalars())


class TrialLine(NamedTuple):
    """A trial as a list shows it; `latency_s` is None unless it worked."""

    id: int
    workload: str
    target: str
    measured_by: str
    status: str
    latency_s: float | None
    message: str
    created_at: datetime


def trials_of_job(
    connection: Connection, job: int, workload: str, status: str, before: int | None, limit: int
) -> list[TrialLine]:
    """Trials of a job, the newest first.

    Args:
        workload: words, each of which is in the workload's key, ignoring case.
        status: only such trials; "" any.
        before: only trials with a lower number.
    """
    query = (
        select(
            TRIALS.c.id,
            WORKLOADS.c.key,
            TARGETS.c.identity,
            SERIES.c.measured_by,
            TRIALS.c.status,
            TRIALS.c.latency_s,
            func.substr(TRIALS.c.message, 1, MESSAGE_LENGTH),
            TRIALS.c.created_at,
        )
        .join(SERIES, SERIES.c.id == TRIALS.c.series_id)
        .join(WORKLOADS, WORKLOADS.c.id == SERIES.c.workload_id)
        .join(TARGETS, TARGETS.c.id == SERIES.c.target_id)
        .where(TRIALS.c.job_id == job)
        .order_by(TRIALS.c.id.desc())
        .limit(limit)
    )
    for word in workload.split():
        query = query.where(WORKLOADS.c.key.icontains(word, autoescape=True))
    if status:
        query = query.where(TRIALS.c.status == status)
    if before is not None:
        query = query.where(TRIALS.c.id < before)
    return [TrialLine(*row) for row in connection.execute(query)]


def configs_tried(
    connection: Connection, job: int, series: Collection[int], limit: int
) -> list[tuple[int, str, float]]:
    """Number, configuration and latency of a job's last trials in some series that worked."""
    query = (
        select(TRIALS.c.id, TRIALS.c.config, TRIALS.c.latency_s)
        .where(TRIALS.c.job_id == job, TRIALS.c.series_id.in_(series))
        .where(TRIALS.c.latency_s.is_not(None))
        .order_by(TRIALS.c.id.desc())
        .limit(limit)
    )
    return [(row[0], row[1], row[2]) for row in connection.execute(query)]
