"""Geometry of charts: numbers become positions, and labels find places; templates draw SVG.

Positions and sizes are in the chart's own units (its viewBox), y downwards. A logarithmic axis
needs positive values. No label lies on another or on a dot; text is measured as 10-pixel
sans-serif is.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: where, and what it says."""

    at: float
    text: str


@dataclass(frozen=True)
class ChartAxis:
    """A scale from `low..high` to `start..stop`, linear or logarithmic."""

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool = False

    @classmethod
    def over(
        cls, values: Iterable[float], start: float, stop: float, *, logarithmic: bool = False
    ) -> "ChartAxis":
        """An axis that holds all values with a little room; linear ones start at zero."""
        numbers = list(values)
        if logarithmic:
            return cls(min(numbers) / 1.15, max(numbers) * 1.15, start, stop, True)
        return cls(0.0, max(numbers) * 1.05 or 1.0, start, stop)

    def at(self, value: float) -> float:
        """Where a value lies."""
        low, high, value = (self._scaled(v) for v in (self.low, self.high, value))
        return self.start + (self.stop - self.start) * (value - low) / (high - low)

    def ticks(self, most: int = 5) -> list[Tick]:
        """Round numbers along the axis, at most about `most`."""
        values = self._decades(most) if self.logarithmic else []
        if len(values) < 2:  # no two round numbers of a decade in so short a range
            values = self._steps(most)
        return [Tick(self.at(value), number(value)) for value in values]

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value

    def _steps(self, most: int) -> list[float]:
        raw = (self.high - self.low) / most
        unit = 10.0 ** math.floor(math.log10(raw))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
        first, last = math.ceil(self.low / step), math.floor(self.high / step + 1e-9)
        return [count * step for count in range(first, last + 1)]

    def _decades(self, most: int) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for factors in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            values = [f * 10.0**power for power in range(first, last + 1) for f in factors]
            inside = [value for value in values if self.low <= value <= self.high]
            if len(inside) <= most:
                return inside
        return inside[:: -(-len(inside) // most)]


@dataclass(frozen=True)
class Dot:
    """A point of a chart; where others are many, "base" and "front" stand above them."""

    x: float
    y: float
    title: str
    kind: Literal["base", "front", "other"] = "other"


@dataclass(frozen=True)
class Chart:
    """Dots, lines, or both, between two axes: what `templates/chart.html` draws.

    Attributes:
        lines: a style ("line", or another for a dashed one) and the points of a polyline.
        marks: where a bound stands on the x axis, and what it is.
    """

    title: str
    x_label: str
    y_label: str
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    dots: Sequence[Dot] = ()
    lines: Sequence[tuple[str, str]] = ()
    marks: Sequence[tuple[float, str]] = ()


SIDES, ENDS = (52.0, 410.0), (240.0, 10.0)
"""Where the axes of a chart begin and end."""


def number(value: float) -> str:
    """A number as people write it: three digits, no exponent where it can be helped."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def path(points: Sequence[tuple[float, float]], x: ChartAxis, y: ChartAxis) -> str:
    """Points for an SVG polyline."""
    return " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in points)


def staircase(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A curve that keeps its value until the next point."""
    steps: list[tuple[float, float]] = []
    for x, y in points:
        if steps:
            steps.append((x, steps[-1][1]))
        steps.append((x, y))
    return steps


_LETTER, _LINE = 5.6, 11.0
_STEPS = 14
"""How many lines away a label may stand from what it names."""


@dataclass(frozen=True)
class Box:
    """A rectangle, y downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "Box") -> bool:
        """Whether the two have a point in common."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def holds(self, other: "Box") -> bool:
        """Whether the other lies in it."""
        across = self.left <= other.left and other.right <= self.right
        return across and self.top <= other.top and other.bottom <= self.bottom


@dataclass
class Labels:
    """Labels of one chart; they stay within `room`."""

    room: Box
    taken: list[Box] = field(default_factory=list)

    def keep_off(self, x: float, y: float, radius: float) -> None:
        """No label is to lie on this dot."""
        self.taken.append(Box(x - radius, y - radius, x + radius, y + radius))

    def place(
        self, text: str, x: float, y: float, aside: float = 8.0
    ) -> tuple[float, float] | None:
        """Left end and baseline of a label for a point: beside it, as near as may be; None where
        there is no room."""
        wide = _LETTER * len(text)
        for step in range(_STEPS):
            for down in (step, -step) if step else (0,):
                for left in (x + aside, x - aside - wide):
                    top = y - _LINE / 2 + down * _LINE
                    box = Box(left, top, left + wide, top + _LINE)
                    if self.room.holds(box) and not any(map(box.meets, self.taken)):
                        self.taken.append(box)
                        return left, box.bottom - 2.5
        return None
