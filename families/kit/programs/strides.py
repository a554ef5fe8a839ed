"""Pieces of constant stride: what instructions can walk of a loop whose indices divide or clamp.

    i // 2                for i in 0..7     i = 0, 2, 4, 6 and i = 1, 3, 5, 7: two pieces
    min(max(i - 1, 0), 3) for i in 0..5     i = 0, 1 (which stand still), then 2, 3, 4, then 5

A loop's effect on some index expressions is a table, one row for each expression; a piece is an
arithmetic progression of iterations over which every row changes by a constant.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import Scalar, Select, loads

LONGEST_PERIOD = 64
"""Interleaved pieces looked for along one loop."""

Table = NDArray[np.int64]


@dataclass(frozen=True)
class StridedRange:
    """Iterations first, first + step, ... (count of them), at constant strides."""

    first: int
    count: int
    step: int


@lru_cache(maxsize=4096)
def _cut(data: bytes, columns: int, conditions: int) -> tuple[StridedRange, ...]:
    tables = np.frombuffer(data, dtype=np.int64).reshape(-1, columns)
    best: list[StridedRange] = []
    for period in range(1, min(columns, LONGEST_PERIOD) + 1):
        pieces = [p for phase in range(period) for p in runs(tables, conditions, phase, period)]
        if not best or len(pieces) < len(best):
            best = pieces
        if len(best) <= period:
            break
    return tuple(best)


def runs(tables: Table, conditions: int, phase: int = 0, period: int = 1) -> Iterator[StridedRange]:
    """Runs of constant stride among iterations phase, phase + period, ..."""
    part = tables[:, phase::period]
    count = part.shape[1]
    steps = np.diff(part, axis=1)
    joined = (steps[:conditions] == 0).all(axis=0)
    alike = (steps[:, 1:] == steps[:, :-1]).all(axis=0)
    start = 0
    while start < count:
        stop = start + 1
        if stop < count and joined[start]:
            stop += 1
            while stop < count and joined[stop - 1] and alike[stop - 2]:
                stop += 1
        yield StridedRange(phase + start * period, stop - start, period)
        start = stop


def cut(tables: Table, conditions: int) -> tuple[StridedRange, ...]:
    """The fewest pieces of a loop (found greedily, interleaved ones too).

    Args:
        tables: int64, shape (expressions, iterations): what each iteration gives each expression;
            the first `conditions` rows are flags, which must not change within a piece.
    """
    return _cut(np.ascontiguousarray(tables).tobytes(), tables.shape[1], conditions)


def boxes(value: Scalar, sizes: Mapping[str, int]) -> int:
    """How many boxes of constant stride a copied value falls into over loops of `sizes`.

    Variables that are no such loop count as zero, so the count is that of a first tile.
    """
    conditions = value.condition if isinstance(value, Select) else ()
    indices = [index for load in loads(value) for index in load.indices]
    total = 1
    for name, size in sizes.items():
        odd = [e for e in indices if _odd(e, name)]
        flags = [e for e in conditions if name in e.variables()]
        if size > 1 and (odd or flags):
            total *= len(cut(_table((*flags, *odd), name, size, len(flags)), len(flags)))
    return total


def _odd(index: Expr, name: str) -> bool:
    return index.coefficient(name) is None


def _table(expressions: Sequence[Expr], name: str, size: int, flags: int) -> Table:
    zero: dict[str, object] = {n: 0 for e in expressions for n in e.variables()}
    places = {**zero, name: np.arange(size)}
    rows = [np.broadcast_to(e.evaluate(places), (size,)) for e in expressions]
    table = np.stack(rows).astype(np.int64)
    table[:flags] = table[:flags] >= 0
    return table
