"""Sequences of elements as strided accesses: what becomes of one when its tile is laid out anew."""

from functools import lru_cache

import numpy as np

from tilesmith.families.trainium.codegen.isa.instructions import DIMENSIONS, Ints


def visited(count: Ints, stride: Ints) -> Ints:
    """Elements that an access visits, counted from its first, in row-major order."""
    return _visited(tuple(count.tolist()), tuple(stride.tolist()))


@lru_cache(maxsize=4096)
def _visited(counts: tuple[int, ...], strides: tuple[int, ...]) -> Ints:
    offsets = np.zeros(1, dtype=np.int64)
    for count, stride in zip(counts, strides, strict=True):
        offsets = (offsets[:, None] + np.arange(count, dtype=np.int64) * stride).reshape(-1)
    return offsets


def refactored(table: Ints, elements: Ints) -> list[tuple[int, int]] | None:
    """(count, stride) pairs, outermost first, that visit `table[elements]` in order.

    Args:
        table: the new place of each element, -1 where it has none.

    Returns:
        None where an element has no place, or where an access has too few axes to say it.
    """
    places = table[elements]
    if (places < 0).any():
        return None
    axes = _axes((places - places[0]).tobytes())
    return None if axes is None else list(axes)


@lru_cache(maxsize=4096)
def _axes(sequence: bytes) -> tuple[tuple[int, int], ...] | None:
    """The axes of a sequence of places, counted from its first (int64); see `refactored`."""
    places = np.frombuffer(sequence, dtype=np.int64)
    dims: list[tuple[int, int]] = []
    while len(places) > 1:
        count, stride = _innermost(places)
        if count == 1:
            return None
        dims.insert(0, (count, stride))
        places = places[::count]
        if len(dims) > DIMENSIONS - 1:
            return None
    return tuple(dims) or ((1, 1),)


def _innermost(places: Ints) -> tuple[int, int]:
    """The longest innermost axis that the whole sequence repeats."""
    stride = int(places[1] - places[0])
    breaks = np.flatnonzero(np.diff(places) != stride)
    run = len(places) if not len(breaks) else int(breaks[0]) + 1
    for count in range(run, 1, -1):
        if len(places) % count == 0:
            steps = np.diff(places.reshape(-1, count), axis=1)
            if (steps == stride).all():
                return count, stride
    return 1, 0
