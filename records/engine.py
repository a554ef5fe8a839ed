"""Connections: from a path or URL to a SQLAlchemy engine that many processes may share.

SQLite is set up for many writers: write-ahead log (readers never wait), one writer at a time
through `BEGIN IMMEDIATE` (so that a transaction never finds out halfway that it may not write),
waiting in short steps so that Ctrl-C is heard. `synchronous = NORMAL`: a commit survives the death
of any process; a loss of power may cost the last commits, never the database.

Every failure of the driver is translated to one sentence: what the file is or lacks is a
`DatabaseError`, a full disk or an endless lock a `JobError`.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from tilesmith.search_space.errors import DatabaseError, DependencyError, JobError

LOCK_TIMEOUT_S = 300.0
"""How long a writer waits for the others; a bulk import of five million records fits."""

_BUSY_STEP_MS = 1000
_SQLITE_MAGIC = b"SQLite format 3\0"


def parse_url(text: str) -> URL:
    """A database URL; a text without '://' is the path of an SQLite file.

    Raises:
        DatabaseError: not a URL, or an empty text.
    """
    if not text:
        raise DatabaseError("the database has no name; give a file or a URL")
    if "://" not in text:
        return URL.create("sqlite", database=str(Path(text).expanduser()))
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise DatabaseError(f"'{text}' is not a database URL; give a file or a URL") from error
    if url.drivername == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    return url


def sqlite_path(url: URL) -> Path | None:
    """The file behind a URL, or None (another server, or SQLite in memory)."""
    name = url.database
    if url.get_backend_name() != "sqlite" or not name or name.startswith((":memory:", "file:")):
        return None
    return Path(name)


def display_name(url: URL) -> str:
    """How messages call the database: its path, or its URL without password."""
    path = sqlite_path(url)
    return str(path) if path else url.render_as_string(hide_password=True)


def check_file(path: Path, create: bool) -> None:
    """Refuse what cannot be a database before SQLite words it less well; `DatabaseError`."""
    if path.is_dir():
        raise DatabaseError(f"database '{path}' is a folder; name a file in it")
    if not path.parent.is_dir():
        raise DatabaseError(f"database '{path}' cannot be opened: no folder '{path.parent}'")
    if not path.exists():
        if not create:
            raise DatabaseError(f"database '{path}' does not exist; 'tilesmith tune' makes one")
        if not os.access(path.parent, os.W_OK):
            raise DatabaseError(f"database '{path}' cannot be made: '{path.parent}' is read-only")
        return
    if not path.is_file():
        raise DatabaseError(f"database '{path}' is a device or a pipe; name a file")
    try:
        with path.open("rb") as file:
            start = file.read(len(_SQLITE_MAGIC))
    except OSError as error:
        raise DatabaseError(f"database '{path}' cannot be read: {error.strerror}") from error
    if start and start != _SQLITE_MAGIC:
        raise DatabaseError(f"'{path}' is not a tuning database (it is not an SQLite file)")


def is_read_only(path: Path) -> bool:
    """Whether this user may not write the file, or may not make the log files beside it.

    A file that nobody may write counts as read-only for root too: somebody marked it so.
    """
    if not path.exists():
        return False
    marked = not path.stat().st_mode & 0o222
    return marked or not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def make_engine(url: URL) -> Engine:
    """An engine, not yet connected.

    Raises:
        DatabaseError: SQLAlchemy knows no such kind of database.
        DependencyError: the driver is not installed.
    """
    path = sqlite_path(url)
    if path is not None and is_read_only(path):
        url = _read_only_url(path)
    try:
        engine = create_engine(url, pool_pre_ping=url.get_backend_name() != "sqlite")
    except NoSuchModuleError as error:
        raise DatabaseError(
            f"'{display_name(url)}' names an unknown kind of database; give a file, sqlite:// or postgresql://"
        ) from error
    except ModuleNotFoundError as error:
        hint = "pip install 'tilesmith[postgresql]'" if "psycopg" in str(error) else error.name
        raise DependencyError(f"database '{display_name(url)}' needs a driver: {hint}") from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def make_read_only(engine: Engine) -> None:
    """Have the database itself refuse every change by this engine's connections."""
    statements = {
        "sqlite": "PRAGMA query_only = ON",
        "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    }
    statement = statements.get(engine.dialect.name)

    def set_up(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(statement)
        cursor.close()
        connection.commit()

    if statement is not None:
        event.listen(engine, "connect", set_up)


def _read_only_url(path: Path) -> URL:
    """Reading a WAL database makes files beside it, unless SQLite is told it is immutable."""
    log, shared = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
    settled = not shared.exists() and (not log.exists() or log.stat().st_size == 0)
    options = {"uri": "true", "mode": "ro", **({"immutable": "1"} if settled else {})}
    return URL.create("sqlite", database=f"file:{path}", query=options)


def _set_up_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin where we say, see _begin_sqlite
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_STEP_MS}")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA cache_size = -65536")
    cursor.execute("PRAGMA temp_store = MEMORY")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    if not connection.get_execution_options().get("tilesmith_write"):
        connection.exec_driver_sql("BEGIN")
        return
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    _patiently(driver, "BEGIN IMMEDIATE")


