"""Questions of whoever watches jobs while they run: each reads a bounded number of rows.

Functions here take an open connection (`Database.reading`). A watcher asks again every few seconds
and so reads only what is new: trials of a job are told apart by their number, which only one writer
hands out, so what has a higher number than the last one seen is new, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, func, or_, select

from tilesmith.records.models import (
    JobRow,
    SeriesRow,
    TargetRow,
    TrialRow,
    WorkerRow,
    WorkloadRow,
)
from tilesmith.records.queries import Filter, conditions
from tilesmith.records.record import WorkerReport

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
            TrialRow.id,
            TrialRow.series_id,
            TrialRow.status,
            TrialRow.latency_s,
            TrialRow.config_digest,
            TrialRow.host,
            func.substr(TrialRow.message, 1, MESSAGE_LENGTH),
        )
        .where(TrialRow.job_id == job, TrialRow.id > after)
        .order_by(TrialRow.id)
        .limit(limit)
    )
    return [Glance(*row) for row in connection.execute(query)]


def last_moments(connection: Connection, job: int, limit: int) -> list[datetime]:
    """When the last trials of a job were made, by the clock of who committed them, newest first."""
    query = select(TrialRow.created_at).where(TrialRow.job_id == job)
    return list(connection.execute(query.order_by(TrialRow.id.desc()).limit(limit)).scalars())


class Counted(NamedTuple):
    """How many trials, and the lowest and highest number of them."""

    trials: int
    first: int
    last: int


def count_trials(connection: Connection, job: int, after: int = 0) -> Counted:
    """Trials of a job with a number above `after`; its numbers are `after` where there are none.

    The index of jobs tells. Whoever asks for a job's first trials begins at the lowest number:
    a server that is asked for "the first after 0" may walk there through all other jobs' trials.
    """
    query = select(func.count(), func.min(TrialRow.id), func.max(TrialRow.id))
    query = query.where(TrialRow.job_id == job, TrialRow.id > after)
    count, first, last = connection.execute(query).one()
    return Counted(int(count), int(first or after), int(last or after))


def names_of(connection: Connection, series: Collection[int]) -> dict[int, SeriesName]:
    """What some series are about."""
    query = (
        select(
            SeriesRow.id,
            WorkloadRow.key,
            WorkloadRow.operator,
            TargetRow.identity,
            SeriesRow.threads,
            SeriesRow.measured_by,
        )
        .join(WorkloadRow, WorkloadRow.id == SeriesRow.workload_id)
        .join(TargetRow, TargetRow.id == SeriesRow.target_id)
        .where(SeriesRow.id.in_(series))
    )
    return {row[0]: SeriesName(*row[1:]) for row in connection.execute(query)}


def fastest_of_job(
    connection: Connection, job: int, series: Collection[int]
) -> tuple[int, float, str] | None:
    """Number, latency and configuration digest of a job's fastest trial in some series.

    Of each configuration the last word counts; None where nothing works.
    """
    found: list[tuple[float, str, int]] = []
    for number in series:
        row = connection.execute(
            select(TrialRow.latency_s, TrialRow.config_digest, TrialRow.id)
            .where(TrialRow.series_id == number, TrialRow.latest, TrialRow.latency_s.is_not(None))
            .where(TrialRow.job_id == job)
            .order_by(TrialRow.latency_s, TrialRow.config_digest)
            .limit(1)
        ).first()
        if row is not None and row[0] is not None:
            found.append((row[0], row[1], row[2]))
    if not found:
        return None
    latency, digest, number = min(found)
    return number, latency, digest


def latency_of(connection: Connection, series: Sequence[int], config_digest: str) -> float | None:
    """The last word on a configuration in some series; None if it was not tried or failed."""
    return connection.execute(
        select(TrialRow.latency_s)
        .where(TrialRow.series_id.in_(series), TrialRow.config_digest == config_digest)
        .where(TrialRow.latest, TrialRow.latency_s.is_not(None))
        .order_by(TrialRow.id.desc())
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
    query = select(JobRow.id).order_by(JobRow.id.desc()).limit(limit)
    for word in text.split():
        query = query.where(
            or_(
                *(
                    column.icontains(word, autoescape=True)
                    for column in (JobRow.command, JobRow.host, JobRow.message)
                )
            )
        )
    if status:
        query = query.where(JobRow.status == status)
    if before is not None:
        query = query.where(JobRow.id < before)
    return list(connection.execute(query).scalars())


def job_exists(connection: Connection, job: int) -> bool:
    """Whether there is a job of that number."""
    return connection.execute(select(JobRow.id).where(JobRow.id == job)).first() is not None


def workers_seen(
    connection: Connection, job: int | None, limit: int
) -> list[tuple[int, WorkerReport]]:
    """Workers with the number of their job: of one job, or of the newest ones; by job and name."""
    names = list(WorkerReport.__dataclass_fields__)
    columns = [getattr(WorkerRow, name) for name in names]
    query = select(WorkerRow.job_id, *columns).limit(limit)
    query = query.order_by(WorkerRow.job_id.desc(), WorkerRow.name)
    if job is not None:
        query = query.where(WorkerRow.job_id == job)
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
        select(WorkloadRow.key)
        .join(SeriesRow, SeriesRow.workload_id == WorkloadRow.id)
        .join(TargetRow, TargetRow.id == SeriesRow.target_id)
        .where(*about_series)
        .group_by(WorkloadRow.key)
        .order_by(WorkloadRow.key)
        .limit(limit)
        .offset(offset)
    )
    return list(connection.execute(query).scalars())


def operators(connection: Connection) -> list[str]:
    """Operators of all workloads."""
    query = select(WorkloadRow.operator).distinct().order_by(WorkloadRow.operator)
    return list(connection.execute(query).scalars())


def target_identities(connection: Connection, limit: int = 200) -> list[str]:
    """Identities of targets, in their order."""
    query = select(TargetRow.identity).order_by(TargetRow.identity).limit(limit)
    return list(connection.execute(query).scalars())
