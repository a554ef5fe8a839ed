"""What goes wrong below: every failure of a driver becomes one sentence of ours.

What a database is or lacks is a `DatabaseError`, a full disk or an endless lock a `JobError`; a
server that cannot be reached for now is `UnavailableError`, which `Store.patiently` waits out; a
database that is no longer the one that was opened is `GoneError`. No sentence shows a password:
drivers do not repeat it, and databases are called by `engine.display_name`.
"""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tilesmith.records.schema.engine import LOCK_TIMEOUT_S, sqlite_code
from tilesmith.records.schema.models import NoSecondsError
from tilesmith.records.schema.urls import without_password
from tilesmith.search_space.support.errors import DatabaseError, JobError


class UnavailableError(JobError):
    """The server is away, or broke off; what became of a commit in flight is unknown."""


class NotYetError(UnavailableError):
    """The server is there and will have time soon."""


class GoneError(JobError):
    """The database was deleted or replaced by another while it was open."""


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Turn the driver's errors on database `name` into ours."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        broken = isinstance(error, DBAPIError) and error.connection_invalidated
        raise _translation(name, cause, broken) from error
    except SQLAlchemyError as error:
        raise DatabaseError(f"database '{name}': {_first_line(error)}") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:  # bytes that nobody wrote
        raise DatabaseError(f"database '{name}' {_DAMAGED}") from error
    except NoSecondsError as error:
        raise DatabaseError(f"database '{name}' is damaged: {error}; {_NO_SECONDS}") from error
    except ValueError as error:
        if not str(error).startswith(_NO_DATE):
            raise
        raise DatabaseError(f"database '{name}' {_DAMAGED}") from error
    except OverflowError as error:  # sqlite3's own, for what no server could hold either
        raise DatabaseError(f"database '{name}' holds no numbers beyond 64 bits") from error


_DAMAGED = "is damaged; restore a copy, or save what can be read with 'sqlite3 FILE .recover'"

_NO_SECONDS = (
    "restore a copy, or remove such trials: "
    "DELETE FROM trials WHERE typeof(latency_s) IN ('text', 'blob')"
)

_NO_DATE = ("Invalid isoformat string", "Couldn't parse datetime string")
"""How SQLAlchemy, with its extension in C and without, says that a text is no time."""

_Sentence = tuple[type[DatabaseError] | type[JobError], str]

_SQLITE: dict[str, _Sentence] = {
    "SQLITE_NOTADB": (DatabaseError, "is not a tuning database (it is not an SQLite file)"),
    "SQLITE_CORRUPT": (DatabaseError, _DAMAGED),
    "SQLITE_READONLY": (DatabaseError, "is read-only; make it writable or name another file"),
    "SQLITE_CANTOPEN": (
        DatabaseError,
        "cannot be opened; check that you may read it and write its folder",
    ),
    "SQLITE_PERM": (DatabaseError, "cannot be opened: permission denied"),
    "SQLITE_FULL": (
        JobError,
        "cannot grow: the disk is full; what was committed is kept, free some space and resume",
    ),
    "SQLITE_IOERR": (
        JobError,
        "meets a disk error (is it full?); what was committed is kept",
    ),
    "SQLITE_BUSY": (
        JobError,
        f"was locked by another process for {LOCK_TIMEOUT_S:.0f} s; end that process, try again",
    ),
}

_READ_ONLY = "may only be read by this user ({line}); docs/database.md shows what to GRANT"

_POSTGRESQL: dict[str, _Sentence] = {
    "42501": (DatabaseError, _READ_ONLY),
    "25006": (DatabaseError, "may only be read: the server is a standby, or set so"),
    "42P01": (GoneError, "has lost its tables: {line}"),
    "42703": (GoneError, "has lost columns of its tables: {line}"),
    "3D000": (GoneError, "is not there any more: {line}"),
    "53100": (JobError, "cannot grow: the server's disk is full; what was committed is kept"),
    "40001": (UnavailableError, "asks to try again: {line}"),
    "40P01": (UnavailableError, "asks to try again: {line}"),
    "53300": (NotYetError, "has no connection left to give: {line}"),
}
"""By SQLSTATE (PostgreSQL's manual, appendix A); classes 08 and 57 are `UnavailableError`."""

_CONNECTING: tuple[tuple[str, _Sentence], ...] = (
    (
        r"password authentication failed|no password supplied|authentication failed|pg_hba",
        (DatabaseError, "refuses this user or its password (PGPASSWORD, ~/.pgpass)"),
    ),
    (
        r'role "[^"]*" does not exist',
        (DatabaseError, "refuses this user: it has no such"),
    ),
    (
        r'database "[^"]*" does not exist',
        (GoneError, "is not there: the server has no database of that name; 'createdb' makes one"),
    ),
    (r"permission denied for database", (DatabaseError, "refuses this user: no right to connect")),
    (
        r"resolve host|translate host|not known|name resolution",
        (UnavailableError, "cannot be reached: there is no such host"),
    ),
    (r"[Cc]onnection refused", (UnavailableError, "cannot be reached: no server listens there")),
    (
        r"No such file or directory",
        (UnavailableError, "cannot be reached: no server listens there"),
    ),
    (
        r"timeout expired|timed out",
        (UnavailableError, "cannot be reached: the host does not answer"),
    ),
    (r"starting up|shutting down|recovery|not yet accepting", (NotYetError, "is not up yet")),
    (
        r"too many clients|remaining connection slots|too many connections",
        (NotYetError, "has no connection left to give; end other jobs or raise max_connections"),
    ),
)
"""libpq tells failures to connect by their text alone (in English unless the server's set)."""


def _translation(name: str, cause: BaseException | None, broken: bool) -> DatabaseError | JobError:
    line = without_password(_first_line(cause))
    if str(cause).startswith("Could not decode to UTF-8"):  # sqlite3's own, without a code
        return DatabaseError(f"database '{name}' {_DAMAGED}")
    kind, sentence = _sentence(cause, broken)
    return kind(f"database '{name}' {sentence.format(line=line)}")


def _sentence(cause: BaseException | None, broken: bool) -> _Sentence:
    if isinstance(cause, sqlite3.Error):
        return _SQLITE.get(sqlite_code(cause), (DatabaseError, "failed: {line}"))
    state = str(getattr(cause, "sqlstate", None) or "")
    if state in _POSTGRESQL:
        return _POSTGRESQL[state]
    if state[:2] in ("08", "57") and state != "57014":  # 57014: a statement's own timeout
        return UnavailableError, "broke off: {line}"
    if not state:
        for pattern, sentence in _CONNECTING:
            if re.search(pattern, str(cause)):
                return sentence
    if broken or type(cause).__name__ in ("OperationalError", "InterfaceError"):
        return UnavailableError, "broke off: {line}"
    return DatabaseError, "failed: {line}"


def _first_line(error: BaseException | None) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
