"""`Store`: an open database, its connections and transactions; `Database` adds the meaning."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from sqlalchemy import Connection, Engine

from tilesmith.records.jobs.job import Lease
from tilesmith.records.opened import damage
from tilesmith.records.schema import engine as engines
from tilesmith.records.schema import versioning as schema
from tilesmith.records.schema.faults import GoneError, NotYetError, UnavailableError, translated
from tilesmith.records.trials.toolchain import Toolchain
from tilesmith.search_space.support.errors import DatabaseError, TilesmithError

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

OPENING_S = 20.0
"""How long opening waits for a server that is starting, or has no connection left."""

RECONNECTING_S = 300.0
"""How long a running job waits for a server that is away."""

_BY_DAMAGE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What comes of values that their columns should not hold."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0


class Store:
    """An open database.

    Attributes:
        name: how messages call it.
        toolchain: this installation's versions, written with new records; `stale` is judged by it.
        read_only: why it may not be written from here, "" where it may.
        path: the file of an SQLite database.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        toolchain: Toolchain,
        read_only: str,
        path: Path | None = None,
    ) -> None:
        self.name = name
        self.path = path
        self._file = _file_identity(path)
        self._patience_s = 0.0
        self._may_wait: Callable[[], bool] = bool
        self.toolchain = replace(toolchain, schema=schema.REVISIONS[-1])
        self.read_only = read_only
        self._engine = engine
        self._process = os.getpid()
        self._leases: dict[int, Lease] = {}

    @classmethod
    def open(
        cls,
        location: str,
        *,
        create: bool = True,
        toolchain: Toolchain | None = None,
        read_only: bool = False,
        connections: int = 1,
    ) -> Self:
        """Open a database, made or brought to the newest schema where needed.

        Args:
            location: a file (SQLite) or a SQLAlchemy URL.
            create: whether a file that does not exist is made.
            toolchain: this installation's versions; default `Toolchain.installed()`.
            read_only: whether every transaction is to be one that reads, whatever this user may;
                an old schema stays as it is and is refused.
            connections: to a server, how many are kept open; several threads may use more.

        Raises:
            DatabaseError: not a tuning database, of a newer schema, cannot be opened or made.
            DependencyError: the URL's driver is not installed.
        """
        url = engines.parse_url(str(location))
        name, path = engines.display_name(url), engines.sqlite_path(url)
        writable = not read_only
        if path is not None:
            engines.check_file(path, create)
            writable = writable and not engines.is_read_only(path)
        engine = engines.make_engine(url, connections)
        if read_only:
            engines.make_read_only(engine)
        try:
            refusal = _retried(
                lambda: schema.prepare(engine, name, writable=writable), NotYetError, OPENING_S
            )
        except (UnavailableError, GoneError) as error:
            engine.dispose()
            raise DatabaseError(str(error)) from error
        except BaseException:
            engine.dispose()
            raise
        _LOG.debug("opened database %s%s", name, f", which {refusal}" if refusal else "")
        return cls(engine, name, toolchain or Toolchain.installed(), refusal, path)

    def close(self) -> None:
        """Give the connections back; the log is folded into the file by the last one."""
        self._engine.dispose(close=self._process == os.getpid())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if isinstance(error, _BY_DAMAGE) and not isinstance(error, TilesmithError):
                self._blame_rows(error)
        finally:
            self.close()

    def _blame_rows(self, error: Exception) -> None:
        """Raise `DatabaseError` for a failure that nobody foresaw, where rows are damaged."""
        try:
            rows = self.damaged_rows()
        except Exception:  # nothing is known of it then
            return
        if rows:
            raise DatabaseError(damage.sentence(self.name, rows)) from error

    # -- transactions -----------------------------------------------------------------------------
    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees one state of the database, for questions not asked here."""
        self._check_process()
        with translated(self.name), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that writes: committed at the end of the block, rolled back on an error."""
        self._check_process()
        if self.read_only:
            raise DatabaseError(f"database '{self.name}' {self.read_only}")
        self.check_there()
        with translated(self.name):
            writer = self._engine.connect().execution_options(tilesmith_write=True)
            with writer as connection, connection.begin():
                yield connection

    def be_patient(
        self, seconds: float = RECONNECTING_S, may_wait: Callable[[], bool] = lambda: True
    ) -> None:
        """From now on wait for a server that is away, as long as `may_wait` allows it."""
        self._patience_s, self._may_wait = seconds, may_wait

    def patiently(self, action: Callable[[], T]) -> T:
        """Do what may be done again: repeated while the server is away, as `be_patient` allows.

        Raises:
            UnavailableError: it did not come back in time.
        """
        return _retried(action, UnavailableError, self._patience_s, self._may_wait)

    def check_there(self) -> None:
        """Make sure that the SQLite file is the one that was opened.

        Raises:
            GoneError: it was deleted or replaced. An open file outlives its name, and what is
                written then is lost.
        """
        if self.path is not None and _file_identity(self.path) != self._file:
            what = "was replaced by another file" if self.path.exists() else "was deleted"
            raise GoneError(f"database '{self.name}' {what} while it was open")

    def _check_process(self) -> None:
        """After a fork, leave the parent's connections alone and make new ones."""
        if self._process != os.getpid():
            self._engine.dispose(close=False)
            self._process = os.getpid()

    def damaged_rows(self) -> tuple[damage.DamagedRow, ...]:
        """Rows that cannot be read (`records.opened.damage`); looks at every row."""
        with self.reading() as connection:
            return damage.damaged_rows(connection)

    def leave_out(self, rows: Iterable[damage.DamagedRow]) -> None:
        """Answer from now on as if these rows were not there; what was opened to be read."""
        damage.leave_out(self._engine, rows)
        self._engine.dispose()

    def compact(self) -> None:
        """Give the space of removed rows back to the disk."""
        with translated(self.name):
            engines.compact(self._engine)


def _file_identity(path: Path | None) -> tuple[int, int] | None:
    try:
        status = path.stat() if path is not None else None
    except OSError:
        return None
    return None if status is None else (status.st_dev, status.st_ino)


def _retried(
    action: Callable[[], T],
    kind: type[UnavailableError],
    seconds: float,
    may_wait: Callable[[], bool] = lambda: True,
) -> T:
    """What an action gives, repeated after errors of a kind with growing pauses."""
    deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE_S
    while True:
        try:
            return action()
        except kind:
            if time.monotonic() + pause > deadline or not may_wait():
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
