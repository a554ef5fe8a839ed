"""Numbers that are fitted to what a nest should give: what a wrong instruction should have had."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

STEPS = 4
"""Steps of a secant."""


def fitted(gap: Callable[[float], NDArray[Any]], start: float) -> Iterator[float]:
    """Numbers that bring results nearer to what they should be, by least squares.

    Args:
        gap: how far the results are off where the number is the given one.
        start: the number to begin with.
    """
    value, step = start, max(1e-3, 0.01 * abs(start))
    for _ in range(STEPS):
        here = gap(value)
        slope = (gap(value + step) - here) / step
        size = float(np.sum(slope**2))
        if not np.isfinite(size) or size == 0.0:
            return
        move = -float(np.sum(slope * here)) / size
        value += move
        if not np.isfinite(value):
            return
        yield value
        step = max(abs(move) * 0.1, 1e-6 * max(1.0, abs(value)))
