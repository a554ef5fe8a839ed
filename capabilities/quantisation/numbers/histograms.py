"""`Histogram`: how the values of a tensor are distributed, in bounded memory and one pass.

Bins are of equal width, a power of two, and lie to both sides of zero; where a value is beyond the
last one the width doubles and pairs of bins become one. So a histogram is the same whatever order
values come in, it never loses one, and a bin is at most 1/2048 of the largest absolute value wide.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE = 4096
"""Bins to each side of zero."""

_SMALLEST = -140
"""The exponent of the narrowest bins: values below are of the first."""


class Histogram:
    """Counts of values in bins of equal width, which double when a larger value comes.

    Attributes:
        low, high: the least and the greatest value; infinite before there is one.
        counts: how many values lie in [(i - SIDE) width, (i - SIDE + 1) width).
    """

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf
        self.counts = np.zeros(2 * SIDE, np.int64)
        self._exponent = _SMALLEST

    @property
    def width(self) -> float:
        """The width of a bin."""
        return math.ldexp(1.0, self._exponent)

    @property
    def total(self) -> int:
        """The number of values counted."""
        return int(self.counts.sum())

    def add(self, values: NDArray[Any]) -> None:
        """Count values. All must be finite."""
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        largest = max(-low, high)
        if largest > 0:
            self._widen(math.frexp(largest)[1] - int(math.log2(SIDE)))
        places = np.floor(values.reshape(-1) * np.float64(1 / self.width)).astype(np.int64) + SIDE
        self.counts += np.bincount(places, minlength=2 * SIDE)

    def _widen(self, exponent: int) -> None:
        for _ in range(min(exponent - self._exponent, int(math.log2(SIDE)) + 1)):
            halves = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts[:] = 0
            self.counts[SIDE // 2 : SIDE // 2 + SIDE] = halves
        self._exponent = max(self._exponent, exponent)

    def centres(self) -> NDArray[np.float64]:
        """The middle of each bin."""
        return np.asarray((np.arange(-SIDE, SIDE) + 0.5) * self.width, np.float64)

    def quantile(self, share: float) -> float:
        """The value that a share of all values does not exceed, evenly spread within a bin."""
        counted = np.cumsum(self.counts)
        wanted = share * counted[-1]
        place = int(np.searchsorted(counted, wanted))
        place = min(place, 2 * SIDE - 1)
        before = counted[place] - self.counts[place]
        inside = (wanted - before) / self.counts[place] if self.counts[place] else 0.0
        value = (place - SIDE + inside) * self.width
        return min(max(value, self.low), self.high)
