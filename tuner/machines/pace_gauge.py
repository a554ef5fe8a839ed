"""`PaceGauge`: how fast the machine is now, by a reference kernel that is run beside every trial.

On a busy machine two runs of one kernel differ by tens of per cent, so that one look at it says
little: the pace is the median of the latest readings over the median of the first. A move counts
only where it is beyond what the spread of the readings explains, as told by their median absolute
deviation (which estimates a standard deviation if multiplied by 1.4826; a median of n has 1.2533
times the standard error of a mean: Rousseeuw and Croux, JASA 1993).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from tilesmith.tuner.tasks.options import DRIFT_LIMIT

EVERY = 20
"""Readings between two looks at the pace."""
WINDOW = 15
"""Readings that a look takes the median of."""
_SIGMAS = 4.0


class PaceGauge:
    """See the module's docstring.

    Attributes:
        pace: how much longer everything takes than at first, as last believed.
        looks: how often the pace was looked at.
        moved: how far the last look found it from the one before, relative; 0 where that is noise.
        drift: how far it ever was from 1.
    """

    def __init__(self) -> None:
        self._readings: list[float] = []
        self._first: list[float] = []
        self._before: list[float] = []
        self.pace = 1.0
        self.looks = 0
        self.moved = 0.0
        self.drift = 0.0

    def read(self, seconds: float | None) -> None:
        """One more reading; None where there is none."""
        if seconds is None or seconds <= 0:
            return
        self._readings.append(math.log(seconds))
        if not self._first and len(self._readings) >= WINDOW:
            self._first = self._before = self._readings[-WINDOW:]
            self._readings = []
        elif self._first and len(self._readings) >= EVERY:
            self._look()

    def _look(self) -> None:
        """The latest readings against those that told the pace in force."""
        now = self._readings[-WINDOW:]
        self._readings = []
        self.looks += 1
        self.moved = 0.0
        change = statistics.median(now) - statistics.median(self._before)
        noise = math.hypot(_uncertainty(now), _uncertainty(self._before))
        if abs(change) <= max(math.log1p(DRIFT_LIMIT), _SIGMAS * noise):
            return
        self.moved = abs(math.expm1(change))
        self.pace = math.exp(statistics.median(now) - statistics.median(self._first))
        self.drift = max(self.drift, abs(self.pace - 1))
        self._before = now


def _uncertainty(logs: Sequence[float]) -> float:
    """Standard error of the median of some readings."""
    middle = statistics.median(logs)
    deviation = 1.4826 * statistics.median(abs(value - middle) for value in logs)
    return 1.2533 * deviation / math.sqrt(len(logs))
