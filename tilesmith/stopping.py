"""A stopped job ends within two seconds, whatever it is in the middle of.

Ctrl-C and SIGTERM end a tuning job in order (see `tuner.cancel`). What order cannot reach - a
compiler that does not return, a database that waits for another writer, an interpreter taking its
libraries down - is cut off here: results are in the database already, and it outlasts any end.
"""

from __future__ import annotations

import gc
import os
import shlex
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from tilesmith.tuner.cancel import CancelToken

LONGEST_S = 1.8
"""Seconds from the signal to the end of the process."""

_stopped = threading.Event()
_explained = threading.Event()


@contextmanager
def ends_soon(sentence: str) -> Iterator[CancelToken]:
    """A token; once it is set this process ends soon, with the sentence if nothing else was said.

    For the command line only: a process that others share is not ours to end.
    """
    from tilesmith.tuner.cancel import CancelToken

    def cut_off() -> None:
        if not _explained.is_set():
            with suppress(OSError):
                os.write(2, f"tilesmith: {sentence}\n".encode())
        os._exit(1)

    def arm() -> None:
        _stopped.set()
        timer = threading.Timer(LONGEST_S, cut_off)
        timer.daemon = True
        timer.start()

    yield CancelToken(arm)


def explained() -> None:
    """The user has been told why it ends; nothing needs to be said when it is cut off."""
    _explained.set()


def leave(code: int) -> NoReturn:
    """End the process; one that was stopped does not wait for its libraries to be taken down.

    What the libraries consist of is frozen: it is not searched for garbage once more, which would
    take up to a tenth of a second; all that has to happen at an exit still does.
    """
    if _stopped.is_set():
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    gc.freeze()
    sys.exit(code)


def resuming_command(words: Sequence[str]) -> str:
    """The command line that goes on where `tilesmith WORDS` was stopped, without a password."""
    from tilesmith.records.urls import without_password

    more = [] if "--resume" in words else ["--resume"]
    return shlex.join(["tilesmith", *map(without_password, words), *more])
