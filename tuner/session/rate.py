"""`Rate`: how fast trials are done now, and so how long the rest will take."""

from __future__ import annotations

from collections import deque

_OVER_S = 60.0
_LEAST_S, _LEAST = 3.0, 5
"""Seconds and trials without which nothing is foretold: what starts up is no rate."""


class Rate:
    """Of the last minute: a job that stood still, or was prepared for long, is not slow for it."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()

    def note(self, now: float, trials: int) -> None:
        """So many trials were done by a moment of a steady clock."""
        self._counts.append((now, trials))
        while now - self._counts[0][0] > _OVER_S and len(self._counts) > 2:
            self._counts.popleft()

    def seconds(self, trials: int) -> float | None:
        """How long so many more will take; None where nobody can tell yet."""
        if not self._counts:
            return None
        (first, before), (last, now) = self._counts[0], self._counts[-1]
        if trials > 0 and (last - first < _LEAST_S or now - before < _LEAST):
            return None
        return max(0, trials) * (last - first) / max(1, now - before)