def _patiently(driver: sqlite3.Connection, statement: str) -> None:
    """Run one statement, waiting for other processes in steps short enough for Ctrl-C."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            driver.execute(statement).close()
            return
        except sqlite3.OperationalError as error:
            if _code(error) != "SQLITE_BUSY" or time.monotonic() > deadline:
                raise


def use_write_ahead_log(engine: Engine) -> None:
    """Put an SQLite file into WAL mode for good (a property of the file; a dump loses it)."""
    if engine.dialect.name != "sqlite":
        return
    with _driver(engine) as driver:
        if driver.execute("PRAGMA journal_mode").fetchone()[0] == "delete":
            _patiently(driver, "PRAGMA journal_mode = WAL")


def compact(engine: Engine) -> None:
    """Give the space of removed rows back to the disk (SQLite; servers do it by themselves)."""
    if engine.dialect.name != "sqlite":
        return
    with _driver(engine) as driver:
        _patiently(driver, "VACUUM")


@contextmanager
def _driver(engine: Engine) -> Iterator[sqlite3.Connection]:
    """SQLite's own connection, outside any transaction."""
    with closing(engine.raw_connection()) as raw:
        driver = raw.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        yield driver


def _code(error: BaseException | None) -> str:
    """Primary result code of an SQLite error, by name ("SQLITE_BUSY" also for its variants)."""
    name = str(getattr(error, "sqlite_errorname", ""))
    return "_".join(name.split("_")[:2])


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Turn the driver's errors on database `name` into ours."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise _translation(name, cause) from error
    except SQLAlchemyError as error:
        raise DatabaseError(f"database '{name}': {_first_line(error)}") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:  # bytes that nobody wrote
        raise DatabaseError(f"database '{name}' {_DAMAGED}") from error
    except OverflowError as error:  # sqlite3's own, for what no server could hold either
        raise DatabaseError(f"database '{name}' holds no numbers beyond 64 bits") from error


_DAMAGED = "is damaged; restore a copy, or save what can be read with 'sqlite3 FILE .recover'"

_SENTENCES: dict[str, tuple[type[DatabaseError] | type[JobError], str]] = {
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


def _translation(name: str, cause: BaseException | None) -> DatabaseError | JobError:
    if str(cause).startswith("Could not decode to UTF-8"):  # sqlite3's own, without a code
        return DatabaseError(f"database '{name}' {_DAMAGED}")
    kind, sentence = _SENTENCES.get(_code(cause), (DatabaseError, f"failed: {_first_line(cause)}"))
    return kind(f"database '{name}' {sentence}")


def _first_line(error: BaseException | None) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
