"""Requests over time: drawn from a Poisson process, or read from a trace.

Invariant: requests stand in the order of their arrival, and each has at least one token of prompt
and one of answer.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.files import ending

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COLUMNS = ("arrival", "input", "output")
_MOST_TOKENS = 10**8


@dataclass(frozen=True, eq=False)
class Traffic:
    """Requests in the order of their arrival.

    Attributes:
        arrivals: seconds, float64 of shape (requests,), ascending from 0 or later.
        inputs: tokens of each prompt, int64 of shape (requests,).
        outputs: tokens of each answer, int64 of shape (requests,).
    """

    arrivals: "NDArray[np.float64]"
    inputs: "NDArray[np.int64]"
    outputs: "NDArray[np.int64]"

    def __len__(self) -> int:
        return len(self.arrivals)

    @property
    def rate(self) -> float:
        """Requests a second from the first arrival to the last; infinite if all come at once."""
        span = float(self.arrivals[-1] - self.arrivals[0])
        return (len(self) - 1) / span if span > 0 else math.inf

    def share(self, number: int, replicas: int) -> "Traffic":
        """The requests of replica `number` where they are dealt to `replicas` in turns."""
        taken = slice(number, None, replicas)
        return Traffic(self.arrivals[taken], self.inputs[taken], self.outputs[taken])


@dataclass(frozen=True)
class Lengths:
    """How long prompts and answers are: log-normal around a mean, or all alike.

    Attributes:
        inputs, outputs: mean tokens of a prompt, of an answer.
        input_spread, output_spread: standard deviation over mean; 0 where all are alike.
        longest: most tokens that prompt and answer may have together; longer ones are cut, answers
            first.
    """

    inputs: int
    outputs: int
    input_spread: float = 0.0
    output_spread: float = 0.0
    longest: int = _MOST_TOKENS

    def draw(
        self, count: int, generator: np.random.Generator
    ) -> "tuple[NDArray[np.int64], NDArray[np.int64]]":
        """Tokens of `count` prompts and answers."""
        inputs = _log_normal(self.inputs, self.input_spread, count, generator)
        inputs = np.minimum(inputs, self.longest - 1)
        outputs = _log_normal(self.outputs, self.output_spread, count, generator)
        return inputs, np.minimum(outputs, self.longest - inputs)


def poisson(
    rate: float, count: int, lengths: Lengths, generator: np.random.Generator, dealt: int = 1
) -> Traffic:
    """Requests of a Poisson process.

    Args:
        rate: requests a second, on average.
        count: how many to draw.
        dealt: to how many replicas they are dealt in turns; what one of them gets is drawn.
    """
    gaps = generator.gamma(dealt, 1.0 / rate, count)  # the sum of `dealt` exponential ones
    return Traffic(np.cumsum(gaps), *lengths.draw(count, generator))


def backlog(lengths: Lengths, count: int, generator: np.random.Generator) -> Traffic:
    """`count` requests that all wait from the beginning."""
    return Traffic(np.zeros(count), *lengths.draw(count, generator))


def read_trace(path: Path) -> Traffic:
    """Requests of a CSV file with the columns arrival (seconds), input and output (tokens).

    Raises:
        InputError: the file cannot be read, lacks a column or a row, or a value is out of range.
    """
    try:
        with ending(path).open(newline="", encoding="utf-8-sig") as stream:
            rows = csv.DictReader(stream)
            missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise InputError(
                    f"trace '{path}' has no column '{missing[0]}'; its first line must name "
                    "arrival (seconds), input and output (tokens)"
                )
            requests = [_request(path, rows.line_num, row) for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"trace '{path}' cannot be read: {error}") from error
    if not requests:
        raise InputError(f"trace '{path}' holds no request; give it a line for each")
    requests.sort(key=lambda request: request[0])
    arrivals, inputs, outputs = zip(*requests, strict=True)
    return Traffic(
        np.array(arrivals, np.float64), np.array(inputs, np.int64), np.array(outputs, np.int64)
    )


def _request(path: Path, line: int, row: Mapping[str | None, Any]) -> tuple[float, int, int]:
    try:
        if None in row:
            raise ValueError("more values than columns")
        arrival = float(row["arrival"])
        inputs, outputs = int(row["input"]), int(row["output"])
    except (TypeError, ValueError):
        raise InputError(
            f"line {line} of trace '{path}' is not of the form that the first line names: "
            "seconds, tokens and tokens"
        ) from None
    if not (
        0 <= arrival < math.inf and 1 <= inputs <= _MOST_TOKENS and 1 <= outputs <= _MOST_TOKENS
    ):
        raise InputError(
            f"line {line} of trace '{path}' is out of range: arrivals are seconds from 0, prompts "
            "and answers have at least one token"
        )
    return arrival, inputs, outputs


def _log_normal(
    mean: int, spread: float, count: int, generator: np.random.Generator
) -> "NDArray[np.int64]":
    if spread == 0:
        return np.full(count, mean, np.int64)
    sigma = math.sqrt(math.log1p(spread * spread))
    drawn = generator.lognormal(math.log(mean) - sigma * sigma / 2, sigma, count)
    return np.maximum(np.rint(drawn), 1).astype(np.int64)
