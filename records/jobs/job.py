"""Tuning jobs: who asked for what, who runs it, how far it came, and the state to resume from.

The state is a text of the tuner's own. It is written in the transaction of the results it follows
from (`Database.add`), so that after `kill -9` it speaks of exactly the trials that are there.

Whoever runs a job holds its *lease*, a token in the job's row, and every commit is fenced by it:
`advance` counts the job's steps only for the token that is there. A process that was taken for
dead and comes back finds another token and writes nothing. The step tells a commit whose outcome
was never heard of (the server died) from one that did not happen.
"""

import json
import platform
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, func, insert, select, update

from tilesmith.records.jobs import processes
from tilesmith.records.jobs.clock import UtcNow, now
from tilesmith.records.schema.faults import GoneError
from tilesmith.records.schema.models import ABOUT, JOBS, TRIALS
from tilesmith.records.trials.reading import Rows
from tilesmith.records.trials.record import Job, JobStatus
from tilesmith.records.trials.writing import storable
from tilesmith.search_space.support.errors import DatabaseError, JobError

BEAT_S = 5.0
"""Seconds between two signs of life of a running job."""

DEAD_AFTER_S = 60.0
"""A job of another machine that was silent for so long by the server's clock is taken for dead."""

WATCH_S = 3 * BEAT_S
"""How long a job of another machine is watched before it is taken over: clocks can be set."""

_held: set[str] = set()
"""Tokens that this process holds: a job of its own that it gave up is not running."""


class LeaseLost(JobError):  # noqa: N818  (not a mistake: somebody else goes on)
    """Another process has taken the job over."""


@dataclass
class Lease:
    """The right to write for a job.

    Attributes:
        step: of the job's last commit that is known to have happened.
        uid: of the database that gave it.
        ending: whether it was tried to give it up.
    """

    job: int
    step: int = 0
    uid: str = ""
    ending: bool = False
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        _held.add(self.token)

    def release(self) -> None:
        """This process no longer acts under it."""
        _held.discard(self.token)


def start(
    connection: Connection,
    command: str,
    seed: int,
    strategy: str,
    state: str | None,
    lease: str | None = None,
) -> int:
    """Register a job as running, held by `lease` if this process is to run it; its number.

    A job that this lease started already is not started again.
    """
    if lease is not None:
        known = connection.execute(select(JOBS.c.id).where(JOBS.c.lease == lease)).scalar()
        if known is not None:
            return int(known)
    values = {
        "uid": secrets.token_hex(16),
        "command": storable(command),
        "seed": seed,
        "strategy": strategy,
        "state": state,
        "status": "running",
        "message": "",
        "started_at": UtcNow(),
        **_here(lease),
        "known_until": connection.execute(select(func.max(TRIALS.c.id))).scalar() or 0,
    }
    key = connection.execute(insert(JOBS).values(**values)).inserted_primary_key
    assert key is not None
    return int(key[0])


def _here(lease: str | None) -> dict[str, Any]:
    """The columns that say who holds a job's lease, for this process."""
    return {
        "host": platform.node(),
        "owner": storable(processes.owner()),
        "process": processes.signature(),
        "lease": lease,
        "heartbeat_at": UtcNow(),
    }


def take_over(connection: Connection, seen: RowMapping, lease: str) -> bool:
    """Give a job that was `seen` (`row_of`) not to run to `lease`, unless somebody was quicker."""
    unchanged = [
        JOBS.c.status == seen["status"],
        JOBS.c.step == seen["step"],
        JOBS.c.lease.is_(None) if seen["lease"] is None else JOBS.c.lease == seen["lease"],
    ]
    taken = update(JOBS).where(JOBS.c.id == seen["id"], *unchanged)
    taken = taken.values(status="running", message="", ended_at=None, **_here(lease))
    return bool(connection.execute(taken).rowcount)


def advance(connection: Connection, lease: Lease, state: str | None) -> bool:
    """Begin the job's next commit; False if that very commit has already happened.

    Raises:
        LeaseLost: somebody else runs the job now.
        GoneError: this is another database, or a copy in which the job is elsewhere.
    """
    values: dict[str, Any] = {"step": lease.step + 1, "heartbeat_at": UtcNow()}
    if state is not None:
        values["state"] = state
    mine = (JOBS.c.id == lease.job, JOBS.c.lease == lease.token)
    fenced = update(JOBS).where(*mine, JOBS.c.step == lease.step)
    if connection.execute(fenced.values(**values)).rowcount:
        return True
    row = check_lease(connection, lease)
    if row["step"] == lease.step + 1:
        return False
    raise GoneError(
        f"the database was replaced by another copy while job {lease.job} ran: it knows of "
        f"{row['step']} commits of the job where this process made {lease.step}"
    )


def beat(connection: Connection, lease: Lease, progress: Mapping[str, Any] | None) -> None:
    """Give a sign of life, and tell of progress; `LeaseLost` if somebody else runs the job."""
    values: dict[str, Any] = {"heartbeat_at": UtcNow()}
    if progress is not None:
        values["progress"] = storable(json.dumps(progress))
    mine = (JOBS.c.id == lease.job, JOBS.c.lease == lease.token)
    if not connection.execute(update(JOBS).where(*mine).values(**values)).rowcount:
        check_lease(connection, lease)


