"""The page of a tuning job: one HTML file that needs nothing else, made from a Jinja2 template.

Charts are SVG inside the page; there is no script, font or picture to load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilesmith.display.charts import Axis, Tick, number, path, staircase
from tilesmith.display.job_report import JobReport, TaskCurve
from tilesmith.display.pages import rendered

_CURVES = 24
"""Convergence charts drawn; the rest are in the table only."""
_CURVE = (300.0, 130.0)
_ROOF = (640.0, 360.0)


@dataclass(frozen=True)
class CurveChart:
    """How one task's best came down over its trials."""

    task: TaskCurve
    line: str
    default_y: float | None
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]


@dataclass(frozen=True)
class Dot:
    """A task in the roofline chart."""

    x: float
    y: float
    roof_y: float
    title: str


@dataclass(frozen=True)
class RoofChart:
    """Operations a second over operations per byte, and the roof above each task."""

    dots: Sequence[Dot]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]


def page(report: JobReport) -> str:
    """The report as HTML."""
    curves = [chart for task in report.tasks[:_CURVES] if (chart := _curve(task)) is not None]
    return rendered(
        "job_report.html",
        report=report,
        curves=curves,
        roof=_roof(report.tasks),
        total_s=sum(spent.seconds for spent in report.spent) or 1.0,
        widest=max((task.gain or 0.0 for task in report.tasks), default=1.0) or 1.0,
    )


def _curve(task: TaskCurve) -> CurveChart | None:
    if not task.points:
        return None
    width, height = _CURVE
    latencies = [seconds * 1e6 for _, seconds in task.points]
    default_us = None if task.default_s is None else task.default_s * 1e6
    x = Axis(0.0, float(max(task.trials, 2)), 44.0, width - 8)
    y = Axis.over([*latencies, default_us or latencies[0]], height - 22, 8, logarithmic=True)
    points = [(float(count), seconds * 1e6) for count, seconds in task.points]
    return CurveChart(
        task,
        path(staircase(points), x, y),
        None if default_us is None else y.at(default_us),
        x.ticks(4),
        y.ticks(4),
    )


def _roof(tasks: Sequence[TaskCurve]) -> RoofChart | None:
    known = [t for t in tasks if t.flops and t.bytes_ and t.best_s and t.roofline_s]
    if not known:
        return None
    width, height = _ROOF
    speeds = [(_speed(t, t.best_s), _speed(t, t.roofline_s)) for t in known]
    x = Axis.over((t.flops / t.bytes_ for t in known), 64, width - 12, logarithmic=True)
    y = Axis.over([s for pair in speeds for s in pair], height - 40, 12, logarithmic=True)
    dots = [
        Dot(
            x.at(task.flops / task.bytes_),
            y.at(reached),
            y.at(roof),
            f"{task.workload}: {number(reached)} of {number(roof)} GFLOP/s ({task.measured_by})",
        )
        for task, (reached, roof) in zip(known, speeds, strict=True)
    ]
    return RoofChart(dots, x.ticks(6), y.ticks(6))


def _speed(task: TaskCurve, seconds: float | None) -> float:
    """GFLOP/s, counting the direct form's operations."""
    assert seconds, "only of tasks with a latency"
    return task.flops / seconds / 1e9
