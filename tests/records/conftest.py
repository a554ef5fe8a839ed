"""Databases to test on (an SQLite file, a PostgreSQL server) and records to put into them.

PostgreSQL is the server that `TILESMITH_TEST_POSTGRES_URL` names (a database that may be emptied),
else one started here from the system's own binaries, else these tests are skipped with a message.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from benchmarks.subjects.postgres_server import binaries, server_user
from tilesmith.records import Database, Toolchain, TuningRecord
from tilesmith.records.schema.models import metadata
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config

TARGET = "cpu-0123abcd"
NOW = Toolchain("0.1.0", "22", "1", "1", "1")
THEN = Toolchain("0.0.9", "21", "0", "0", "0")
KEY = "matmul m=64 n=64 k=64"

MakeRecord = Callable[..., TuningRecord]


def _make_record(
    config: dict[str, Any] | int = 1,
    latency: float | tuple[float, ...] = 1e-3,
    *,
    workload: str = KEY,
    status: str = "ok",
    measured_by: str = "hardware",
    message: str = "it failed",
    **more: Any,
) -> TuningRecord:
    knobs = {"tile": config} if isinstance(config, int) else config
    samples = latency if isinstance(latency, tuple) else (latency,)
    ok = status == "ok"
    result = MeasureResult(
        status,  # type: ignore[arg-type]
        measured_by,  # type: ignore[arg-type]
        samples if ok else (),
        "" if ok else message,
    )
    return TuningRecord(workload, TARGET, Config.of(knobs), result, **more)


@pytest.fixture
def make_record() -> MakeRecord:
    """A record from as little as a tile size and a latency in seconds."""
    return _make_record


@pytest.fixture
def at() -> Callable[[int], datetime]:
    """A point in time, `n` seconds after another."""
    return lambda n: datetime(2026, 1, 1, 0, n // 60, n % 60, tzinfo=UTC)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a PostgreSQL database that tests may empty."""
    given = os.environ.get("TILESMITH_TEST_POSTGRES_URL")
    if given:
        yield given
        return
    tools = binaries()
    if tools is None:
        pytest.skip("no PostgreSQL: neither TILESMITH_TEST_POSTGRES_URL nor a server's binaries")
    yield from _serve(tools)


def _serve(tools: Path) -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="tilesmith-postgres-"))
    user = server_user(folder)
    url = f"postgresql://tester@/postgres?host={folder}"
    data = f"{folder}/data"
    try:
        _initialise([tools / "initdb", "-D", data, "-U", "tester", "-A", "trust", "-N"], user)
        command = [tools / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses="]
        server = subprocess.Popen(
            [*map(str, command), "-c", "fsync=off", "-c", "max_connections=40"],
            user=user,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_end_with_parent,
        )
        try:
            _wait_until_up(url, server)
            yield url
        finally:
            server.send_signal(signal.SIGINT)  # its "fast" shutdown
            server.wait(timeout=300)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end_with_parent() -> None:
    """Ask Linux to end the server when the tests end, even if they crash (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGINT)


def _wait_until_up(url: str, server: subprocess.Popen[bytes]) -> None:
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    for _ in range(300):
        try:
            engine.connect().close()
            break
        except OperationalError:
            if server.poll() is not None:
                pytest.skip(f"PostgreSQL ended with code {server.returncode} when it was started")
            time.sleep(0.1)
    engine.dispose()


def _initialise(command: list[object], user: str | None) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(
        words, user=user, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/"
    )
    if done.returncode:
        pytest.skip(f"PostgreSQL could not be set up: {done.stderr.strip()[-300:]}")


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite database without trials, to be copied: migrations need not run for every test."""
    path = tmp_path_factory.mktemp("empty") / "empty.db"
    Database.open(str(path)).close()
    return path


class _Emptied:
    """A server's database, empty again: migrations run the first time, and after tests that changed
    the tables or what the migrations wrote into them; else rows are removed and numbers restart.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
        self._migrated: list[tuple[Any, ...]] = []

    def location(self) -> str:
        """The URL, once the database is empty."""
        with self._engine.begin() as connection:
            if self._migrated and _state(connection) == self._migrated:
                _remove_rows(connection)
                return self._url
            connection.execute(text("DROP SCHEMA public CASCADE"))
            connection.execute(text("CREATE SCHEMA public"))
        Database.open(self._url).close()
        with self._engine.begin() as connection:
            self._migrated = _state(connection)
        return self._url

    def close(self) -> None:
        self._engine.dispose()


_OF_MIGRATIONS = ("about", "schema_version")
"""Tables whose rows migrations write."""

_COLUMNS = """SELECT relname, relkind, attname, atttypid, attnotnull, atthasdef FROM pg_attribute
JOIN pg_class ON attrelid = pg_class.oid
WHERE relnamespace = 'public'::regnamespace AND attnum > 0 ORDER BY relname, attnum"""


def _state(connection: Connection) -> list[tuple[Any, ...]]:
    """Columns of all tables, indices and views, and the rows of `_OF_MIGRATIONS`."""
    columns = [tuple(row) for row in connection.execute(text(_COLUMNS))]
    if not {row[0] for row in columns}.issuperset(_OF_MIGRATIONS):
        return columns
    rows = (connection.execute(text(f"SELECT * FROM {table}")) for table in _OF_MIGRATIONS)
    return columns + sorted(tuple(row) for found in rows for row in found)


def _remove_rows(connection: Connection) -> None:
    tables = [name for name in metadata.tables if name not in _OF_MIGRATIONS]
    asked = ", ".join(f"EXISTS (SELECT 1 FROM {table})" for table in tables)
    holding = connection.execute(text(f"SELECT {asked}")).one()
    if full := [table for table, some in zip(tables, holding, strict=True) if some]:
        connection.execute(text(f"TRUNCATE {', '.join(full)} CASCADE"))
    used = "SELECT sequencename FROM pg_sequences WHERE last_value IS NOT NULL"
    for (sequence,) in connection.execute(text(used)).all():
        connection.execute(text(f"ALTER SEQUENCE {sequence} RESTART"))


@pytest.fixture(scope="session")
def emptied(postgres: str) -> Iterator[_Emptied]:
    """The server's database, which every test that asks for its location gets without rows."""
    server = _Emptied(postgres)
    yield server
    server.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path, empty_file: Path) -> str:
    """Where an empty database is, once for each backend."""
    if request.param == "sqlite":
        return str(shutil.copy(empty_file, tmp_path / "tuning.db"))
    server: _Emptied = request.getfixturevalue("emptied")
    return server.location()


@pytest.fixture
def database(location: str) -> Iterator[Database]:
    """An empty database of today's versions, on each backend."""
    with Database.open(location, toolchain=NOW) as opened:
        yield opened


@pytest.fixture
def sqlite(tmp_path: Path, empty_file: Path) -> Iterator[Database]:
    """An empty SQLite database, where the backend does not matter."""
    path = shutil.copy(empty_file, tmp_path / "own.db")
    with Database.open(str(path), toolchain=NOW) as opened:
        yield opened


@pytest.fixture
def versions() -> tuple[Toolchain, Toolchain]:
    """The versions the databases here are opened with, and older ones."""
    return NOW, THEN


@pytest.fixture
def target() -> str:
    """The target of every record made here."""
    return TARGET


@pytest.fixture
def key() -> str:
    """The workload of records that name none."""
    return KEY
