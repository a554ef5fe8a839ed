"""How far outputs are from those of the float32 model."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.support.json_object import JsonObject

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Accuracy(JsonObject, keys="error sqnr_db max_abs_err:largest top1_agreement:top1 rows"):
    """Outputs of a quantised model beside those of the float32 model, over samples.

    Attributes:
        error: the norm of the difference by the norm of the float32 output, of all samples
            together; of several outputs the greatest.
        largest: the largest absolute difference.
        top1: the share of rows whose greatest number is in the same place (of the first output
            that has rows of more than one number); None where there is none.
        rows: how many there were.
    """

    error: float
    largest: float
    top1: float | None
    rows: int

    @property
    def sqnr_db(self) -> float:
        """Signal to quantisation noise in dB."""
        return sqnr_db(self.error)


def accuracy(
    run: Callable[[Arrays], Arrays], samples: Sequence[Arrays], expected: Sequence[Arrays]
) -> Accuracy:
    """How far `run` is from what is expected of samples.

    Args:
        expected: the float32 model's outputs, for each sample; floating ones count.
    """
    names = [name for name, value in expected[0].items() if value.dtype.kind == "f"]
    squares = {name: np.zeros(2) for name in names}
    ranked = next((name for name in names if is_ranked(expected[0][name])), None)
    same, rows, largest = 0, 0, 0.0
    for sample, wanted in zip(samples, expected, strict=True):
        outputs = run(sample)
        for name in names:
            a, b = outputs[name].astype(np.float64), wanted[name].astype(np.float64)
            finite = np.isfinite(b)  # a masked place holds -inf, rightly
            difference = np.where(finite, a - np.where(finite, b, 0.0), 0.0)
            squares[name] += (difference**2).sum(), (b[finite] ** 2).sum()
            largest = max(largest, float(np.abs(difference).max(initial=0.0)))
            if name == ranked:
                agreed = a.argmax(axis=-1) == b.argmax(axis=-1)
                same, rows = same + int(agreed.sum()), rows + agreed.size
    error = max((_ratio(*square) for square in squares.values()), default=0.0)
    return Accuracy(error, largest, same / rows if rows else None, rows)


def is_ranked(value: NDArray[Any]) -> bool:
    """Whether an output's rows have places to choose among."""
    return value.ndim > 1 and value.shape[-1] > 1


def _ratio(difference: float, norm: float) -> float:
    if norm > 0:
        return math.sqrt(difference / norm)
    return math.inf if difference > 0 else 0.0


def sqnr_db(error: float) -> float:
    """Signal to quantisation noise in dB: -20 log10(error)."""
    return -20 * math.log10(error) if error > 0 else math.inf
