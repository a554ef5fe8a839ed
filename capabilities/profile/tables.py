"""A profile as tables for a terminal: operators by their time, kinds of operators, what to try."""

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from tilesmith.capabilities.profile.report import OperatorTime, ProfileReport
from tilesmith.display.printable import printable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_WIDE = 100
"""Columns from which the operator has one of its own, and waits do."""

_GAP = 2
_NARROWEST = 12

_NEAR = 0.8
"""Share of the bound from which no gaps are named."""

_GAPS = 3


def text(report: ProfileReport, top: int = 20) -> str:
    """The whole of it.

    Args:
        top: operators that are listed, the slowest; 0: all.
    """
    width = max(60, shutil.get_terminal_size((_WIDE, 24)).columns)
    ops = sorted(report.ops, key=lambda op: -op.us)
    shown = ops[:top] if top else ops
    head = [textwrap.fill(printable(line), width, subsequent_indent="  ") for line in _head(report)]
    parts = [*head, "", _drawn(_operators(report, shown, width), width)] if ops else head
    if len(shown) < len(ops):
        rest = sum(op.us for op in ops[len(shown) :])
        parts.append(f"  and {len(ops) - len(shown)} more: {rest:.1f} us (--top 0 lists all)")
    parts += ["", _drawn(_groups(report), width)] if ops else []
    parts += ["", "What to try:"] if report.advice else []
    for advice in report.advice:
        parts.append(textwrap.fill(f"- {printable(advice.text)}", width, subsequent_indent="  "))
        parts += [f"    {advice.command}"] if advice.command else []
    return "\n".join(parts)


def _head(report: ProfileReport) -> Iterable[str]:
    threads = f"{report.threads} thread{'s' if report.threads > 1 else ''}"
    yield (
        f"{report.total_us:.{_digits(report)}f} us a run of {report.model} on "
        f"{report.target}, {threads}, {report.precision}"
    )
    rest = report.total_us - report.ops_us
    parts = [
        (report.of("kernel"), "kernels"),
        (report.of("conversion"), "conversions"),
        (report.of("host"), "host"),
        (report.of("move", "loop"), "loops and moves"),
    ]
    digits = _digits(report)
    named = ", ".join(
        f"{name} {us:.{digits}f} us ({us / max(report.total_us, 1e-9):.0%})"
        for us, name in parts
        if us
    )
    yield f"{named or 'no operators'}; {report.between}: {rest:.{digits}f} us"
    if report.threads > 1 and report.wait_us:
        yield f"threads wait for each other {report.wait_us:.{digits}f} us of it"
    if report.measured_by == "hardware":
        yield (
            f"{report.runs} runs looked at, the {report.kept} in the middle count; looking costs "
            f"{report.cost:+.1%} (medians in turns: {report.plain_us:.{digits}f} us plain, "
            f"{report.timed_us:.{digits}f} us looked at); a whole call takes "
            f"{report.call_us:.{digits}f} us"
        )
        if report.bound_us is not None and report.share_of_bound is not None:
            yield _bound(report, report.bound_us, report.share_of_bound)
    if fewer := [op for op in report.ops if abs(op.arithmetic - 1) >= 0.05]:
        names = ", ".join(sorted({op.algorithm for op in fewer}))
        low, high = (f"{pick(op.arithmetic for op in fewer):.2g}" for pick in (min, max))
        times = low if low == high else f"{low} to {high}"
        yield (
            f"peak is of what algorithms compute: {len(fewer)} operators by {names} multiply "
            f"{times} times as often as their direct form"
        )
    if report.counters:
        counted = ", ".join(f"{name} {value:.4g}" for name, value in report.counters.items())
        yield f"hardware counters of a run: {counted}"


