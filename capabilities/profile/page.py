"""A profile as one HTML file that needs nothing else, made from a Jinja2 template.

Bars are SVG inside the page; there is no script, font or picture to load.
"""

from dataclasses import dataclass

from tilesmith.capabilities.profile.report import OperatorTime, ProfileReport
from tilesmith.display.html.pages import rendered

_DRAWN = 24
"""Operators that have bars; the rest are in the table only."""


@dataclass(frozen=True)
class Bar:
    """An operator's time beside what was foretold of it and what it needs at least, as widths."""

    op: OperatorTime
    measured: float
    wait: float
    foretold: float | None
    least: float | None


def page(report: ProfileReport) -> str:
    """The report as HTML."""
    slowest = sorted(report.ops, key=lambda op: -op.us)
    widest = max((max(op.us, op.predicted_us or 0.0) for op in slowest), default=1.0) or 1.0
    return rendered(
        __package__,
        "profile.html",
        report=report,
        ops=slowest,
        bars=[_bar(op, widest) for op in slowest[:_DRAWN] if op.us],
        parts=_parts(report),
    )


def _bar(op: OperatorTime, widest: float) -> Bar:
    def width(us: float | None) -> float | None:
        return None if us is None else 420 * min(us, widest) / widest

    measured, wait = width(op.us - op.wait_us) or 0.0, width(op.wait_us) or 0.0
    return Bar(op, measured, wait, width(op.predicted_us), width(op.roofline_us))


def _parts(report: ProfileReport) -> list[tuple[str, float, float]]:
    """What a run is made of: (name, microseconds, share)."""
    parts = [
        ("kernels", report.of("kernel")),
        ("conversions between layouts", report.of("conversion")),
        ("the host", report.of("host")),
        ("loops and moves", report.of("move", "loop")),
        (report.between, report.total_us - report.ops_us),
    ]
    return [(name, us, us / max(report.total_us, 1e-9)) for name, us in parts if us]
