"""Questions about many records: filters, sorting, the fastest, what was tried, the nearest, counts.

Functions here take an open connection; `records.database.Database` is their door. Each is written
so that an index does the work on millions of rows: questions about a workload go through its
series, and the newest trials are those with the highest numbers.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Literal, get_args

from sqlalchemy import Connection, bindparam, func, or_, select, text

from tilesmith.records.questions.bests import Scope, in_scope
from tilesmith.records.schema.models import JOBS, MACHINES, SERIES, TARGETS, TRIALS, WORKLOADS
from tilesmith.records.trials.reading import Told, by_number, first_of_each_series
from tilesmith.records.trials.record import MODEL, TuningRecord
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import STATUSES, MeasuredBy, Status
from tilesmith.search_space.support.errors import DatabaseError

Sort = Literal["newest", "oldest", "fastest", "slowest", "workload"]
"""By number (order of arrival), by median latency (working trials only), or by series."""

SORTS: tuple[str, ...] = get_args(Sort)

_NEAR = 100_000  # trials looked through from their end before an index is asked
_PARAMETERS = 10_000  # a statement may have about 32,000


@dataclass(frozen=True)
class Filter:
    """Which trials; None or "" allows any. Texts are found anywhere, ignoring case.

    Attributes:
        workload: part of the key; `*` stands for anything.
        operator: exact name.
        target: exact name or identity.
        status: one status, or "failed" for all but ok.
        config, message, host, machine: part of the text.
        faster_than, slower_than: bounds of the median latency in seconds.
        since, until: bounds of the time of measuring.
        latest: only the last word on each configuration.
    """

    workload: str = ""
    operator: str = ""
    target: str = ""
    threads: int | None = None
    measured_by: MeasuredBy | None = None
    status: Status | Literal["failed"] | None = None
    config: str = ""
    message: str = ""
    host: str = ""
    machine: str = ""
    job: int | None = None
    faster_than: float | None = None
    slower_than: float | None = None
    since: datetime | None = None
    until: datetime | None = None
    latest: bool = False

    def __post_init__(self) -> None:
        if self.status not in (None, "failed", *STATUSES):
            allowed = ", ".join(("failed", *STATUSES))
            raise DatabaseError(f"unknown status '{self.status}'; one of {allowed} is expected")


def query(
    connection: Connection,
    where: Filter,
    sort: Sort,
    limit: int | None,
    offset: int,
    damaged: Told | None = None,
) -> list[TuningRecord]:
    """Trials that pass `where`: first their numbers, over narrow index rows, then the rest.

    Args:
        damaged: as of `by_number`.
    """
    if sort not in SORTS:
        raise DatabaseError(f"cannot sort by '{sort}'; one of {', '.join(SORTS)} is expected")
    stop = None if limit is None else limit + offset
    if sort in ("fastest", "slowest"):
        numbers = _by_latency(connection, where, stop, descending=sort == "slowest")
        numbers = numbers[offset:]
    elif sort == "workload":
        numbers = list(islice(_by_series(connection, where), offset, stop))
    else:
        numbers = _by_arrival(connection, where, limit, offset, sort == "newest")
    return by_number(connection, numbers, damaged)


def _by_arrival(
    connection: Connection, where: Filter, limit: int | None, offset: int, newest: bool
) -> list[int]:
    """Numbers of trials in the order they came, or the other way round.

    Where an index finds what is asked for (series, job), the last `_NEAR` trials are looked through
    first, then the index is taken: a server that is asked for both at once may rather walk through
    all trials from that end on, which takes long where those asked for are at the other.
    """
    about_series, about_trials = conditions(where)
    if about_series:
        about_trials.append(_in_series(connection, about_series))
    indexed = bool(about_series) or where.job is not None
    order = TRIALS.c.id.desc() if newest else TRIALS.c.id
    if indexed and limit is not None:
        end = connection.execute(select(func.max(TRIALS.c.id))).scalar() or 0
        near = TRIALS.c.id > end - _NEAR if newest else TRIALS.c.id <= _NEAR
        rows = select(TRIALS.c.id).where(near, *about_trials).order_by(order)
        page = connection.execute(rows.limit(limit).offset(offset or None)).scalars().all()
        if len(page) == limit:
            return list(page)
    rows = select(TRIALS.c.id).where(*about_trials)
    if not indexed:
        rows = rows.order_by(order).limit(limit).offset(offset or None)
        return list(connection.execute(rows).scalars())
    numbers = rows.offset(0).subquery().c.id  # OFFSET 0: the order must not choose the index
    ordered = select(numbers).order_by(numbers.desc() if newest else numbers)
    return list(connection.execute(ordered.limit(limit).offset(offset or None)).scalars())


_SERIES = (
    select(SERIES.c.id)
    .join(WORKLOADS, WORKLOADS.c.id == SERIES.c.workload_id)
    .join(TARGETS, TARGETS.c.id == SERIES.c.target_id)
    .order_by(WORKLOADS.c.key, TARGETS.c.identity, SERIES.c.id)
)
"""Numbers of series by workload and target."""


def _in_series(connection: Connection, about_series: list[Any]) -> Any:
    """That a trial is in a series of which `about_series` holds.

    Finding the series first lets an index find their trials.
    """
    query = _SERIES.where(*about_series)
    numbers = connection.execute(query).scalars().all()
    return TRIALS.c.series_id.in_(numbers if len(numbers) <= _PARAMETERS else query.order_by(None))


def _by_series(connection: Connection, where: Filter) -> Iterator[int]:
    """Numbers of trials by workload, target and series, the fastest first, failures last."""
    about_series, about_trials = conditions(where)
    series = connection.execute(_SERIES.where(*about_series)).scalars().all()
    trials = (
        select(TRIALS.c.id)
        .where(TRIALS.c.series_id == bindparam("series"), *about_trials)
        .order_by(TRIALS.c.latency_s.is_(None), TRIALS.c.latency_s, TRIALS.c.id)
    )
    for number in series:
        yield from connection.execute(trials, {"series": number}).scalars()


def _by_latency(
    connection: Connection, where: Filter, count: int | None, *, descending: bool
) -> list[int]:
    """Numbers of the fastest (or slowest) working trials: each series' first, merged.

    The first `count` of all are in the `count` series whose first come first.
    """
    about_series, _ = conditions(where)
    firsts: list[tuple[float, str, int, int]] = []
    for latest in (True,) if where.latest else (True, False):
        series = about_series
        if count is not None and count <= _PARAMETERS:
            heads = _firsts(connection, where, series, latest, 1, descending)
            series = [SERIES.c.id.in_([number for *_, number in heads[:count]])]
        firsts += _firsts(connection, where, series, latest, count, descending)
    return [number for _, _, number, _ in sorted(firsts)[:count]]


def _firsts(
    connection: Connection,
    where: Filter,
    about_series: list[Any],
    latest: bool,
    count: int | None,
    descending: bool,
) -> list[tuple[float, str, int, int]]:
    """The first `count` of each series: latency (negative if descending), digest, trial, series."""
    trial = TRIALS.alias()
    latency = trial.c.latency_s.desc() if descending else trial.c.latency_s
    first = (
        select(trial.c.id)
        .where(trial.c.series_id == SERIES.c.id, trial.c.latest == latest)
        .where(trial.c.latency_s.is_not(None), *_about_trials(where, trial))
        .order_by(latency, trial.c.config_digest)
        .limit(count)
        .correlate(SERIES)
    )
    rows = connection.execute(
        first_of_each_series(connection.dialect.name, first, trial)
        .join(WORKLOADS, WORKLOADS.c.id == SERIES.c.workload_id)
        .join(TARGETS, TARGETS.c.id == SERIES.c.target_id)
        .where(*about_series)
    )
    sign = -1 if descending else 1
    return sorted(
        (sign * (row.latency_s or 0.0), row.config_digest, row.id, row.series_id) for row in rows
    )


def conditions(where: Filter) -> tuple[list[Any], list[Any]]:
    """What a filter asks of (joined) series and of trials."""
    about_series: list[Any] = []
    if where.operator:
        about_series.append(WORKLOADS.c.operator == where.operator)
    if where.threads is not None:
        about_series.append(SERIES.c.threads == where.threads)
    if where.measured_by is not None:
        about_series.append(SERIES.c.measured_by == where.measured_by)
    if where.workload:
        about_series.append(WORKLOADS.c.key.ilike(_pattern(where.workload), escape="\\"))
    if where.target:
        about_series.append(or_(TARGETS.c.name == where.target, TARGETS.c.identity == where.target))
    return about_series, _about_trials(where, TRIALS)


def _about_trials(where: Filter, trial: Any) -> list[Any]:
    conditions: list[Any] = [
        column.ilike(_pattern(part), escape="\\")
        for column, part in (
            (trial.c.config, where.config),
            (trial.c.message, where.message),
            (trial.c.host, where.host),
        )
        if part
    ]
    if where.machine:
        named = MACHINES.c.name.ilike(_pattern(where.machine), escape="\\")
        conditions.append(trial.c.machine_id.in_(select(MACHINES.c.id).where(named)))
    if where.status == "failed":
        conditions.append(trial.c.latency_s.is_(None))
    elif where.status is not None:
        conditions.append(trial.c.status == where.status)
        if where.status != "ok":  # lets the index of latencies find failures
            conditions.append(trial.c.latency_s.is_(None))
    for condition, bound in (
        (trial.c.job_id.__eq__, where.job),
        (trial.c.latency_s.__le__, where.faster_than),
        (trial.c.latency_s.__ge__, where.slower_than),
        (trial.c.created_at.__ge__, where.since),
        (trial.c.created_at.__le__, where.until),
    ):
        if bound is not None:
            conditions.append(condition(bound))
    return [*conditions, trial.c.latest] if where.latest else conditions


def _pattern(part: str) -> str:
    for special in ("\\", "%", "_"):
        part = part.replace(special, f"\\{special}")
    return f"%{part.replace('*', '%')}%"


def fastest(connection: Connection, series: Sequence[int], limit: int) -> list[TuningRecord]:
    """The `limit` fastest trials of some series, one for each configuration."""
    trials: list[tuple[float, str, int]] = []
    for number in series:
        rows = connection.execute(
            select(TRIALS.c.latency_s, TRIALS.c.config_digest, TRIALS.c.id)
            .where(TRIALS.c.series_id == number, TRIALS.c.latest, TRIALS.c.latency_s.is_not(None))
            .order_by(TRIALS.c.latency_s, TRIALS.c.config_digest)
            .limit(limit)
        )
        trials += [(row.latency_s, row.config_digest, row.id) for row in rows]
    return by_number(connection, [number for _, _, number in sorted(trials)[:limit]])


def digests(connection: Connection, series: Sequence[int]) -> set[str]:
    """Digests of every configuration tried in some series (read from the index alone)."""
    tried: set[str] = set()
    for number in series:
        rows = select(TRIALS.c.config_digest).where(TRIALS.c.series_id == number, TRIALS.c.latest)
        tried.update(connection.execute(rows).scalars())
    return tried


def crashed(connection: Connection, scope: Scope) -> list[TuningRecord]:
    """Trials in scope that are the last word on their configuration and crashed a worker."""
    ids = _crashes(TRIALS.c.id, scope).order_by(TRIALS.c.id)
    return by_number(
        connection, [int(number) for number in connection.execute(ids, scope.asked()).scalars()]
    )


def crashed_configs(connection: Connection, scope: Scope) -> list[str]:
    """Only their configurations, as canonical JSON."""
    rows = _crashes(TRIALS.c.config, scope).order_by(TRIALS.c.id)
    return [str(config) for config in connection.execute(rows, scope.asked()).scalars()]


def _crashes(column: Any, scope: Scope) -> Any:
    """Walks `ix_trials_failed`."""
    return (
        select(column)
        .select_from(TRIALS)
        .join(SERIES, SERIES.c.id == TRIALS.c.series_id)
        .join(WORKLOADS, WORKLOADS.c.id == SERIES.c.workload_id)
        .join(TARGETS, TARGETS.c.id == SERIES.c.target_id)
        .where(*in_scope(scope.asked()))
        .where(TRIALS.c.status == "crash", TRIALS.c.latency_s.is_(None), TRIALS.c.latest)
    )


def keys(connection: Connection, operator: str | None) -> list[str]:
    """Keys of all workloads (of an operator), sorted as Python does."""
    query = select(WORKLOADS.c.key)
    if operator is not None:
        query = query.where(WORKLOADS.c.operator == operator)
    return sorted(connection.execute(query).scalars())


def target_facts(connection: Connection, identity: str) -> Target | None:
    """The last known description of a target."""
    facts = connection.execute(
        select(TARGETS.c.facts).where(TARGETS.c.identity == identity)
    ).scalar()
    try:
        return Target.from_json(facts) if facts else None
    except (AttributeError, KeyError, TypeError) as error:  # JSON, but of something else
        raise DatabaseError(f"what the database has of target '{identity}' is damaged") from error


def stats(connection: Connection) -> dict[str, Any]:
    """Counts of everything; `bytes` is the size of the database, None where it cannot be known.

    Trials are those of `records.trials`, as far as an index tells: the last word on each
    configuration; what it took the place of, `measured_again`, and whole models count apart.
    """
    per_series = (
        select(TRIALS.c.series_id, TRIALS.c.latest, func.count().label("trials"))
        .group_by(TRIALS.c.series_id, TRIALS.c.latest)
        .subquery()
    )
    what = (SERIES.c.measured_by, per_series.c.latest, WORKLOADS.c.operator)
    rows = connection.execute(
        select(*what, func.sum(per_series.c.trials))
        .join(per_series, per_series.c.series_id == SERIES.c.id)
        .join(WORKLOADS, WORKLOADS.c.id == SERIES.c.workload_id)
        .group_by(*what)
    )
    by_measured_by: Counter[str] = Counter()
    apart = {"measured_again": 0, "models": 0}
    for label, latest, operator, count in rows:
        if operator == MODEL or not latest:
            apart["models" if operator == MODEL else "measured_again"] += int(count)
        else:
            by_measured_by[label] += int(count)
    failed = _failures(connection)
    trials = sum(by_measured_by.values())
    return {
        "trials": trials,
        **apart,
        **{
            name: int(connection.execute(select(func.count()).select_from(row)).scalar_one())
            for name, row in (("workloads", WORKLOADS), ("targets", TARGETS), ("jobs", JOBS))
        },
        "by_status": {"ok": trials - sum(failed.values()), **failed},
        "by_measured_by": dict(sorted(by_measured_by.items())),
        "bytes": size(connection),
    }


def _failures(connection: Connection) -> dict[str, int]:
    """Failures by status, counted in `ix_trials_failed` alone."""
    rows = connection.execute(
        select(TRIALS.c.status, func.count())
        .where(TRIALS.c.latency_s.is_(None), TRIALS.c.latest)
        .group_by(TRIALS.c.status)
        .order_by(TRIALS.c.status)
    )
    return {status: int(count) for status, count in rows}


def size(connection: Connection) -> int | None:
    """Bytes of the database, None where they cannot be known."""
    match connection.dialect.name:
        case "sqlite":
            pages = connection.execute(text("PRAGMA page_count")).scalar_one()
            return int(pages) * int(connection.execute(text("PRAGMA page_size")).scalar_one())
        case "postgresql":
            return int(
                connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()
            )
        case _:
            return None
