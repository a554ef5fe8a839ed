"""Convergence as charts: how the best latency of a task came down over its trials.

The geometry is made here, in the units of the SVG's viewBox; the template draws it. A chart may
have two curves, for two jobs. The axis of latencies is in the unit that suits the best, logarithmic
where they differ much; it does not start at zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tilesmith.display.html.charts import ChartAxis, Tick, path, staircase

WIDTH, HEIGHT = 320.0, 170.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 310.0, 12.0, 134.0
_ROWS = 40
_WIDE = 5.0
"""Latencies that differ by so many times are drawn on a logarithmic axis."""

Points = Sequence[tuple[int, float]]

_UNITS = ((1e-6, "ns", 1e9), (1e-3, "µs", 1e6), (1.0, "ms", 1e3))


@dataclass(frozen=True)
class Curve:
    """One job's line: `name` is its label, `points` the polyline, `end` its last point."""

    name: str
    points: str
    end: tuple[float, float]


@dataclass(frozen=True)
class ConvergenceChart:
    """What the template draws, and the same as a table.

    Attributes:
        unit: of latencies, on the axis and in the rows.
        default_y: height of the untuned default; None where it is unknown.
        again: where the best was measured again: only there may a curve rise.
        rows: for each curve, (trial, latency in `unit`) where the best changed; thinned.
    """

    curves: tuple[Curve, ...]
    unit: str
    default_y: float | None
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    rows: tuple[tuple[str, tuple[tuple[int, float], ...]], ...]
    again: Sequence[tuple[float, float]] = ()


def chart(
    lines: Sequence[tuple[str, Points, int]], default_s: float | None, again: Points = ()
) -> ConvergenceChart | None:
    """A chart of (name, points, trials) of each job; None where nothing worked yet.

    Args:
        lines: points are (trial, best latency by then in seconds), trials how far the line goes on.
        default_s: the untuned default's latency in seconds.
        again: points of the first line where the best was measured again.
    """
    drawn = [
        (name, [*points, *([(trials, points[-1][1])] if trials > points[-1][0] else [])])
        for name, points, trials in lines
        if points
    ]
    if not drawn:
        return None
    unit, scale = unit_of(min(seconds for _, points in drawn for _, seconds in points))
    scaled = [(name, [(n, seconds * scale) for n, seconds in points]) for name, points in drawn]
    latencies = [latency for _, points in scaled for _, latency in points]
    default = default_s * scale if default_s else None
    most = max(2, *(trials for _, _, trials in lines))
    x = ChartAxis(0.0, float(most), LEFT, RIGHT)
    y = upright([*latencies, default or latencies[0]])
    return ConvergenceChart(
        tuple(
            Curve(
                name,
                path(staircase([(float(n), v) for n, v in points]), x, y),
                (x.at(points[-1][0]), y.at(points[-1][1])),
            )
            for name, points in scaled
        ),
        unit,
        None if default is None else y.at(default),
        [tick for tick in x.ticks(4) if "." not in tick.text],
        y.ticks(5),
        tuple((name, _thinned(points)) for name, points in scaled),
        [(x.at(float(n)), y.at(seconds * scale)) for n, seconds in again],
    )


def upright(latencies: Sequence[float]) -> ChartAxis:
    """The axis of latencies of a chart."""
    low, high = min(latencies), max(latencies)
    if high > _WIDE * low:
        return ChartAxis.over(latencies, BOTTOM, TOP, logarithmic=True)
    room = 0.12 * (high - low) or 0.1 * high
    return ChartAxis(low - room, high + room, BOTTOM, TOP)


def unit_of(seconds: float) -> tuple[str, float]:
    """The unit that suits a latency, and how many of it a second has."""
    return next(((name, scale) for most, name, scale in _UNITS if seconds < most), ("s", 1.0))


def _thinned(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """At most some forty rows, the last one among them."""
    step = -(-len(points) // _ROWS)
    return tuple(p for i, p in enumerate(points) if i % step == 0 or i == len(points) - 1)
