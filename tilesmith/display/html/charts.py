"""Geometry of the report's charts: numbers become positions; the template draws them as SVG.

Positions are in the chart's own units (its viewBox), y downwards. A logarithmic axis needs
positive values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
    ) -> ChartAxis:
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
