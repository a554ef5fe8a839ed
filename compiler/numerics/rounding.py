"""What a rewrite of floating formulas may do with the constants at hand, so that it is harmless.

Numbers have 24 digits and a range. A rewrite keeps what is computed up to roundings if it neither
makes constants leave the range, nor lets a value cancel after a rounding that was exact, or small,
before. Here are the bounds that passes ask for; where they do not hold, formulas stay as written.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_ORDINARY = 2.0**32
"""Products of two numbers between its reciprocal and it neither overflow nor underflow, and only
values within 2^64 of the limits of their type can tell in which order they were multiplied."""

LARGEST_SHIFT = 2.0**10
"""A shift up to this one is lost in roundings by at most 2^-14."""

_SMALLEST = 2.0**-80
"""Weights that are all below it are not made smaller."""


def is_ordinary(*factors: Array) -> bool:
    """Whether factors are 0 or of common magnitude, so that their order does not matter."""
    return all(
        bool(np.all((sizes == 0) | ((sizes >= 1 / _ORDINARY) & (sizes <= _ORDINARY))))
        for sizes in map(np.abs, factors)
    )


def is_small_shift(shift: Array, factor: Array | float = 1.0) -> bool:
    """Whether a shift, and what a factor makes of it, costs next to nothing in roundings."""
    wide = np.abs(np.asarray(shift, dtype=np.float64))
    with np.errstate(invalid="ignore"):
        sizes = np.maximum(wide, wide * np.abs(np.asarray(factor, dtype=np.float64)))
    return bool(np.all(sizes <= LARGEST_SHIFT))


def is_exact_sum(first: Array, second: Array) -> bool:
    """Whether adding two constants at once rounds less than adding one after the other, and the
    first did not cancel what the second brings back, as when 2^23 rounds to whole numbers."""
    with np.errstate(over="ignore", invalid="ignore"):
        both = first.astype(np.float64) + second
        exact = both.astype(np.float32) == both
    return bool(np.all(exact & np.isfinite(both) & (np.sign(first) * np.sign(second) >= 0)))


def is_power_of_two(values: Array) -> NDArray[np.bool_]:
    """Where multiplying by them is exact: also by their negatives, and by 0."""
    mantissas = np.abs(np.frexp(np.asarray(values, dtype=np.float64))[0])
    return np.asarray((mantissas == 0.5) | (mantissas == 0))


def in_range(before: Array, after: Array) -> bool:
    """Whether weights that were scaled (in double precision) are what single precision holds."""
    greatest, least = np.max(np.abs(after), initial=0.0), np.max(np.abs(before), initial=0.0)
    return bool(greatest <= np.finfo(np.float32).max) and (
        bool(greatest >= _SMALLEST) or not least or greatest >= least
    )
