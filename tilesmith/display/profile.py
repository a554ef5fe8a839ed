"""A profile as tables for a terminal: operators by their time, kinds of operators, what to try."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from tilesmith.display.profile_report import OperatorTime, ProfileReport

if TYPE_CHECKING:
    from rich.table import Table

_WIDE = 100
"""Columns from which the operator has one of its own, and waits do."""

_SHORT = {"tuned": "tuned", "stale": "stale", "fallback": "nearest", "default": "untuned"}


def text(report: ProfileReport, top: int = 20) -> str:
    """The whole of it.

    Args:
        top: operators that are listed, the slowest; 0: all.
    """
    width = max(60, shutil.get_terminal_size((_WIDE, 24)).columns)
    ops = sorted(report.ops, key=lambda op: -op.us)
    shown = ops[:top] if top else ops
    head = [textwrap.fill(line, width, subsequent_indent="  ") for line in _head(report)]
    parts = [*head, "", _drawn(_operators(report, shown, width), width)]
    if len(shown) < len(ops):
        rest = sum(op.us for op in ops[len(shown) :])
        parts.append(f"  and {len(ops) - len(shown)} more: {rest:.1f} us (--top 0 lists all)")
    parts += ["", _drawn(_groups(report), width), "", "What to try:"]
    for advice in report.advice:
        parts.append(textwrap.fill(f"- {advice.text}", width, subsequent_indent="  "))
        parts += [f"    {advice.command}"] if advice.command else []
    return "\n".join(parts)


def _head(report: ProfileReport) -> Iterable[str]:
    threads = f"{report.threads} thread{'s' if report.threads > 1 else ''}"
    yield (
        f"{report.total_us:.1f} us a run of {report.model} on {report.target}, {threads}, "
        f"{report.precision}"
    )
    rest = report.total_us - report.ops_us
    parts = [
        (report.of("kernel"), "kernels"),
        (report.of("conversion"), "conversions"),
        (report.of("host"), "host"),
        (report.of("move", "loop"), "loops and moves"),
    ]
    named = ", ".join(
        f"{name} {us:.1f} us ({us / max(report.total_us, 1e-9):.0%})" for us, name in parts if us
    )
    yield f"{named}; {report.between}: {rest:.1f} us"
    if report.threads > 1 and report.wait_us:
        yield f"threads wait for each other {report.wait_us:.1f} us of it"
    if report.measured_by == "hardware":
        yield (
            f"{report.runs} runs looked at, the {report.kept} in the middle count; looking costs "
            f"{report.cost:+.1%} (medians in turns: {report.plain_us:.1f} us plain, "
            f"{report.timed_us:.1f} us looked at); a whole call takes {report.call_us:.1f} us"
        )
    if report.counters:
        counted = ", ".join(f"{name} {value:.4g}" for name, value in report.counters.items())
        yield f"hardware counters of a run: {counted}"


def _operators(report: ProfileReport, ops: Sequence[OperatorTime], width: int) -> Table:
    table = _table("node", "us", "share", "foretold", "bound", "peak", "schedule")
    wide = width >= _WIDE
    if wide:
        for name in ("memory", "times", "wait us"):
            table.add_column(name, justify="right")
        table.add_column("operator", overflow="ellipsis", max_width=18)
    for op in ops:
        more = len(op.sources) - 1
        name = f"{op.name} +{more}" if more > 0 else op.name
        cells = [
            _middle(name, 30 if wide else 24),
            f"{op.us:.1f}",
            f"{op.share:.1%}",
            "-" if op.predicted_us is None else f"{op.predicted_us:.1f}",
            op.bound or "-",
            _percent(op.share_of_peak),
            _SHORT.get(op.origin, op.kind),
        ]
        if wide:
            times, memory = f"{op.calls:.4g}", _percent(op.share_of_bandwidth)
            cells += [memory, times, f"{op.wait_us:.1f}", op.operator]
        table.add_row(*cells)
    return table


def _groups(report: ProfileReport) -> Table:
    table = _table("operator", "us", "share", "foretold", "kernels", "peak")
    for group in report.by_operator:
        table.add_row(
            _middle(group.operator, 28),
            f"{group.us:.1f}",
            f"{group.share:.1%}",
            "-" if group.predicted_us is None else f"{group.predicted_us:.1f}",
            str(group.count),
            _percent(group.share_of_peak),
        )
    return table


def _table(first: str, *numbers: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="left" if name in ("bound", "schedule") else "right")
    return table


def _drawn(table: Table, width: int) -> str:
    from rich.console import Console

    buffer = StringIO()
    Console(file=buffer, width=width, color_system=None, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _middle(name: str, most: int) -> str:
    """A long name without its middle: exporters' names differ at their ends. Brackets stay what
    they are, which rich would read as styles."""
    if len(name) > most:
        left = (most - 1) // 3
        name = f"{name[:left]}…{name[len(name) - (most - 1 - left) :]}"
    return name.replace("[", r"\[")
