"""Stopping early: a token that long work polls, and signal handlers that set it.

Ctrl-C, SIGTERM or SIGHUP sets the token; loops end at the next trial, keep what is finished, and
say so. Work that has not come to an end `PATIENCE_S` later (a model in training, a compiler) is
torn out of by `Interrupted`; only what runs `shielded` - results on their way into the ledger - is
waited for. A second signal is not patient at all. The handlers are installed only inside
`cancel_on_signals`, only in the main thread, and restored after.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import TypeVar

from tilesmith.search_space.support.ending import heeded

T = TypeVar("T")

PATIENCE_S = 0.8
"""Seconds from the signal until work that does not poll the token is torn out of."""
_AGAIN_S = 0.02
"""Seconds until a shielded place is asked again whether it is over."""


class CancelToken:
    """A flag set once. `reason` says by whom ("SIGINT"), for the summary.

    Args:
        on_cancel: called when the flag is set, by whoever sets it.
    """

    def __init__(self, on_cancel: Callable[[], None] | None = None) -> None:
        self._event = threading.Event()
        self._on_cancel = on_cancel
        self._shields = 0
        self.reason = ""
        self.torn = False
        """Whether `Interrupted` was raised: what fails then may be what a library made of it."""

    def cancel(self, reason: str = "request") -> None:
        if self._event.is_set():
            return
        self.reason = reason
        self._event.set()
        if self._on_cancel is not None:
            self._on_cancel()

    @property
    def cancelled(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raise `Cancelled` if the token is set."""
        if self.cancelled:
            raise Cancelled

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """A block that `Interrupted` is never raised in."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1

    @contextmanager
    def left_in_order(self, inner: AbstractContextManager[T]) -> Iterator[T]:
        """A context that `Interrupted` is never raised in the end of."""
        with ExitStack() as shield, inner as entered:
            try:
                yield entered
            finally:
                shield.enter_context(self.shielded())

    @property
    def is_shielded(self) -> bool:
        return self._shields > 0


class Cancelled(Exception):  # noqa: N818  (not an error: it ends work that nobody waits for)
    """Raised inside long work once its token is set; the tuning loop catches it."""


class Interrupted(KeyboardInterrupt):
    """Raised anywhere in work that a signal did not end soon enough, as Ctrl-C would have been.

    `number` is that of the signal.
    """

    number: int = signal.SIGINT


@contextmanager
def cancel_on_signals(token: CancelToken) -> Iterator[CancelToken]:
    """Set `token` on signals that end a command while the block runs (a no-op outside the main
    thread)."""
    if threading.current_thread() is not threading.main_thread():
        yield token
        return

    arrived: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        patience = _AGAIN_S if token.cancelled else PATIENCE_S
        token.cancel(signal.Signals(number).name)
        signal.setitimer(signal.ITIMER_REAL, patience)

    def tear(number: int, frame: FrameType | None) -> None:
        if token.is_shielded:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        else:
            token.torn, torn = True, Interrupted()
            torn.number = arrived[0]
            raise torn

    handlers = {**dict.fromkeys(heeded(), handle), signal.SIGALRM: tear}
    previous = {number: signal.signal(number, new) for number, new in handlers.items()}
    try:
        yield token
    finally:
        with token.shielded():
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            for number, handler in previous.items():
                signal.signal(number, handler)
