"""`Store`: an open database, its connections and transactions; `Database` adds the meaning."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, Engine

from tilesmith.records import engine as engines
from tilesmith.records import schema
from tilesmith.records.jobs import Lease
from tilesmith.records.toolchain import Toolchain
from tilesmith.search_space.errors import DatabaseError


class Store:
    """An open database.

    Attributes:
        name: how messages call it.
        toolchain: this installation's versions, written with new records; `stale` is judged by it.
        read_only: why it may not be written from here, "" where it may.
    """

    def __init__(self, engine: Engine, name: str, toolchain: Toolchain, read_only: str) -> None:
        self.name = name
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
    ) -> Self:
        """Open a database, made or brought to the newest schema where needed.

        Args:
            location: a file (SQLite) or a SQLAlchemy URL.
            create: whether a file that does not exist is made.
            toolchain: this installation's versions; default `Toolchain.installed()`.
            read_only: whether every transaction is to be one that reads, whatever this user may;
                an old schema stays as it is and is refused.

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
        engine = engines.make_engine(url)
        if read_only:
            engines.make_read_only(engine)
        try:
            refusal = schema.prepare(engine, name, writable=writable)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine, name, toolchain or Toolchain.installed(), refusal)

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
        self.close()

    # -- transactions -----------------------------------------------------------------------------
    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees one state of the database, for questions not asked here."""
        self._check_process()
        with engines.translated(self.name), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that writes: committed at the end of the block, rolled back on an error."""
        self._check_process()
        if self.read_only:
            raise DatabaseError(f"database '{self.name}' {self.read_only}")
        with engines.translated(self.name):
            writer = self._engine.connect().execution_options(tilesmith_write=True)
            with writer as connection, connection.begin():
                yield connection

    def _check_process(self) -> None:
        """After a fork, leave the parent's connections alone and make new ones."""
        if self._process != os.getpid():
            self._engine.dispose(close=False)
            self._process = os.getpid()

    def compact(self) -> None:
        """Give the space of removed rows back to the disk."""
        with engines.translated(self.name):
            engines.compact(self._engine)
