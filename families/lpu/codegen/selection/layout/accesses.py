"""Accesses of a nest as rows and lanes: which row every vector of it is.

A buffer's last physical dimension lies across lanes, `LANES` to a row. What is longer is cut, and
cuts stand behind each other, so that those of one place can be on different slices:

    place(i, ..) = i.. row-major over all dimensions but the last
    row(i, .., l) = place(i, ..) + (l // LANES) * places

A nest has one loop along the lanes, and goes over the rows with all others; `LoopGrid` has their
values, row by row in the order of the loops. Index expressions are evaluated on it as numpy arrays,
whatever they are: affine ones, quotients, remainders, clamped ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from tilesmith.families.lpu.codegen.dataflow import LANES, Ints
from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import Condition, Load
from tilesmith.search_space.ir.program import Buffer, Loop
from tilesmith.search_space.support.errors import CodegenError

Environment = Mapping[str, int]


@lru_cache(maxsize=65536)
def shape_of(buffer: Buffer) -> tuple[int, ...]:
    """A bound buffer's shape; of no dimensions: one element."""
    extents = tuple(extent.constant for extent in buffer.shape)
    if None in extents:
        raise CodegenError(f"buffer '{buffer.name}' has a symbolic shape; bind every symbol first")
    return tuple(extent or 0 for extent in extents) or (1,)


def places_of(buffer: Buffer) -> int:
    """Places along all dimensions but the last."""
    *lead, _ = shape_of(buffer)
    return int(np.prod(lead, dtype=np.int64))


def chunks_of(buffer: Buffer) -> int:
    """Rows that one place takes."""
    return -(-shape_of(buffer)[-1] // LANES)


def rows_of(buffer: Buffer) -> int:
    """Rows that a buffer takes."""
    return places_of(buffer) * chunks_of(buffer)


@dataclass
class LoopGrid:
    """Values of the loops of a nest, all but that along the lanes.

    Attributes:
        around: values of the loops outside.
        values: of each loop, an array over the rows (count,).
        count: rows.
    """

    around: Environment
    values: dict[str, Ints] = field(default_factory=dict)
    count: int = 1

    @classmethod
    def of(cls, loops: Sequence[Loop], around: Environment) -> "LoopGrid":
        """All rows, the first loop outermost; extents may depend on loops outside them."""
        grid = cls(around)
        for loop in loops:
            extent = np.broadcast_to(grid.evaluate(loop.extent), (grid.count,))
            extent = np.maximum(extent, 0)
            again = np.repeat(np.arange(grid.count), extent)
            starts = np.cumsum(extent) - extent
            value = np.arange(len(again), dtype=np.int64) - np.repeat(starts, extent)
            grid.values = {name: numbers[again] for name, numbers in grid.values.items()}
            grid.values[loop.variable], grid.count = value, len(again)
        return grid

    def evaluate(self, index: Expr, more: Mapping[str, Any] | None = None) -> Any:
        """An index expression on every row.

        Raises:
            CodegenError: it counts with a loop that is neither outside nor over rows.
        """
        if index.constant is not None:
            return np.int64(index.constant)
        values = {**self.around, **self.values, **(more or {})}
        if missing := index.variables() - values.keys():
            raise CodegenError(
                f"'{index}' counts with loop {', '.join(sorted(missing))}, which does not go over "
                "rows"
            )
        return index.evaluate(values)

    def numbers(self, index: Expr, more: Mapping[str, Any] | None = None) -> Ints:
        """The same, shape (count,)."""
        numbers = self.evaluate(index, more)
        return np.ascontiguousarray(np.broadcast_to(numbers, (self.count,)), np.int64)

    def by_extent(self, index: Expr) -> "Iterator[tuple[int, LoopGrid]]":
        """Parts of the rows on which a loop goes equally far, and how far that is."""
        extents = self.numbers(index)
        for extent in np.unique(extents).tolist():
            yield extent, self.of_rows(extents == extent)

    def of_rows(self, wanted: Any) -> "LoopGrid":
        """Some of the rows, by a mask (count,)."""
        if wanted.all():
            return self
        values = {name: numbers[wanted] for name, numbers in self.values.items()}
        return LoopGrid(self.around, values, int(wanted.sum()))

    def holds(self, condition: Condition, more: Mapping[str, Any] | None = None) -> Any:
        """Where all of a condition is >= 0."""
        inside: Any = np.True_
        for expression in condition:
            inside = inside & (self.evaluate(expression, more) >= 0)
        return inside


@dataclass(frozen=True)
class AccessPlace:
    """Where an access stands on every row of a grid.

    Attributes:
        lead: number of the place, (count,).
        lane: index along the last dimension where the loop along the lanes is at 0, (count,).
        moves: whether the loop along the lanes moves it.
    """

    buffer: Buffer
    lead: Ints
    lane: Ints
    moves: bool

    @property
    def rows(self) -> Ints:
        """Row numbers where the loop along the lanes is at 0, (count,)."""
        return self.lead + self.lane // LANES * places_of(self.buffer)


def place(access: Load, buffer: Buffer, grid: LoopGrid, lanes: str) -> AccessPlace:
    """Where an access of a nest stands.

    Args:
        lanes: variable of the loop along the lanes ("" if there is none).

    Raises:
        CodegenError: that loop moves it along other dimensions, or by steps.
    """
    shape = shape_of(buffer)
    zero = {lanes: 0} if lanes else {}
    *lead, last = access.indices or (None,)
    rows: Any = np.int64(0)
    for index, extent in zip(lead, shape, strict=False):
        assert index is not None
        if lanes in index.variables():
            raise CodegenError(
                f"{access}: loop '{lanes}' runs along the lanes and cannot count rows of "
                f"'{buffer.name}'; it would have to be transposed"
            )
        rows = rows * extent + grid.evaluate(index, zero)
    moves = last is not None and lanes in last.variables()
    if last is not None and moves:
        factor = last.coefficient(lanes)
        if factor is None or factor.constant != 1:
            raise CodegenError(f"{access}: loop '{lanes}' does not go lane by lane")
    lane = grid.evaluate(last, zero) if last is not None else 0

    def spread(numbers: Any) -> Ints:
        return np.ascontiguousarray(np.broadcast_to(numbers, (grid.count,)), np.int64)

    return AccessPlace(buffer, spread(rows), spread(lane), moves)


def in_bounds(place: AccessPlace, extent: int) -> Any:
    """Rows on which an access lies in its buffer, over `extent` lanes."""
    shape = shape_of(place.buffer)
    most = places_of(place.buffer)
    last = place.lane + (extent - 1 if place.moves else 0)
    return (place.lead >= 0) & (place.lead < most) & (place.lane >= 0) & (last < shape[-1])
