"""Connections: from a path or URL to a SQLAlchemy engine that many processes may share.

SQLite is set up for many writers: write-ahead log (readers never wait), one writer at a time
through `BEGIN IMMEDIATE` (so that a transaction never finds out halfway that it may not write),
waiting in short steps so that Ctrl-C is heard. `synchronous = NORMAL`: a commit survives the death
of any process; a loss of power may cost the last commits, never the database.

PostgreSQL: a process keeps one connection (a job's thread and its heartbeat take turns; more are
made while they are needed), so that hundreds of jobs fit one server, and notices a peer that is
gone by the operating system's keepalives.

Messages never show a password: they call a database by `display_name`.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from tilesmith.records.schema.urls import remember_password, without_password
from tilesmith.search_space.support.errors import DatabaseError, DependencyError

LOCK_TIMEOUT_S = 300.0
"""How long a writer waits for the others; a bulk import of five million records fits."""

_BUSY_STEP_MS = 1000
_MORE = 8
"""Connections to a server beyond those kept, while several threads ask at once."""
_POSTGRESQL = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,  # milliseconds
    "application_name": "tilesmith",
}
"""libpq's parameters where a URL does not set them: a peer that is gone is noticed in a minute."""
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
    except (ArgumentError, ValueError):  # its own words would show the password
        raise DatabaseError(
            f"'{without_password(text)}' is not a database URL; give a file or a URL"
        ) from None
    asked = [value for name, value in url.query.items() if name.lower().endswith("password")]
    for password in (url.password, *asked):
        remember_password(password if isinstance(password, str | None) else " ".join(password))
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
    if path:
        return str(path)
    plain = url.set(drivername=url.get_backend_name())
    return without_password(plain.render_as_string(hide_password=True))


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


def make_engine(url: URL, connections: int = 1) -> Engine:
    """An engine, not yet connected.

    Args:
        connections: to a server, how many are kept open between questions.

    Raises:
        DatabaseError: SQLAlchemy knows no such kind of database.
        DependencyError: the driver is not installed.
    """
    path = sqlite_path(url)
    if path is not None and is_read_only(path):
        url = _read_only_url(path)
    options: dict[str, Any] = {}
    if url.get_backend_name() != "sqlite":
        options = {"pool_pre_ping": True, "pool_size": connections, "max_overflow": _MORE}
    if url.get_backend_name() == "postgresql":
        defaults = {n: v for n, v in _POSTGRESQL.items() if n not in url.query}
        options["connect_args"] = defaults
    try:
        engine = create_engine(url, hide_parameters=True, **options)
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
            if sqlite_code(error) != "SQLITE_BUSY" or time.monotonic() > deadline:
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


def sqlite_code(error: BaseException | None) -> str:
    """Primary result code of an SQLite error, by name ("SQLITE_BUSY" also for its variants)."""
    name = str(getattr(error, "sqlite_errorname", ""))
    return "_".join(name.split("_")[:2])
