"""Stopping early: a token that long work polls, and signal handlers that set it.

Ctrl-C or SIGTERM sets the token; loops end at the next trial, keep what is finished, and say so.
The handlers are installed only inside `cancel_on_signals`, only in the main thread, and restored
after.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class CancelToken:
    """A flag set once. `reason` says by whom ("SIGINT"), for the summary."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""

    def cancel(self, reason: str = "request") -> None:
        self.reason = self.reason or reason
        self._event.set()

    @property
    def cancelled(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raise `Cancelled` if the token is set."""
        if self.cancelled:
            raise Cancelled


class Cancelled(Exception):  # noqa: N818  (not an error: it ends work that nobody waits for)
    """Raised inside long work once its token is set; the tuning loop catches it."""


@contextmanager
def cancel_on_signals(token: CancelToken) -> Iterator[CancelToken]:
    """Set `token` on SIGINT and SIGTERM while the block runs (a no-op outside the main thread)."""

    def handle(number: int, frame: FrameType | None) -> None:
        token.cancel(signal.Signals(number).name)

    if threading.current_thread() is not threading.main_thread():
        yield token
        return
    previous = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield token
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
