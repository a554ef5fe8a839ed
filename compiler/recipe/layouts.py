"""Physical layouts as the compiler sees them: names, bytes, conversions.

A layout name is what templates put into their `input_layout` and `output_layout` knobs. "" is plain
row-major for any rank; other names (`NCHW16c`) are of four-axis images. Invariant: two layouts with
`same_bytes` need no conversion.
"""

import math
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.scheduling.layout import Layout

PLAIN = ""
IMAGE = "NCHW"


def normal(name: str) -> str:
    """`PLAIN` for every spelling of row-major, else the name."""
    return PLAIN if name in (PLAIN, IMAGE) else name


@lru_cache(maxsize=256)
def _parsed(name: str) -> Layout:
    return Layout.parse(name, IMAGE)


def physical_shape(name: str, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Extents in memory; blocked axes are padded up to whole blocks."""
    return dims if normal(name) == PLAIN else _parsed(name).concrete_shape(dims)


def physical_bytes(name: str, dims: tuple[int, ...], dtype: str) -> int:
    """Bytes in memory, padding included."""
    return math.prod(physical_shape(name, dims)) * size_of(dtype)


def pack(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """A logical array in a layout."""
    return array if normal(name) == PLAIN else _parsed(name).pack(array)


def unpack(name: str, array: NDArray[Any], dims: tuple[int, ...]) -> NDArray[Any]:
    """The logical array of shape `dims` from one in a layout."""
    plain = normal(name) == PLAIN
    return array.reshape(dims) if plain else _parsed(name).unpack(array, dims)


def block(name: str) -> int:
    """Channels in a block of a channel-blocked layout (1: not blocked)."""
    if normal(name) == PLAIN:
        return 1
    inner = [d for d in _parsed(name).dimensions if d.part == "inner" and d.axis == 1]
    return (inner[0].factor.constant or 1) if inner else 1


def same_bytes(first: str, second: str, dims: tuple[int, ...]) -> bool:
    """Whether both layouts put every element at the same place."""
    if normal(first) == normal(second):
        return True
    return len(dims) == 4 and _order(first, dims) == _order(second, dims)


def _order(name: str, dims: tuple[int, ...]) -> list[tuple[int, str, int]]:
    """Dimensions in memory, outermost first: those of one element left out, whole axes merged."""
    layout = _parsed(name if normal(name) != PLAIN else IMAGE)
    shape = layout.concrete_shape(dims)
    order: list[tuple[int, str, int]] = []
    for dimension, extent in zip(layout.dimensions, shape, strict=True):
        if extent == 1:
            continue
        if order and order[-1][:2] == (dimension.axis, "outer") and dimension.part == "inner":
            _, _, outer = order.pop()
            order.append((dimension.axis, "whole", outer * extent))
        elif extent == dims[dimension.axis]:
            order.append((dimension.axis, "whole", extent))
        else:
            order.append((dimension.axis, dimension.part, extent))
    return order
