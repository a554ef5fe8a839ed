"""The database of the live page: opened to be read, and opened anew after it was gone.

Answers are made once for everybody who asks within a second: ten people who watch one job cost the
database what one does.

Invariants: nothing is written. A file that was deleted or replaced is noticed (an open file
outlives its name, and would be shown for ever); a server that went away costs one failed request,
and the next one tries again. Rows that cannot be read are left out, and named in `left_out`.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from tilesmith.records import Database
from tilesmith.records.opened.damage import DamagedRow
from tilesmith.records.schema.engine import parse_url, sqlite_path
from tilesmith.records.schema.faults import GoneError, UnavailableError
from tilesmith.search_space.support.errors import DatabaseError, TilesmithError

Identity = tuple[int, int]


class DatabaseAccess:
    """A database by its location, opened when it is first needed.

    Attributes:
        generation: raised whenever another database may stand where the last one was; what was
            learnt of an older one is void.
        left_out: rows that are not shown, or not in whole, because they cannot be read.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self.generation = 0
        self.left_out: tuple[DamagedRow, ...] = ()
        self._path: Path | None = sqlite_path(parse_url(location))
        self._lock = threading.Lock()
        self._opened: Database | None = None
        self._identity: Identity | None = None

    @contextmanager
    def database(self) -> Iterator[Database]:
        """The open database.

        Raises:
            DatabaseError: it is not there, or cannot be read (now).
        """
        database = self._current()
        try:
            yield database
        except DatabaseError:
            self._forget(database)
            raise

    def awaited(self) -> bool:
        """Whether it is a file that nobody has made yet, in a folder that is there."""
        return self._path is not None and self._path.parent.is_dir() and not self._path.exists()

    def mend(self) -> bool:
        """Look for rows that cannot be read, after a question failed; whether there are new ones.

        From then on they are left out.
        """
        try:
            with Database.open(self.location, create=False, read_only=True) as whole:
                damaged = whole.damaged_rows()
        except (TilesmithError, UnavailableError, GoneError):
            return False
        with self._lock:
            if set(damaged) <= set(self.left_out):
                return False
            self._close()
            self.left_out = damaged
        return True

    def close(self) -> None:
        """Give its connections back."""
        with self._lock:
            self._close()

    def _current(self) -> Database:
        with self._lock:
            if self._identity != self._seen():
                self._close()
                self._identity, self.left_out = self._seen(), ()
            if self._opened is None:
                self._opened = Database.open(self.location, create=False, read_only=True)
                self._opened.leave_out(self.left_out)
                self.generation += 1
            return self._opened

    def _forget(self, database: Database) -> None:
        """Open it anew for the next request, unless another request did so already."""
        with self._lock:
            if self._opened is database:
                self._close()

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _seen(self) -> Identity | None:
        """Which file has the name now; None without one (and for servers)."""
        if self._path is None:
            return None
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


Answer = TypeVar("Answer")


class Shared(Generic[Answer]):
    """Answers by their question; the same question waits for the answer that is being made.

    Args:
        seconds: how long an answer holds.
        most: how many are kept.
    """

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds = seconds
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Slot[Answer]] = OrderedDict()

    def get(self, question: str, make: Callable[[], Answer]) -> Answer:
        """The answer, made now or a moment ago; an error is everybody's own."""
        with self._lock:
            slot = self._kept.setdefault(question, _Slot())
            self._kept.move_to_end(question)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        with slot.lock:
            if slot.dated is None or time.monotonic() - slot.dated[0] > self._seconds:
                slot.dated = (time.monotonic(), make())
            return slot.dated[1]


class _Slot(Generic[Answer]):
    """One answer, and when it was made."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.dated: tuple[float, Answer] | None = None
