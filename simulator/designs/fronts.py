"""Pareto fronts: the points than which no other is better in everything."""

from collections.abc import Sequence

import numpy as np


def front(values: Sequence[Sequence[float]]) -> list[int]:
    """Numbers of the points that no other dominates, in their order; all values are better small.

    A point dominates another if it is nowhere worse and somewhere better; of equal points the first
    is kept. Points with a value that is not a number or infinite are never in it.
    """
    if not values:
        return []
    table = np.asarray(values, np.float64)
    known = np.isfinite(table).all(axis=1)
    points: list[int] = []
    for number in np.flatnonzero(known):
        rows = table[known]
        better = (rows <= table[number]).all(axis=1) & (rows < table[number]).any(axis=1)
        if not better.any() and not (table[points] == table[number]).all(axis=1).any():
            points.append(int(number))
    return points
