"""What one loop variable adds to two places, as pieces that are affine in every dimension.

A table has a row for each place and a column for each value of the variable. `c // 16` and `c % 16`
of a loop of 96 are one piece of two dimensions, 6 and 16; of a loop of 24, two pieces.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.expressions.expression import Expr

Table = NDArray[np.int64]
Dimension = tuple[int, int, int]
"""Extent, and the step in each place."""


def tables(places: tuple[Expr, Expr], ranges: Mapping[str, range]) -> Iterable[Table]:
    """Both places as sums of a table a variable; one that is empty where they are no such sums."""
    given = {name: np.zeros((2, len(points)), np.int64) for name, points in ranges.items()}
    given[""] = np.zeros((2, 1), np.int64)
    for side, place in enumerate(places):
        for term in place.terms:
            summand = Expr((term,))
            name, *others = sorted(summand.variables()) or [""]
            if others or summand.tensors():
                return [np.zeros((2, 0), np.int64)]
            values = {name: np.array(ranges[name])} if name else {}
            given[name][side] += summand.evaluate(values)
    return given.values()


def pieces(table: Table) -> list[tuple[Table, list[Dimension]]]:
    """The start of each piece and its dimensions; none where elements are written again or lie
    irregularly."""
    count, start = table.shape[1], table[:, :1]
    if count < 2:
        return [(start[:, 0], [])] if count else []
    steps = np.diff(table)
    regular = (steps == steps[:, :1]).all(axis=0)
    run = count if regular.all() else int(regular.argmin()) + 1
    inner = (run, int(steps[0, 0]), int(steps[1, 0]))
    if not inner[1]:
        return []
    if run == count:
        return [(start[:, 0], [inner])]
    covered = count // run * run
    outer = table[:, :covered:run]
    whole = outer[:, :, None] + (table[:, :run] - start)[:, None]
    if (whole.reshape(2, -1) != table[:, :covered]).any():
        return []
    main = [(first, [*dimensions, inner]) for first, dimensions in pieces(outer)]
    rest = pieces(table[:, covered:]) if covered < count else []
    return [*main, *rest] if main and (rest or covered == count) else []
