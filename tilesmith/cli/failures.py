"""How every failure becomes one sentence on stderr and an exit code.

Exit codes, which scripts rely on: 0 done, 1 the job failed, 2 the input or usage is wrong, 128 and
the number of a signal that ended it. A traceback is shown only when asked for (`tilesmith
--traceback COMMAND ...`).
"""

import re
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType

import click
from click.exceptions import Exit

from tilesmith.search_space.support.ending import STOPPED, exit_code, heeded
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.support.files import is_input_mistake

_AGAIN_S = 0.01
_ONCE_MORE_S = 0.2
"""Seconds until a dropped signal is sent again, and from then on until one is raised."""


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; unwinds like Ctrl-C, so that open databases are closed in order."""

    number: int = signal.SIGTERM


class HungUp(KeyboardInterrupt):
    """SIGHUP arrived, as where a terminal is closed; unwinds like Ctrl-C."""

    number: int = signal.SIGHUP


_RAISED: dict[int, type[KeyboardInterrupt]] = {
    signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated, signal.SIGHUP: HungUp,
}  # fmt: skip


@dataclass(frozen=True)
class Failure:
    """What to tell the user: a sentence, "" where nobody wants one, and the process's exit code."""

    message: str
    exit_code: int

    def to_json(self, error: BaseException) -> dict[str, str | int]:
        """The same for scripts, with the kind of error it is of."""
        kind = type(error).__name__
        return {"kind": kind, "message": self.message, "exit_code": self.exit_code}


@contextmanager
def signals_as_exceptions() -> Iterator[None]:
    """Within the block SIGTERM raises `Terminated`, SIGHUP `HungUp` and Ctrl-C `KeyboardInterrupt`
    (in the main thread; elsewhere nothing changes). Where Python drops what is raised (finalizers,
    callbacks of native code), the signal is sent again a moment later. What a library makes of it
    becomes the signal again: numpy's import prints the traceback and raises an `ImportError`
    without a cause.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = _Signals()
    previous = {number: signal.signal(number, signals.arrived) for number in heeded()}
    hooks = sys.unraisablehook, sys.excepthook
    sys.unraisablehook, sys.excepthook = signals.dropped, signals.printed
    try:
        yield
    except Exception as error:
        deliberate = isinstance(error, TilesmithError | click.ClickException | Exit)
        if not signals.raised or (deliberate and _interrupt_in(error) is None):
            raise
        raise signals.raised[-1] from error
    finally:
        signals.over = True
        sys.unraisablehook, sys.excepthook = hooks
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Signals:
    """What arrived in a block, and the hooks that see what became of it."""

    def __init__(self) -> None:
        self.raised: list[type[KeyboardInterrupt]] = []
        self.over = False
        self._main = threading.get_ident()
        self._unraisable, self._print = sys.unraisablehook, sys.excepthook

    def arrived(self, number: int, frame: FrameType | None) -> None:
        """The handler. Raised within `dropped` it would be lost; `_resend` sends it once more."""
        while frame is not None:
            if frame.f_code is _Signals.dropped.__code__:
                return
            frame = frame.f_back
        self.raised.append(_RAISED[number])
        raise self.raised[-1]

    def dropped(self, lost: "sys.UnraisableHookArgs") -> None:
        """The hook for what Python cannot raise."""
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            self._unraisable(lost)
            return
        number = _number(lost.exc_type)
        sender = threading.Thread(target=self._resend, args=(number, len(self.raised)), daemon=True)
        sender.start()

    def _resend(self, number: int, raised: int) -> None:
        pause = _AGAIN_S
        while True:
            time.sleep(pause)
            if self.over or len(self.raised) > raised:
                return
            signal.pthread_kill(self._main, number)
            pause = _ONCE_MORE_S

    def printed(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """The hook for what a library prints of a failure; one sentence is said of a signal."""
        if not self.raised and not issubclass(kind, KeyboardInterrupt):
            self._print(kind, error, trace)


def explain(error: BaseException) -> Failure:
    """The sentence and exit code for any exception that reached the command line."""
    match error:
        case TilesmithError():
            return Failure(_one_line(str(error)), error.exit_code)
        case click.UsageError():
            command = error.ctx.command_path if error.ctx else "tilesmith"
            message = _one_line(error.format_message())
            return Failure(f"{message} (see '{command} --help')", 2)
        case click.ClickException():
            return Failure(_one_line(error.format_message()), error.exit_code)
        case KeyboardInterrupt() | click.Abort():
            return _stopped(_number(error))
        case BrokenPipeError() if _reader_left():
            return Failure("", 1)
        case BrokenPipeError():
            return Failure("what a pipe led to closed it before the end", 1)
        case MemoryError():
            return Failure("out of memory; try fewer threads, a smaller model or batch", 1)
        case RuntimeError() if "start new thread" in str(error):
            return Failure("the system starts no more threads: it is out of them or of memory", 1)
        case UnicodeEncodeError(reason="surrogates not allowed"):
            return Failure(f"'{error.object!s}' is not UTF-8; write it so, or rename the file", 2)
        case RecursionError():
            return Failure("the input is nested too deeply to be read or compiled", 2)
        case OSError():
            return _operating_system(error)
    if _is_database_error(error):
        return Failure(f"the database failed: {_one_line(str(error.__cause__ or error))}", 1)
    if (interrupt := _interrupt_in(error)) is not None:
        return _stopped(_number(interrupt))
    kind = type(error).__name__
    return Failure(
        f"internal error, please report it: {kind}: {_one_line(str(error))} "
        "('tilesmith --traceback COMMAND ...' shows where)",
        1,
    )


def _stopped(number: int) -> Failure:
    return Failure(STOPPED[number], exit_code(number))


def _number(interrupt: object) -> int:
    """The signal that an exception stands for."""
    return int(getattr(interrupt, "number", signal.SIGINT))


def _operating_system(error: OSError) -> Failure:
    reason = error.strerror or str(error)
    where = f": '{error.filename}'" if error.filename else ""
    wrong_input = error.filename is not None and is_input_mistake(error)
    return Failure(_one_line(f"{reason}{where}"), 2 if wrong_input else 1)


def _is_database_error(error: BaseException) -> bool:
    """Whether SQLAlchemy raised it (asked without importing SQLAlchemy)."""
    module = sys.modules.get("sqlalchemy.exc")
    return module is not None and isinstance(error, module.SQLAlchemyError)


def _interrupt_in(error: BaseException) -> KeyboardInterrupt | None:
    """The signal at an error's root, as where it hit a library in the middle of its import."""
    before = error.__cause__ or error.__context__
    if before is None or isinstance(before, KeyboardInterrupt):
        return before
    return _interrupt_in(before)


def _one_line(text: str) -> str:
    from tilesmith.display.printable import printable
    from tilesmith.records.schema.urls import without_password

    return _ENDLESS.sub(r"\1...\2", without_password(printable(text)))


_ENDLESS = re.compile(r"(\S{500})\S{400,}(\S{100})")
"""A word that nobody has written, such as a file's contents where its name belongs: its middle is
left out of a sentence."""


def _reader_left() -> bool:
    """Whether stdout is a pipe that nobody reads any more, as `| head` leaves it."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))
