"""A stopped job ends within two seconds, whatever it is in the middle of.

Ctrl-C, SIGTERM and SIGHUP end a tuning job in order (see `tuner.tasks.cancel`). What order cannot
reach
- a compiler that does not return, a database that waits for another writer, an interpreter taking
its libraries down - is cut off here: results are in the database already, and it outlasts any end.
"""

import gc
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from tilesmith.search_space.support.ending import exit_code

if TYPE_CHECKING:
    from tilesmith.tuner.tasks.cancel import CancelToken

LONGEST_S = 1.8
"""Seconds from the signal to the end of the process."""

_codes: list[int] = []
"""Exit codes of the signals that stopped this process, the first one's counts."""
_explained = threading.Event()
_watching = threading.Event()


@contextmanager
def ends_soon(sentence: str) -> "Iterator[CancelToken]":
    """A token; once it is set this process ends soon, with the sentence if nothing else was said.

    For the command line only: a process that others share is not ours to end.
    """
    from tilesmith.tuner.tasks.cancel import CancelToken

    def arm() -> None:
        _codes.append(exit_code(token.reason))
        timer = threading.Timer(LONGEST_S, _cut_off, (sentence, _codes[0]))
        timer.daemon = True
        timer.start()

    token = CancelToken(arm)
    yield token


def _cut_off(sentence: str, code: int) -> NoReturn:
    if not _explained.is_set():
        with suppress(OSError):
            os.write(2, f"tilesmith: {sentence}\n".encode())
    os._exit(code)


@contextmanager
def ends_in_native_code(sentences: Mapping[int, str]) -> Iterator[None]:
    """Within the block, a process that a signal finds in native code ends soon, too.

    Python answers signals between its own instructions, and a kernel, a compiler or another runtime
    may not come back to them for minutes. What the operating system writes on a signal's arrival is
    read by a thread, which ends the process if the block has not ended by then. A signal that
    somebody else answers (a tuning job, a server) is left to them. Does nothing but in the main
    thread.

    Args:
        sentences: by signal, what to say.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    ours = {number: signal.getsignal(number) for number in sentences}
    over = threading.Event()

    def watch() -> None:
        while arrived := os.read(reading, 1):
            number = arrived[0]
            answered = number not in ours or signal.getsignal(number) != ours[number]
            if not answered and not over.wait(LONGEST_S):
                _cut_off(sentences[number], exit_code(number))
        os.close(reading)

    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    _watching.set()
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()
        _watching.clear()
        signal.set_wakeup_fd(before)
        os.close(writing)


def _forked() -> None:
    """A child's signals are not its parent's."""
    if _watching.is_set():
        signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def explained(code: int) -> int:
    """The user has been told why it ends; nothing needs to be said when it is cut off.

    Args:
        code: exit code of what was told.

    Returns:
        the exit code to end with: of the signal, where one stopped it. What fails then may be the
        terminal, which is what SIGHUP says is gone.
    """
    _explained.set()
    return _codes[0] if _codes else code


def leave(code: int) -> NoReturn:
    """End the process; one that was stopped does not wait for its libraries to be taken down.

    What the libraries consist of is frozen: it is not searched for garbage once more, which would
    take up to a tenth of a second; all that has to happen at an exit still does. The exit code is
    ours: Python notes an interrupt that went through an `exec` of text (dataclasses, generated
    functions) and would kill itself by the signal for it, unless another is executed.
    """
    if _codes:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    gc.freeze()
    exec("")
    sys.exit(code)


def resuming_command(words: Sequence[str]) -> str:
    """The command line that goes on where `tilesmith WORDS` was stopped, without a password."""
    from tilesmith.records.schema.urls import without_password

    words = list(map(without_password, words))
    if "--resume" not in words:  # behind "--" it would be a file
        words.insert(words.index("--") if "--" in words else len(words), "--resume")
    return shlex.join(["tilesmith", *words])
