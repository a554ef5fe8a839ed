"""The parent's end of a worker process: start, ask with a time limit, renew, kill.

The worker is a fresh interpreter started by `subprocess` (nothing is forked, nothing pickled). Both
say one JSON object a line: a request names an operation and its arguments, a reply carries results;
configurations, workloads and targets travel as the texts they are stored as. A reply that does not
come in time, or a worker that dies of what it is asked, costs the request at hand: `ask` raises
`WorkerError` with its kind, and the next request starts a new worker. A worker that somebody else
killed or stopped says nothing of its request, which a fresh one is asked again.

A worker is a group of processes of its parent's session: where a scheduler divides time between
sessions (Linux's autogroup), one of its own would be given as much as the parent's, however low the
priority of both is.

Invariant: no worker outlives its parent. The first thing that its interpreter does, before it looks
for packages, is to have itself killed by the operating system then (Linux), whether it is starting,
at work or stopped.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from tilesmith.search_space.support.errors import JobError
from tilesmith.tuner.tasks.cancel import CancelToken

_START_SECONDS = 60.0
_POLL_SECONDS = 0.1
_TRIES = 3
"""Workers that a request is given to, where they are killed from outside."""
_BOOT = (
    "import ctypes, sys; sys.platform == 'linux' and ctypes.CDLL(None).prctl(1, 9); "
    "import site; site.main(); from tilesmith.tuner.workers.worker import main; main()"
)
"""The worker, killed with its parent (PR_SET_PDEATHSIG) before anything else; the packages' own
start-up files (`site`), which may take long, come after. Nothing of Python runs between fork and
exec, where threads of the parent may hold locks for ever."""
_OWN_DEATHS = {
    getattr(signal, name, None)
    for name in ("SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGXCPU")
}
"""Signals that a process draws upon itself by what it computes; others are sent to it."""
_SINGLE_THREADED = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


Kind = Literal["crash", "killed", "timeout", "cancelled"]


class WorkerError(JobError):
    """The worker gave no reply.

    `kind`: "crash" (it died of what it did), "killed" (somebody else killed or stopped it),
    "timeout" (killed for taking too long), "cancelled" (killed on request). `starting`: before it
    was ready.
    """

    starting = False

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _KilledError(WorkerError):
    """A worker that somebody else killed: another may be asked."""


class WorkerProcess:
    """One worker at a time, started on demand.

    Args:
        setup: the first line it is sent (see `tuner.workers.worker`).
        renew_after: requests after which a fresh worker is started.
        renew_bytes: resident memory above which a fresh worker is started.
    """

    def __init__(
        self, setup: dict[str, Any], renew_after: int = 1024, renew_bytes: int = 2 << 30
    ) -> None:
        self._setup = setup
        self._renew_after = renew_after
        self._renew_bytes = renew_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as this object)
        self._served = 0
        self._received = b""
        self.started = 0
        """Workers started so far."""
        self.is_ready = False
        """Whether the worker there is has said that it is ready."""

    @property
    def process_id(self) -> int | None:
        return self._process.pid if self._process else None

    def ask(
        self, request: dict[str, Any], timeout_s: float, cancel: CancelToken | None = None
    ) -> dict[str, Any]:
        """Send a request and wait for its reply.

        Raises:
            WorkerError: no reply; the worker has been killed. Of kind "killed": several in turn.
            JobError: no worker could be started.
        """
        reply = self._unless_killed(lambda: self._asked(request, timeout_s, cancel))
        self._served += 1
        if self._served >= self._renew_after or reply.get("resident", 0) > self._renew_bytes:
            self.stop()
        return reply

    def _asked(
        self, request: dict[str, Any], timeout_s: float, cancel: CancelToken | None
    ) -> dict[str, Any]:
        if self._process is None:
            self._start(cancel)
        return self._exchange(request, timeout_s, cancel)

    def _unless_killed(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What comes of asking, once more where a worker was killed from outside."""
        for _ in range(_TRIES - 1):
            with contextlib.suppress(_KilledError):
                return ask()
        try:
            return ask()
        except _KilledError as error:
            message = f"{error}, as {_TRIES - 1} before it were"
            if error.starting:
                message = f"the measuring process could not be started: {message}"
                raise JobError(message) from error
            raise WorkerError("killed", message) from error

    def stop(self) -> None:
        """Kill the worker, if there is one, and everything it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def close(self) -> None:
        """Stop, and free the file that collects what workers print."""
        self.stop()
        self._errors.close()

    def _start(self, cancel: CancelToken | None) -> None:
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        self._errors.seek(0)
        self._errors.truncate()
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _BOOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **_SINGLE_THREADED, "PYTHONPATH": path},
            process_group=0,  # signals of a terminal do not reach it
        )
        self.started += 1
        self.is_ready = False
        self._served = 0
        self._received = b""
        try:
            self._exchange(self._setup, _START_SECONDS, cancel)
        except WorkerError as error:
            error.starting = True
            if error.kind in ("cancelled", "killed"):
                raise
            raise JobError(f"the measuring process could not be started: {error}") from error
        self.is_ready = True

    def _exchange(
        self, request: dict[str, Any], timeout_s: float, cancel: CancelToken | None
    ) -> dict[str, Any]:
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        reply = self._read_line(time.monotonic() + timeout_s, timeout_s, cancel)
        parsed = json.loads(reply)
        assert isinstance(parsed, dict)
        return parsed

    def _read_line(self, deadline: float, timeout_s: float, cancel: CancelToken | None) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if cancel is not None and cancel.cancelled:
                    self._fail("cancelled", "cancelled")
                left = deadline - time.monotonic()
                if left <= 0:
                    if _is_stopped(self._process.pid):
                        self._fail("killed", f"the worker was stopped for {timeout_s:g} s")
                    self._fail("timeout", f"no result within {timeout_s:g} s")
                if selector.select(min(left, _POLL_SECONDS)):
                    part = os.read(self._process.stdout.fileno(), 1 << 16)
                    if not part:
                        self._fail(*self._obituary())
                    self._received += part
        first, _, self._received = self._received.partition(b"\n")
        return first

    def _fail(self, kind: Kind, message: str) -> None:
        self.stop()
        raise (_KilledError if kind == "killed" else WorkerError)(kind, message)

    def _obituary(self) -> tuple[Kind, str]:
        """Whose doing the worker's death was; how it died, and the last it printed."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            code = 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 400))
        last = self._errors.read().decode(errors="replace").strip().splitlines()
        if code < 0 and -code not in _OWN_DEATHS:
            return "killed", f"the worker was killed from outside ({how})"
        return "crash", f"the worker died ({how})" + (f": {last[-1]}" if last else "")


def _is_stopped(process: int) -> bool:
    """Whether a process was stopped by a signal; False where the system does not tell."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "tT"
    except OSError:
        return False
