"""Answers that are made once for everybody who asks within a second.

Ten people who watch one job cost the database what one does.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

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
