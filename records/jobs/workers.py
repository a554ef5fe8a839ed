"""What the workers of a running job tell: one row each, renewed with every report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, insert, select, update

from tilesmith.records.schema.clock import UtcNow
from tilesmith.records.schema.models import WORKERS
from tilesmith.records.trials.record import WorkerReport
from tilesmith.records.trials.writing import storable


def write(connection: Connection, job: int, reports: Sequence[WorkerReport]) -> None:
    """Renew the rows of workers, by name, on an open write transaction; others stay."""
    query = select(WORKERS.c.name, WORKERS.c.id).where(WORKERS.c.job_id == job)
    known = {row.name: row.id for row in connection.execute(query)}
    for report in reports:
        values: dict[str, Any] = {
            "host": storable(report.host),
            "machine": report.machine,
            "state": report.state,
            "message": storable(report.message),
            "trials": report.trials,
            "failures": report.failures,
            "pace": report.pace,
            "seen_at": UtcNow(),
        }
        name = storable(report.name)
        if name in known:
            connection.execute(update(WORKERS).where(WORKERS.c.id == known[name]).values(values))
        else:
            new = {"job_id": job, "name": name, "started_at": UtcNow(), **values}
            connection.execute(insert(WORKERS).values(new))


def read(connection: Connection, job: int) -> list[WorkerReport]:
    """The workers of a job by name, as they last reported."""
    names = list(WorkerReport.__dataclass_fields__)
    columns = [WORKERS.c[name] for name in names]
    query = select(*columns).where(WORKERS.c.job_id == job).order_by(WORKERS.c.name)
    return [WorkerReport(**row) for row in connection.execute(query).mappings()]
