"""The front of error and latency as a page: a picture, and the tables below it."""

import math
from typing import Literal

from tilesmith.capabilities.quantisation.precisions.report import Point, PrecisionReport
from tilesmith.display.html.charts import ENDS, SIDES, Chart, ChartAxis, Dot, path, staircase
from tilesmith.display.html.pages import rendered


def page_of(report: PrecisionReport, model: str) -> str:
    """The page as HTML."""
    precisions = [n for n in ("fp32", "bf16", "int8", "int4") if _has(report, n)]
    return rendered(
        __package__, "precisions.html", report=report, model=model, precisions=precisions,
        charts=[_front(report)],
    )  # fmt: skip


def _has(report: PrecisionReport, precision: str) -> bool:
    return any(precision in layer.bytes for layer in report.layers)


def best_of(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of (error, milliseconds) those than which none is both as exact and faster, by error."""
    front: list[tuple[float, float]] = []
    for error, ms in sorted(points):
        if not front or ms < front[-1][1]:
            front.append((error, ms))
    return front


def _front(report: PrecisionReport) -> Chart:
    points = [(0.0, report.fp32_ms), *((_error(point), point.ms) for point in report.front)]
    allowed = [report.budget] if math.isfinite(report.budget) else []
    x = ChartAxis.over([*(error for error, _ in points), *allowed], *SIDES)
    y = ChartAxis.over([ms for _, ms in points], *ENDS)
    dots = [Dot(x.at(0.0), y.at(report.fp32_ms), f"fp32: {report.fp32_ms:.4g} ms", "base")]
    for point in report.front:
        kind: Literal["front", "other"] = "other"
        if point.verdict.startswith(("chosen", "given")):
            kind = "front"
        title = f"error {_error(point):.3g}, {point.ms:.4g} ms: {point.verdict}"
        dots.append(Dot(x.at(_error(point)), y.at(point.ms), title, kind))
    line = ("line", path(staircase(best_of(points)), x, y))
    return Chart(
        "Error and latency", "error of the outputs", "ms", x.ticks(), y.ticks(), dots, [line],
        [(x.at(budget), "allowed") for budget in allowed],
    )  # fmt: skip


def _error(point: Point) -> float:
    """The greater of both errors: what the budget is held against."""
    return max(point.error, point.held_out)