def tell(connection: Connection, job: int, progress: Mapping[str, Any]) -> None:
    """Store the progress of a job that no process runs."""
    ended = (JOBS.c.id == job, JOBS.c.lease.is_(None))
    values = {"progress": storable(json.dumps(progress))}
    connection.execute(update(JOBS).where(*ended).values(**values))


def check_lease(connection: Connection, lease: Lease) -> RowMapping:
    """The job's row; `LeaseLost` or `GoneError` if it is not this process's."""
    query = select(*_COLUMNS).where(JOBS.c.id == lease.job)
    row = connection.execute(query).mappings().first()
    if row is None or uid(connection) != lease.uid:
        raise GoneError(f"the database was replaced by another one while job {lease.job} ran")
    if row["lease"] != lease.token:
        raise LeaseLost(
            f"job {lease.job} was taken over by {row['owner']} while this process gave no sign "
            "of life; what it committed before is kept, and it ends here without writing more"
        )
    return row


def finish(
    connection: Connection, job: int, status: JobStatus, message: str, lease: Lease | None = None
) -> None:
    """Mark a job as ended and give its lease up; "running" marks it as taken up again."""
    ended = None if status == "running" else UtcNow()
    if lease is not None:
        row = connection.execute(select(*_COLUMNS).where(JOBS.c.id == job)).mappings().first()
        if row and row["lease"] is None and row["step"] == lease.step and lease.ending:
            return  # it was marked, and nobody heard of it
        check_lease(connection, lease)
        lease.ending = True
    change(connection, job, status=status, message=storable(message), ended_at=ended, lease=None)


def change(connection: Connection, job: int, **values: Any) -> None:
    """Set columns of a job; `DatabaseError` if there is no such job."""
    if not connection.execute(update(JOBS).where(JOBS.c.id == job).values(**values)).rowcount:
        raise _no_job(job)


def state(connection: Connection, job: int) -> str | None:
    """The state of a job; `DatabaseError` if there is no such job."""
    row = connection.execute(select(JOBS.c.state).where(JOBS.c.id == job)).first()
    if row is None:
        raise _no_job(job)
    status: str | None = row[0]
    return status


_COLUMNS = (
    JOBS.c.id,
    JOBS.c.command,
    JOBS.c.seed,
    JOBS.c.strategy,
    JOBS.c.status,
    JOBS.c.message,
    JOBS.c.started_at,
    JOBS.c.ended_at,
    JOBS.c.host,
    JOBS.c.state.is_not(None).label("has_state"),
    JOBS.c.owner,
    JOBS.c.heartbeat_at,
    JOBS.c.progress,
    JOBS.c.lease,
    JOBS.c.process,
    JOBS.c.step,
)


def row_of(connection: Connection, job: int) -> RowMapping:
    """A job's row without its state; `DatabaseError` if there is none."""
    row = connection.execute(select(*_COLUMNS).where(JOBS.c.id == job)).mappings().first()
    if row is None:
        raise _no_job(job)
    return row


def listed(
    connection: Connection, command: str | None, status: str | None, limit: int | None = None
) -> list[Job]:
    """Jobs, the newest first, with that command or status if given."""
    query: Rows = select(*_COLUMNS).order_by(JOBS.c.id.desc()).limit(limit)
    if command is not None:
        query = query.where(JOBS.c.command == command)
    if status is not None:
        query = query.where(JOBS.c.status == status)
    moment = now(connection)
    return [job_of(row, moment) for row in connection.execute(query).mappings()]


def job_of(row: RowMapping, moment: datetime) -> Job:
    """A job as it is at a moment of the server's clock."""
    values = dict(row)
    token, process, _ = (values.pop(name) for name in ("lease", "process", "step"))
    beaten = row["heartbeat_at"]
    silent = None if beaten is None else (moment - beaten).total_seconds()
    return Job(
        **{
            **values,
            "has_state": bool(row["has_state"]),
            "owner": row["owner"] or "",
            "silent_s": silent,
            "lost": row["status"] == "running" and not _at_work(token, process, silent),
            "progress": json.loads(row["progress"] or "{}"),
        }
    )


def _at_work(token: str | None, process: str | None, silent_s: float | None) -> bool:
    """Whether somebody holds the lease: its process tells where it can be seen, else its beats.

    A heartbeat from the future counts as a sign of life: the clock was set back.
    """
    if token is None:
        return False
    if process and process == processes.signature():
        return token in _held
    alive = processes.lives(process or "")
    if alive is not None:
        return alive
    return silent_s is not None and silent_s < DEAD_AFTER_S


def is_doubtful(row: RowMapping, job: Job) -> bool:
    """Whether a clock alone says that a job is dead or alive, and not a likely reading of it."""
    if job.status != "running" or row["lease"] is None or job.silent_s is None:
        return False
    return processes.lives(row["process"] or "") is None and not 0 <= job.silent_s < DEAD_AFTER_S


def uid(connection: Connection) -> str:
    """The random identity of a database."""
    query = select(ABOUT.c.value).where(ABOUT.c.name == "uid")
    return str(connection.execute(query).scalar())


def _no_job(job: int) -> DatabaseError:
    return DatabaseError(f"the database has no job {job}; 'tilesmith db jobs' lists them")
