"""How every failure becomes one sentence on stderr and an exit code.

Exit codes, which scripts rely on: 0 done, 1 the job failed, 2 the input or usage is wrong. A
traceback is shown only when asked for (`tilesmith --traceback COMMAND ...`).
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import click

from tilesmith.search_space.errors import TilesmithError
from tilesmith.search_space.files import is_input_mistake

STOPPED: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "stopped by SIGTERM"}
"""What is said of a command that a signal ends."""


_AGAIN_S = 0.01


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; unwinds like Ctrl-C, so that open databases are closed in order."""


@dataclass(frozen=True)
class Failure:
    """What to tell the user: a sentence and the process's exit code."""

    message: str
    exit_code: int


@contextmanager
def signals_as_exceptions() -> Iterator[None]:
    """Within the block SIGTERM raises `Terminated` and Ctrl-C `KeyboardInterrupt` (in the main
    thread; elsewhere nothing changes). Where Python drops what is raised (finalizers, callbacks of
    native code), the signal is sent again a moment later.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    handlers = {signal.SIGTERM: stop, signal.SIGINT: signal.default_int_handler}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    dropped, main = sys.unraisablehook, threading.get_ident()

    def again(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            dropped(lost)
            return
        number = signal.SIGTERM if issubclass(lost.exc_type, Terminated) else signal.SIGINT
        timer = threading.Timer(_AGAIN_S, signal.pthread_kill, (main, number))
        timer.daemon = True
        timer.start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = dropped
        for number, handler in previous.items():
            signal.signal(number, handler)


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
        case Terminated():
            return Failure(STOPPED[signal.SIGTERM], 1)
        case KeyboardInterrupt() | click.Abort():
            return Failure(STOPPED[signal.SIGINT], 1)
        case BrokenPipeError():
            return Failure("the reader of the output closed it before the end", 1)
        case MemoryError():
            return Failure("out of memory; try fewer threads, a smaller model or batch", 1)
        case RecursionError():
            return Failure("the input is nested too deeply to be read or compiled", 2)
        case OSError():
            return _operating_system(error)
    if _is_database_error(error):
        return Failure(f"the database failed: {_one_line(str(error.__cause__ or error))}", 1)
    if _caused_by_interrupt(error):
        return Failure(STOPPED[signal.SIGINT], 1)
    kind = type(error).__name__
    return Failure(
        f"internal error, please report it: {kind}: {_one_line(str(error))} "
        "('tilesmith --traceback COMMAND ...' shows where)",
        1,
    )


def _operating_system(error: OSError) -> Failure:
    reason = error.strerror or str(error)
    where = f": '{error.filename}'" if error.filename else ""
    wrong_input = error.filename is not None and is_input_mistake(error)
    return Failure(_one_line(f"{reason}{where}"), 2 if wrong_input else 1)


def _is_database_error(error: BaseException) -> bool:
    """Whether SQLAlchemy raised it (asked without importing SQLAlchemy)."""
    module = sys.modules.get("sqlalchemy.exc")
    return module is not None and isinstance(error, module.SQLAlchemyError)


def _caused_by_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C is at the root, as where it hit a library in the middle of its import."""
    before = error.__cause__ or error.__context__
    return before is not None and (
        isinstance(before, KeyboardInterrupt) or _caused_by_interrupt(before)
    )


def _one_line(text: str) -> str:
    from tilesmith.records.urls import without_password
    from tilesmith.search_space.printable import printable

    return without_password(printable(text))
