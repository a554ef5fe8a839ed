"""The user's process: it has models tuned by another, and exchanges them when that is done.

One thread for the process, which sleeps but for a look at a few small files a second: it writes
orders, sees to it that there is a tuner, and takes artifacts that tuners have written, whose
weights stay in their file. Nothing is tuned or compiled here. Invariants: nothing of this raises in
the user's calls or keeps the process alive; whatever goes wrong is one warning, and the model stays
as it is; a process that was forked from this one follows nothing.
"""

import atexit
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tilesmith.capabilities.first_use.exchange import (
    Exchanged,
    ExchangedVarying,
    OneSize,
    exchanged,
)
from tilesmith.capabilities.first_use.orders import (
    OrderFolder,
    digest_of,
    has_tuner,
    made_private,
    orders_folder,
)
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.compiler.varying.executable import VaryingExecutable, load
from tilesmith.jobs.background import VARIABLE
from tilesmith.jobs.notices import LOG
from tilesmith.search_space.support.errors import JobError

if TYPE_CHECKING:
    from tilesmith.jobs.background import M
    from tilesmith.jobs.requests.request import Resolved

_LOOK_S = 0.5
"""Seconds between two looks at what tuners have written."""
_STARTS = 3
"""Tuners that a process starts at most, the first one included, when they crash."""
_OFF = "'%s' is not tuned any further, and stays as it is: %s"


@dataclass(frozen=True, eq=False)
class _Placing:
    """Writes the order of a model, or of one choice of its sizes."""

    root: Path
    asked: "Resolved"
    executable: Executable | VaryingExecutable
    database: str
    size: OneSize | None = None

    def __call__(self) -> OrderFolder:
        from tilesmith.capabilities.first_use.writing import ordered  # what reads models

        made_private(self.root)
        shapes = None if self.size is None else self.size.shapes
        return ordered(self.root, self.asked, self.executable, self.database, shapes)


@dataclass(eq=False)
class _Followed:
    """A model of this process that is tuned.

    Attributes:
        model: what is exchanged; it is not kept alive.
        runs: digest of the program that it runs.
        order: writes its order, the first time; None when that is done.
        sizes: writes orders for choices of its sizes; None where they do not vary.
        folder, owner: its order's, and the file that says that this process runs it.
        version: of the artifact that it runs.
        over: whether its order is ended.
    """

    model: "weakref.ref[Exchanged | OneSize]"
    title: str
    runs: str
    order: _Placing | None
    sizes: _Placing | None = None
    folder: OrderFolder | None = None
    owner: Path | None = None
    version: int = 0
    over: bool = False

    def disown(self) -> None:
        """This process no longer needs the order."""
        if self.owner is not None:
            with suppress(OSError):
                self.owner.unlink(missing_ok=True)
            self.owner = None


class Follower:
    """Follows all models of a process; see the module's docstring.

    Args:
        root: the folder of orders; None: this user's.
        start: starts a tuner for a folder.
    """

    def __init__(
        self,
        root: Path | None = None,
        start: "Callable[[Path], subprocess.Popen[bytes]] | None" = None,
    ) -> None:
        self._given, self._start = root, start or started
        self._followed: list[_Followed] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    @property
    def root(self) -> Path:
        return orders_folder() if self._given is None else self._given

    def follow(self, executable: "M", asked: "Resolved", database: str) -> "M":
        """As `BackgroundTuner.followed`."""
        model = exchanged(executable)
        place = _Placing(self.root, asked, executable, database)
        again = place if isinstance(executable, VaryingExecutable) else None
        self.add(_Followed(weakref.ref(model), model.title, digest_of(model.recipe), place, again))
        return model  # type: ignore[return-value]

    def add(self, followed: _Followed) -> None:
        """Follow one more model; the thread is started with the first."""
        with self._lock:
            self._followed.append(followed)
            if self._thread is None:
                self._thread = self.watching()

    def watching(self) -> threading.Thread:
        """The thread that looks again and again, which is started."""
        thread = threading.Thread(target=self._watch, name="tilesmith-first-use", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Follow nothing any more: the tuner sees that, and ends."""
        self._ended.set()
        with self._lock:
            for followed in self._followed:
                followed.disown()
            self._followed.clear()

    # -- the thread -----------------------------------------------------------------------------
    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self.look()
            with self._lock:
                if not self._followed:
                    self._thread = None
                    return

    def look(self) -> None:
        """See what there is to do for each model, once."""
        for followed in list(self._followed):
            try:
                goes_on = self._step(followed)
            except Exception as error:  # whatever it is, the user's program goes on
                LOG.warning(_OFF, followed.title, error)
                goes_on = False
            if not goes_on:
                followed.disown()
                with self._lock, suppress(ValueError):
                    self._followed.remove(followed)

    def _step(self, followed: _Followed) -> bool:
        """One look at one model; whether there is more to come."""
        model = followed.model()
        if model is None:
            return False
        if followed.order is not None:
            followed.folder, followed.order = followed.order(), None
        folder = followed.folder
        assert folder is not None
        if not (followed.over or followed.owner):
            followed.owner = folder.own(followed.runs)
        state = folder.state
        if state.version > followed.version:
            self._exchange(followed, model, folder, state.version)
        if followed.sizes is not None and isinstance(model, ExchangedVarying):
            for size in model.often():
                place = replace(followed.sizes, size=size)
                self.add(_Followed(weakref.ref(size), followed.title, followed.runs, place))
        if not (state.ended or followed.over):
            if folder.order is None:
                raise JobError(f"somebody has deleted its order in '{folder.path}'")
            self._see_to_tuner()
            return True
        if state.failed:
            LOG.warning(_OFF, followed.title, state.ended)
            return False
        followed.over = True
        followed.disown()
        return followed.sizes is not None  # more of them may be called often

    def _exchange(
        self, followed: _Followed, model: Exchanged | OneSize, folder: OrderFolder, version: int
    ) -> None:
        better = load(folder.artifact(version))
        model.exchange(better)  # type: ignore[arg-type]  # which refuses another kind
        followed.version = version
        followed.runs = digest_of(better.recipe)
        followed.owner = folder.own(followed.runs)
        LOG.info("'%s' runs with better schedules from now on", followed.title)

    def _see_to_tuner(self) -> None:
        """Have a tuner at work, whoever started it."""
        process = self._process
        if process is not None:
            code = process.poll()
            if code is None:
                return
            self._process = None
            if code and self._starts >= _STARTS:
                raise JobError(
                    f"the tuner ended {_STARTS} times, the last time by {_how(code)}; "
                    f"'{self.root / 'tuner.log'}' tells more"
                )
        if not has_tuner(self.root):
            self._starts += 1
            self._process = self._start(self.root)


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"


def started(root: Path) -> "subprocess.Popen[bytes]":
    """A tuner for a folder of orders: a fresh interpreter in a group of its own, so that no signal
    of a terminal reaches it; of this session, within which Linux's schedulers compare priorities
    (`tuner.workers.worker_process`).

    Raises:
        JobError: there is no interpreter to start.
    """
    if not sys.executable:
        raise JobError("this program embeds Python, and no interpreter can be started for tuning")
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    with (root / "tuner.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tilesmith.capabilities.first_use.tuner", str(root)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**environment, "PYTHONPATH": path},
            process_group=0,
        )


_follower = Follower()


def follow(executable: "M", asked: "Resolved", database: str) -> "M":
    """As `BackgroundTuner.followed`."""
    return _follower.follow(executable, asked, database)


def _forget() -> None:
    """In a process forked from this one: what is followed is its parent's."""
    global _follower
    _follower = Follower()


atexit.register(lambda: _follower.close())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
