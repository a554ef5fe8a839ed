"""What jobs that run at the same time have of each other: trials of the same series since a start.

Asked before every batch is measured: two walks along indexes, however large the database.

And what the workers of a running job report: one row each, renewed with every one.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, insert, or_, select, update

from tilesmith.records.jobs.clock import UtcNow
from tilesmith.records.schema.models import JOBS, SERIES, TARGETS, TRIALS, WORKERS, WORKLOADS
from tilesmith.records.trials.reading import select_records, select_series, to_record, to_toolchain
from tilesmith.records.trials.record import TuningRecord, WorkerReport
from tilesmith.records.trials.toolchain import Toolchain
from tilesmith.records.trials.writing import storable

_SERIES = select_series().where(
    WORKLOADS.c.key == bindparam("workload"),
    TARGETS.c.identity == bindparam("target"),
    SERIES.c.threads == bindparam("threads"),
    SERIES.c.measured_by == bindparam("measured_by"),
)

_BEGAN = select(JOBS.c.known_until).where(JOBS.c.id == bindparam("job")).scalar_subquery()

_SINCE = (
    select_records()
    .where(
        TRIALS.c.series_id.in_(bindparam("series", expanding=True)),
        TRIALS.c.config_digest.in_(bindparam("digests", expanding=True)),
        TRIALS.c.latest,
        TRIALS.c.id + 0 > _BEGAN,  # a sum: the index on configurations is the one to walk
        or_(TRIALS.c.job_id.is_(None), TRIALS.c.job_id != bindparam("job")),
    )
    .order_by(TRIALS.c.id)
)


def series(
    connection: Connection, workload: str, target: str, threads: int, measured_by: str
) -> list[tuple[int, Toolchain, str]]:
    """Number, versions and calibration of the series of a workload on a target."""
    asked = {
        "workload": workload,
        "target": target,
        "threads": threads,
        "measured_by": measured_by,
    }
    rows = connection.execute(_SERIES, asked).mappings()
    return [(row["series_id"], to_toolchain(row), row["calibration"]) for row in rows]


def since(
    connection: Connection, job: int, numbers: Sequence[int], digests: Sequence[str]
) -> list[TuningRecord]:
    """Last words on configurations in series, of other jobs, since a job began; oldest first."""
    if not numbers or not digests:
        return []
    asked = {"job": job, "series": list(numbers), "digests": list(digests)}
    return [to_record(row) for row in connection.execute(_SINCE, asked).mappings()]


def report(connection: Connection, job: int, reports: Sequence[WorkerReport]) -> None:
    """Renew the rows of workers, by name, on an open write transaction; others stay."""
    query = select(WORKERS.c.name, WORKERS.c.id).where(WORKERS.c.job_id == job)
    known = {row.name: row.id for row in connection.execute(query)}
    for one in reports:
        texts = {"host": storable(one.host), "message": storable(one.message)}
        values: dict[str, Any] = {**vars(one), **texts, "seen_at": UtcNow()}
        del values["started_at"]
        name = storable(values.pop("name"))
        if name in known:
            connection.execute(update(WORKERS).where(WORKERS.c.id == known[name]).values(values))
        else:
            new = {"job_id": job, "name": name, "started_at": UtcNow(), **values}
            connection.execute(insert(WORKERS).values(new))


def reports_of(connection: Connection, job: int) -> list[WorkerReport]:
    """The workers of a job by name, as they last reported."""
    names = list(WorkerReport.__dataclass_fields__)
    columns = [WORKERS.c[name] for name in names]
    query = select(*columns).where(WORKERS.c.job_id == job).order_by(WORKERS.c.name)
    return [WorkerReport(**row) for row in connection.execute(query).mappings()]
