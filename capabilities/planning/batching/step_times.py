"""How long a step of a deployment takes, asked a hundred thousand times: a grid, interpolated.

An estimate of one step costs too much to be made for every step of a simulation. What a step
depends on (sequences, new tokens, context) is a grid of growing distances; its knots are estimated
when first needed, and between them lies a plane. Prompts have the densest knots, since attention is
quadratic in them and engines change their kernels at certain lengths (powers of two, which are
knots); in a cell where that happens, and there alone, interpolation is far off.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import product

from tilesmith.search_space.support.errors import JobError

Seconds = Callable[[int, int, int], float]
"""(sequences, new tokens of each, tokens that each has in the cache already) to seconds."""

_CONTEXTS = (0, *(64 << n for n in range(21)))


class DeploymentTimes:
    """Seconds of steps of one deployment.

    Args:
        seconds: an estimate of one step.
    """

    def __init__(self, seconds: Seconds) -> None:
        self._estimate = seconds
        self._knots: dict[tuple[int, int, int], float] = {}
        self._lines: dict[int, list[float | None]] = {}
        self._prefills: dict[tuple[int, int, int], float] = {}

    @property
    def shared(self) -> float:
        """Seconds that every step takes, however small: weights are read, collectives wait."""
        return self._knot((1, 1, 0))

    def decode(self, sequences: int, context: float) -> float:
        """A step that gives each sequence one more token; `context` is their mean."""
        return self._segment(sequences, context)[0]

    def decode_run(
        self, sequences: int, context: float, steps: int, within: float
    ) -> tuple[int, float]:
        """Steps of decoding, each with one more token of context than the one before.

        It ends after the step during which `within` seconds are over, or at a knot of the grid.

        Returns:
            The steps taken, at least 1 and at most `steps`, and their seconds.
        """
        first, slope, knot = self._segment(sequences, context)
        count = min(steps, max(1, math.ceil(knot - context)))
        if _sum(first, slope, count) >= within:
            count = _steps_within(first, slope, within, count)
        return count, _sum(first, slope, count)

    def prefill(self, sequences: int, tokens: int, before: int) -> float:
        """A step over `tokens` of each of `sequences`, which have `before` in the cache."""
        key = (sequences, tokens, before)
        if (seconds := self._prefills.get(key)) is None:
            seconds = self._prefills[key] = self._interpolated(key)
        return seconds

    def mixed(self, decoding: float, prefilling: float) -> float:
        """A step that decodes some sequences and works on the prompts of others.

        What both would do for themselves, weights and the wait for collectives, is done once.
        """
        return max(decoding, prefilling, decoding + prefilling - self.shared)

    def _segment(self, sequences: int, context: float) -> tuple[float, float, float]:
        """Seconds at `context`, how much more one token adds, and where that changes."""
        line = self._lines.get(sequences)
        if line is None:
            line = self._lines[sequences] = [None] * len(_CONTEXTS)
        at = min(bisect_right(_CONTEXTS, context), len(_CONTEXTS) - 1)
        low, high = _CONTEXTS[at - 1], _CONTEXTS[at]
        start, stop = line[at - 1], line[at]
        if start is None:
            start = line[at - 1] = self._interpolated((sequences, 1, low))
        if stop is None:
            stop = line[at] = self._interpolated((sequences, 1, high))
        slope = (stop - start) / (high - low)
        return start + slope * (context - low), slope, high

    def _interpolated(self, at: tuple[int, int, int]) -> float:
        sequences, tokens, before = at
        sides = (
            _between(sequences, _SEQUENCES),
            _between(tokens, _TOKENS),
            _between(before, _CONTEXTS if tokens == 1 else _BEFORE),
        )
        total = 0.0
        for corner in product(*sides):
            weight = math.prod(share for _, share in corner)
            s, t, b = (knot for knot, _ in corner)
            total += weight * self._knot((s, t, b))
        return total

    def _knot(self, at: tuple[int, int, int]) -> float:
        if (seconds := self._knots.get(at)) is None:
            seconds = self._estimate(*at)
            if not 0 < seconds < math.inf:
                raise JobError(
                    f"the estimate of a step of {at[0]} sequences, {at[1]} new tokens and a "
                    f"context of {at[2]} is {seconds} seconds; times of steps must be positive"
                )
            self._knots[at] = seconds
        return seconds


def next_knot(context: float) -> float:
    """Where the line of decoding's times that a context lies on ends."""
    return _CONTEXTS[min(bisect_right(_CONTEXTS, context), len(_CONTEXTS) - 1)]


def _growing(octave: int, most: int) -> list[int]:
    """Whole numbers from 1 on, `octave` of them from each to its double."""
    numbers = {1 << n for n in range(most)}
    return sorted(numbers | {round(2 ** (n / octave)) for n in range(octave * most)})


_SEQUENCES = _growing(2, 17)
_TOKENS = _growing(32, 27)
_BEFORE = (0, *(n for n in _growing(8, 27) if n >= 64))


def _between(value: int, knots: Sequence[int]) -> tuple[tuple[int, float], ...]:
    """The knots around a value, and how much of each it takes."""
    at = bisect_right(knots, value)
    low = knots[at - 1]
    if low == value or at == len(knots):
        return ((low, 1.0),)
    share = (value - low) / (knots[at] - low)
    return ((low, 1 - share), (knots[at], share))


def _sum(first: float, slope: float, count: int) -> float:
    return count * (first + slope * (count - 1) / 2)


def _steps_within(first: float, slope: float, within: float, most: int) -> int:
    """The fewest steps that last `within` seconds, of `most` that do."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if _sum(first, slope, middle) >= within:
            high = middle
        else:
            low = middle + 1
    return low
