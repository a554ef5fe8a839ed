"""Physical layouts: where element (i, j, ...) of a logical tensor lies in memory.

A layout lists the physical dimensions, outermost first; each is a whole logical axis, or the outer
or inner part of one split by a factor. `NCHW16c` is N, C//16, H, W, C%16. Factors may be symbolic
tile sizes (packed weights). Invariant: an axis is either whole or split once, outer before inner.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.expressions.expression import ONE, Expr, ExprLike, as_expr, ceildiv
from tilesmith.search_space.expressions.ranges import Bounds, floordiv, mod
from tilesmith.search_space.support.errors import WorkloadError

_PATTERN = re.compile(r"([A-Z]|\d+[a-z])")


@dataclass(frozen=True)
class LayoutDimension:
    """One physical dimension: part of logical `axis`."""

    axis: int
    part: Literal["whole", "outer", "inner"] = "whole"
    factor: Expr = ONE


@dataclass(frozen=True)
class Layout:
    """Physical dimensions, outermost first."""

    dimensions: tuple[LayoutDimension, ...]

    @classmethod
    def plain(cls, rank: int) -> "Layout":
        """Row-major."""
        return cls(tuple(LayoutDimension(axis) for axis in range(rank)))

    @classmethod
    def permuted(cls, order: Sequence[int]) -> "Layout":
        """Whole axes in another order, outermost first."""
        return cls(tuple(LayoutDimension(axis) for axis in order))

    @classmethod
    def parse(cls, text: str, axes: str = "NCHW") -> "Layout":
        """Read a layout name: upper-case letters are axes of `axes`, '16c' an inner block of C.

        Raises:
            WorkloadError: a letter that is no axis, or an axis that is missing.
        """
        parts = _PATTERN.findall(text)
        blocks = {p[-1].upper(): as_expr(int(p[:-1])) for p in parts if len(p) > 1}
        if "".join(parts) != text or sorted(p for p in parts if len(p) == 1) != sorted(axes):
            raise WorkloadError(f"layout '{text}' does not name each of the axes {axes} once")
        dimensions = []
        for part in parts:
            axis = axes.index(part[-1].upper())
            factor = blocks.get(part[-1].upper(), ONE)
            kind: Literal["whole", "outer", "inner"] = "whole"
            if part[-1].upper() in blocks:
                kind = "inner" if len(part) > 1 else "outer"
            dimensions.append(LayoutDimension(axis, kind, factor))
        return cls(tuple(dimensions))

    @classmethod
    def blocked(cls, rank: int, axis: int, factor: ExprLike, order: Sequence[int]) -> "Layout":
        """Axes in `order` (outermost first) with `axis` split by `factor`, its inner part last."""
        factor = as_expr(factor)
        outer = tuple(
            LayoutDimension(a, "outer", factor) if a == axis else LayoutDimension(a) for a in order
        )
        assert len(outer) == rank
        return cls((*outer, LayoutDimension(axis, "inner", factor)))

    def shape(self, logical: Sequence[ExprLike]) -> tuple[Expr, ...]:
        """Physical shape; a split axis is padded up to a multiple of its factor."""
        extents = []
        for dimension in self.dimensions:
            extent = as_expr(logical[dimension.axis])
            match dimension.part:
                case "whole":
                    extents.append(extent)
                case "outer":
                    extents.append(ceildiv(extent, dimension.factor))
                case "inner":
                    extents.append(dimension.factor)
        return tuple(extents)

    def indices(self, logical: Sequence[Expr], bounds: Bounds) -> tuple[Expr, ...]:
        """Physical indices of a logical element whose variables are within `bounds`."""
        places = []
        for dimension in self.dimensions:
            index = logical[dimension.axis]
            match dimension.part:
                case "whole":
                    places.append(index)
                case "outer":
                    places.append(floordiv(index, dimension.factor, bounds))
                case "inner":
                    places.append(mod(index, dimension.factor, bounds))
        return tuple(places)

    def pack(self, array: NDArray[Any]) -> NDArray[Any]:
        """Logical array -> contiguous physical array; padding is zero. Factors must be numbers."""
        shape = self.concrete_shape(array.shape)
        padding = [(0, 0)] * array.ndim
        split: list[int] = []
        position: dict[tuple[int, str], int] = {}
        for axis, extent in enumerate(array.shape):
            factor = self._factor(axis)
            padding[axis] = (0, -extent % factor)
            position[axis, "outer"] = position[axis, "whole"] = len(split)
            split.append((extent + padding[axis][1]) // factor if factor > 1 else extent)
            if self._is_split(axis):
                split[-1] = (extent + padding[axis][1]) // factor
                position[axis, "inner"] = len(split)
                split.append(factor)
        order = [position[d.axis, d.part] for d in self.dimensions]
        padded = np.pad(array, padding) if any(p[1] for p in padding) else array
        return np.ascontiguousarray(padded.reshape(split).transpose(order)).reshape(shape)

    def unpack(self, array: NDArray[Any], logical: Sequence[int]) -> NDArray[Any]:
        """Physical array -> logical array of shape `logical`."""
        order: list[int] = []
        padded: list[int] = []
        for axis, extent in enumerate(logical):
            parts = {d.part: i for i, d in enumerate(self.dimensions) if d.axis == axis}
            order += [parts[part] for part in ("whole", "outer", "inner") if part in parts]
            padded.append(-(-extent // self._factor(axis)) * self._factor(axis))
        whole = array.transpose(order).reshape(padded)
        return np.ascontiguousarray(whole[tuple(slice(0, extent) for extent in logical)])

    def concrete_shape(self, logical: Sequence[int]) -> tuple[int, ...]:
        """Physical shape as integers."""
        shape = tuple(extent.constant for extent in self.shape(list(logical)))
        assert all(extent is not None for extent in shape), "layout factors are still symbolic"
        return tuple(extent or 0 for extent in shape)

    def _is_split(self, axis: int) -> bool:
        return any(d.axis == axis and d.part == "inner" for d in self.dimensions)

    def _factor(self, axis: int) -> int:
        factors = [
            d.factor.constant for d in self.dimensions if d.axis == axis and d.part == "inner"
        ]
        return (factors[0] or 1) if factors else 1
