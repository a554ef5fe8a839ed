"""Tuning jobs: who asked for what, how far it came, and the state to resume from.

The state is a text of the tuner's own. It is written in the transaction of the results it follows
from (`Database.add`), so that after `kill -9` it speaks of exactly the trials that are there.
"""

from __future__ import annotations

import platform
import secrets
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, insert, select, update

from tilesmith.records.models import JobRow
from tilesmith.records.reading import Rows
from tilesmith.records.record import Job, JobStatus
from tilesmith.records.writing import storable
from tilesmith.search_space.errors import DatabaseError


def start(connection: Connection, command: str, seed: int, strategy: str, state: str | None) -> int:
    """Register a job as running; its number."""
    values = {
        "uid": secrets.token_hex(16),
        "command": storable(command),
        "seed": seed,
        "strategy": strategy,
        "state": state,
        "status": "running",
        "message": "",
        "host": platform.node(),
        "started_at": datetime.now(UTC),
    }
    key = connection.execute(insert(JobRow).values(**values)).inserted_primary_key
    assert key is not None
    return int(key[0])


def finish(connection: Connection, job: int, status: JobStatus, message: str) -> None:
    """Mark a job as ended; "running" marks it as taken up again."""
    ended = None if status == "running" else datetime.now(UTC)
    change(connection, job, status=status, message=storable(message), ended_at=ended)


def change(connection: Connection, job: int, **values: Any) -> None:
    """Set columns of a job; `DatabaseError` if there is no such job."""
    if not connection.execute(update(JobRow).where(JobRow.id == job).values(**values)).rowcount:
        raise _no_job(job)


def state(connection: Connection, job: int) -> str | None:
    """The state of a job; `DatabaseError` if there is no such job."""
    row = connection.execute(select(JobRow.state).where(JobRow.id == job)).first()
    if row is None:
        raise _no_job(job)
    return row[0]


def listed(connection: Connection, command: str | None, status: str | None) -> list[Job]:
    """Jobs, the newest first, with that command or status if given."""
    query: Rows = select(
        JobRow.id,
        JobRow.command,
        JobRow.seed,
        JobRow.strategy,
        JobRow.status,
        JobRow.message,
        JobRow.started_at,
        JobRow.ended_at,
        JobRow.host,
        JobRow.state.is_not(None).label("has_state"),
    ).order_by(JobRow.id.desc())
    if command is not None:
        query = query.where(JobRow.command == command)
    if status is not None:
        query = query.where(JobRow.status == status)
    rows = connection.execute(query).mappings()
    return [Job(**{**row, "has_state": bool(row["has_state"])}) for row in rows]


def _no_job(job: int) -> DatabaseError:
    return DatabaseError(f"the database has no job {job}; 'tilesmith db query --json' names jobs")