def _bound(report: ProfileReport, bound_us: float, share: float) -> str:
    """How near a run is to what the machine allows; the largest gaps where that is not near."""
    digits = _digits(report)
    sentence = (
        f"bound {bound_us:.{digits}f} us: kernels one by one, the least arithmetic of an algorithm "
        f"at peak, or all operands through memory; it is {share:.0%} of a run"
    )
    if share >= _NEAR:
        return sentence
    gaps = sorted(report.ops, key=lambda op: -op.gap_us)[:_GAPS]
    named = ", ".join(f"{op.label} ({op.operator}) {op.gap_us:.{digits}f} us" for op in gaps)
    return f"{sentence}; the largest gaps: {named}"


def _operators(report: ProfileReport, ops: Sequence[OperatorTime], width: int) -> "Table":
    from rich.cells import cell_len

    header = ["node", "us", "share", "foretold", "bound", "peak", "schedule"]
    wide = width >= _WIDE
    if wide:
        header += ["memory", "times", "wait us"]
    rows = [_row(op, _digits(report), wide) for op in ops]
    columns = list(zip(header, *rows, strict=True))
    free = width - sum(_GAP + max(map(len, c)) for c in columns[1:]) - _GAP
    operator = max([len("operator"), *(len(op.operator) for op in ops)]) if wide else 0
    needed = max((cell_len(op.label) + len(_more(op)) for op in ops), default=0)
    operator = min(operator, 18, max(8, free - min(needed, 2 * _NARROWEST)))
    room = min(30 if wide else 24, max(_NARROWEST, free - operator))
    table = _table(*header, *(["operator"] if wide else []))
    for op, cells in zip(ops, rows, strict=True):
        name = _middle(op.label, room - len(_more(op))) + _more(op)
        named = [_middle(op.operator, operator)] if wide else []
        table.add_row(*map(_styled, [name, *cells[1:], *named]))
    return table


def _more(op: OperatorTime) -> str:
    """How many more of the model's nodes it does the work of."""
    return f" +{len(op.sources) - 1}" if len(op.sources) > 1 else ""


def _row(op: OperatorTime, digits: int, wide: bool) -> list[str]:
    """An operator's cells, but for its names."""
    cells = [
        "",
        f"{op.us:.{digits}f}",
        f"{op.share:.1%}",
        "-" if op.predicted_us is None else f"{op.predicted_us:.{digits}f}",
        op.bound or "-",
        _percent(op.share_of_peak),
        op.origin or op.kind,
    ]
    if wide:
        times, memory = f"{op.calls:.4g}", _percent(op.share_of_bandwidth)
        cells += [memory, times, f"{op.wait_us:.{digits}f}"]
    return cells


def _digits(report: ProfileReport) -> int:
    """Decimals of microseconds: those of small models are told apart."""
    return 1 if report.total_us >= 100 else 2 if report.total_us >= 10 else 3


def _groups(report: ProfileReport) -> "Table":
    digits = _digits(report)
    table = _table("operator", "us", "share", "foretold", "kernels", "peak")
    for group in report.by_operator:
        table.add_row(
            _styled(_middle(group.operator, 28)),
            f"{group.us:.{digits}f}",
            f"{group.share:.1%}",
            "-" if group.predicted_us is None else f"{group.predicted_us:.{digits}f}",
            str(group.count),
            _percent(group.share_of_peak),
        )
    return table


def _table(first: str, *numbers: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in numbers:
        words = name in ("bound", "schedule", "operator")
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    return table


def _drawn(table: "Table", width: int) -> str:
    from rich.console import Console

    buffer = StringIO()
    Console(file=buffer, width=width, color_system=None, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _middle(name: str, most: int) -> str:
    """A long name without its middle, at most so many columns wide: exporters' names differ at
    their ends."""
    from rich.cells import cell_len

    name = printable(name)
    if cell_len(name) <= most:
        return name
    left, right = (most - 1) // 3, most - 1 - (most - 1) // 3
    head, tail = name[:left], name[len(name) - right :]
    while head and cell_len(head) > left:
        head = head[:-1]
    while tail and cell_len(tail) > right:
        tail = tail[1:]
    return f"{head}…{tail}"


def _styled(text: str) -> "Text":
    """Brackets stay what they are, which rich would read as styles."""
    from rich.text import Text

    return Text(text)
