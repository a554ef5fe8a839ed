"""From what calibration saw to scales and zero points.

Methods, by the name that a user gives:

- `minmax`: the least and the greatest value;
- `percentile:99.99`: the range that 99.99 % of the values lie in, as many left out at both ends;
- `mse`: the range of those between zero and the extremes that rounds with the least squared error
  (of the histogram's bins).

Every range holds zero, which is exact then: padding and Relu rest on that (Jacob et al. 2018).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.quantisation.numbers.histograms import Histogram
from tilesmith.search_space.support.errors import InputError

METHODS = ("minmax", "percentile", "mse")

_TRIED = 64
"""Ranges that `mse` tries."""

SMALLEST = 2.0**-60
"""The least scale: the product of two, which biases have, is a normal number still."""


@dataclass(frozen=True)
class Method:
    """How a range is taken from a histogram.

    Attributes:
        name: one of `METHODS`.
        percent: of the values that lie in the range, for `percentile`.
    """

    name: str
    percent: float = 100.0

    @classmethod
    def parse(cls, text: str) -> "Method":
        """`minmax`, `percentile:99.99` or `mse`.

        Raises:
            InputError: none of these, or a percentage out of range.
        """
        name, colon, number = text.partition(":")
        if name not in METHODS or (colon and name != "percentile"):
            raise InputError(
                f"unknown calibration method '{text}'; minmax, percentile:99.99 or mse is expected"
            )
        if name != "percentile":
            return cls(name)
        try:
            percent = float(number or "99.99")
        except ValueError:
            percent = 0.0
        if not 50.0 < percent <= 100.0:
            raise InputError(
                f"'{number}' of the calibration method '{text}' is out of range; more than 50 and "
                "at most 100 percent are expected, such as percentile:99.9"
            )
        return cls(name, percent)

    def range_of(self, seen: Histogram, symmetric: bool) -> tuple[float, float]:
        """The range (low, high) that values are rounded within; it holds zero."""
        low, high = min(seen.low, 0.0), max(seen.high, 0.0)
        if self.name == "percentile" and seen.total:
            outside = (100.0 - self.percent) / 200.0
            low = min(seen.quantile(outside), 0.0)
            high = max(seen.quantile(1.0 - outside), 0.0)
        if symmetric:
            low, high = -max(-low, high), max(-low, high)
        if self.name == "mse" and seen.total and high > low:
            low, high = _least_squares(seen, low, high)
        return low, high


def _least_squares(seen: Histogram, low: float, high: float) -> tuple[float, float]:
    """The best of shrunken ranges; the errors of bins taken at their centres."""
    used = np.flatnonzero(seen.counts)
    values, counts = seen.centres()[used], seen.counts[used]
    values = np.clip(values, low, high)
    best, chosen = np.inf, (low, high)
    for share in np.linspace(1.0, 0.2, _TRIED):
        scale = (high - low) * share / 255
        kept = np.clip(values, low * share, high * share)
        cut = (values - kept) ** 2
        rounding = np.where(cut > 0, 0.0, np.minimum(scale**2 / 12, values**2))
        error = float(((cut + rounding) * counts).sum())
        if error < best:
            best, chosen = error, (low * share, high * share)
    return chosen


@dataclass(frozen=True)
class Affine:
    """A tensor's numbers in bytes: x = (q - zero) * scale.

    Attributes:
        scale: a float32.
        zero: what zero is.
        dtype: "uint8" or "int8".
    """

    scale: np.float32
    zero: int
    dtype: str

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest byte."""
        return (0, 255) if self.dtype == "uint8" else (-128, 127)

    @classmethod
    def over(cls, low: float, high: float, symmetric: bool, even: bool = False) -> "Affine":
        """Of a range that holds zero: uint8, or where zero is to be 0 int8.

        Args:
            even: whether zero is to be an even byte, which may be added before a number is rounded
                to even as well as behind; the range grows by a byte's step at most.
        """
        if symmetric:
            return cls(_scale(max(-low, high) / 127), 0, "int8")
        scale = _scale((high - low) / 255)
        place = -low / np.float64(scale)
        if even and place > 0:
            near = 2 * int(min(place, 253.0) // 2)
            steps = {
                zero: max(-low / zero, high / (255 - zero))
                for zero in (near, near + 2)
                if 0 < zero < 255
            }
            zero = min(steps, key=steps.__getitem__)
            return cls(_scale(steps[zero]), zero, "uint8")
        return cls(scale, int(np.clip(np.rint(place), 0, 255)), "uint8")

    def rounded(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """The numbers that bytes of the values mean."""
        low, high = self.bounds
        places = np.clip(np.rint(values / self.scale), low - self.zero, high - self.zero)
        return np.asarray(places * self.scale, np.float32)


def _scale(step: float) -> np.float32:
    """A step as a float32 that one can divide by; 1 where all values are zero."""
    return np.float32(max(step, SMALLEST)) if step > 0 else np.float32(1.0)
