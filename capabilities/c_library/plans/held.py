"""What follows from the sizes alone, as tables made beforehand: for those who cannot compute it.

Most such tensors are the beginning of one that is the same for all sizes: positions are the first
numbers of a longer row, a causal mask is the corner of a larger one. They need one table, of the
largest sizes, in which axes along which nothing changes are kept once. Others need a table for each
choice of sizes. That a tensor is a corner is looked at where models are looked at
(`regions.checked_points`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.recipe.variants import Variant, VaryingRecipe
from tilesmith.compiler.varying.binding import follows
from tilesmith.compiler.varying.sizes.regions import checked_points
from tilesmith.search_space.expressions.expression import Expr, as_expr, var
from tilesmith.search_space.support.errors import ModelError

MOST_BYTES = 16 << 20
"""Of tables for each choice of sizes."""

Values = NDArray[Any]


@dataclass(frozen=True, eq=False)
class _Table:
    """Values of a tensor at all sizes of a region.

    Attributes:
        array: the values: of the largest sizes, or of all sizes, one behind the other.
        offset: where those of the sizes begin, in bytes.
        shape: what to read from there on.
        steps: bytes from one index of an axis to the next; 0 where it has one for all.
        element: bytes of what the steps end at.
    """

    array: Values
    offset: Expr
    shape: tuple[Expr, ...]
    steps: tuple[int, ...]
    element: int


class VariantTables:
    """The tables of a variant.

    Raises (on construction):
        JobError: what follows from the sizes cannot be computed.
    """

    def __init__(self, whole: VaryingRecipe, variant: Variant) -> None:
        self._whole, self._variant = whole, variant
        high = {size.name: size.high for size in variant.region}
        self._points = [high, *(p for p in checked_points(variant.region) if p != high)]
        if variant.held:
            self._known = [follows(whole, variant, point) for point in self._points]

    def at_points(self, name: str) -> list[tuple[Mapping[str, int], Values]]:
        """Values of a held tensor where they are looked at."""
        return [(p, v[name]) for p, v in zip(self._points, self._known, strict=True)]

    def of(self, name: str) -> _Table:
        """The table of a held tensor.

        Raises:
            ModelError: it would be too large.
        """
        shape = self._variant.by_name[name].info.shape
        assert shape is not None, f"'{name}' is held"
        return self._corner(name, shape) or self._each(name, shape)

    def _corner(self, name: str, shape: tuple[Expr, ...]) -> _Table | None:
        """One table of the largest sizes."""
        largest = self._known[0][name]
        for axis, extent in enumerate(largest.shape):
            first = largest.take([0], axis) if extent else largest
            if extent > 1 and _same(np.broadcast_to(first, largest.shape), largest):
                largest = first
        for table in (known[name] for known in self._known):
            pairs = zip(largest.shape, table.shape, strict=True)
            corner = largest[tuple(slice(None if a == 1 else b) for a, b in pairs)]
            try:
                if not _same(np.broadcast_to(corner, table.shape), table):
                    return None
            except ValueError:  # it grows while sizes get smaller
                return None
        largest = np.ascontiguousarray(largest)
        steps = tuple(
            0 if extent == 1 else step
            for extent, step in zip(largest.shape, largest.strides, strict=True)
        )
        return _Table(largest, as_expr(0), shape, steps, largest.itemsize)

    def _each(self, name: str, shape: tuple[Expr, ...]) -> _Table:
        """A table for each choice of sizes."""
        region = self._variant.region
        count = prod(size.high - size.low + 1 for size in region)
        most = max(table.nbytes for _, table in self.at_points(name))
        if count * most > MOST_BYTES:
            raise ModelError(
                f"'{self._whole.title}' cannot become a library for all of "
                f"{', '.join(map(str, region))}: '{name}' follows from the sizes, and its values "
                f"at each of them take {count * most >> 20} MB; give smaller ranges with --shape"
            )
        rows = np.zeros((count, most), np.uint8)
        offset, nbytes = as_expr(0), as_expr(self._known[0][name].itemsize)
        for size in region:
            offset = offset * (size.high - size.low + 1) + (var(size.name) - size.low)
        for extent in shape:
            nbytes = nbytes * extent
        ranges = [range(size.low, size.high + 1) for size in region]
        for number, values in enumerate(product(*ranges)):
            point = {size.name: value for size, value in zip(region, values, strict=True)}
            array = np.ascontiguousarray(follows(self._whole, self._variant, point)[name])
            raw = array.reshape(-1).view(np.uint8)
            if raw.size > most:
                raise ModelError(
                    f"'{self._whole.title}' cannot become a library: '{name}' is larger at "
                    f"{point} than at the sizes around; give smaller ranges with --shape"
                )
            rows[number, : raw.size] = raw
        return _Table(rows, offset * most, (nbytes,), (1,), 1)


def _same(one: Values, two: Values) -> bool:
    return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
