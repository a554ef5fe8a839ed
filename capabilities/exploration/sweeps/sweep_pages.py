"""What a sweep over a target's numbers found: as a table, as CSV, and as a page with a picture."""

from __future__ import annotations

import csv
import io
import math
from operator import itemgetter

from tilesmith.capabilities.exploration.request import UNITS
from tilesmith.capabilities.exploration.sweeps.sweep_report import Point, Sweep
from tilesmith.display.html.charts import ENDS, SIDES, Axis, Chart, Dot, path, staircase
from tilesmith.display.html.pages import rendered
from tilesmith.display.output import table


def sweep_text(found: Sweep, subject: str) -> str:
    """The table: the baseline first, differences to it, the front marked."""
    costed = found.baseline.cost is not None
    header = ("", *found.names, "us", "change", "bound")
    header += ("mm2", "change", "W", "change", "front") if costed else ()
    rows = [_cells(found, point, costed) for point in found.rows]
    lines = [f"{subject} on {found.target}, schedules {_words(found)}", table(header, rows)]
    if costed:
        lines.append(
            f"front: no other point takes less {found.budget} and is faster; area and power of one "
            f"{found.piece}, by a model (docs/codesign.md)"
        )
    lines += [f"{_named(point)}: {point.reason}" for point in found.points if point.reason]
    return "\n".join(lines)


def _words(found: Sweep) -> str:
    return {
        "best": "the better of those chosen for each point and the baseline's",
        "chosen": "chosen for each point (database's best, else default)",
        "kept": "kept from the baseline where they are legal",
        "searched": "searched for anew on each point",
    }[found.schedules]


def _named(point: Point) -> str:
    return ", ".join(f"{name}={value}" for name, value in point.settings)


def _cells(found: Sweep, point: Point, costed: bool) -> tuple[object, ...]:
    row = found.row(point)
    known = point.result is not None
    cells: tuple[object, ...] = (
        "baseline" if point is found.baseline else "",
        *(value for _, value in point.settings),
        row["latency_us"] if known else "none",
        _change(row["latency_change"]),
        row["bound"],
    )
    if not costed:
        return cells
    if point.cost is None:
        return (*cells, "", "", "", "", "")
    area, power = row["area_mm2"], row["power_w"]
    changes = _change(row["area_change"]), _change(row["power_change"])
    return (*cells, area, changes[0], power, changes[1], "front" if point.on_front else "")


def _change(share: float) -> str:
    return "" if not math.isfinite(share) else f"{share:+.1%}"


def csv_text(found: Sweep) -> str:
    """All points, a line each, the baseline first, below a line of names."""
    rows = [{"point": "baseline" if p is found.baseline else "", **found.row(p)}
            for p in found.rows]  # fmt: skip
    stream = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def sweep_page(found: Sweep, subject: str, command: str) -> str:
    """The page: latency against cost with the front, and against each number, and the table."""
    charts = [_against_cost(found)] if found.baseline.cost is not None else []
    charts += [chart for name in found.names if (chart := _against(found, name)) is not None]
    return rendered(
        __package__,
        "sweep.html",
        found=found,
        subject=subject,
        command=command,
        schedules=_words(found),
        charts=charts,
        rows=[(point, found.row(point)) for point in found.rows],
        costed=found.baseline.cost is not None,
        change=_change,
        named=_named,
    )


def _against_cost(found: Sweep) -> Chart:
    able = [p for p in found.rows if math.isfinite(p.latency_us) and p.cost is not None]
    x = Axis.over([p.spent(found.budget) for p in able], *SIDES, logarithmic=True)
    y = Axis.over([p.latency_us for p in able], *ENDS, logarithmic=True)
    best = sorted((p.spent(found.budget), p.latency_us) for p in able if p.on_front)
    return Chart(
        f"latency, us, against {found.budget}; the line is the front",
        f"{found.budget} of one {found.piece}, {UNITS[found.budget]}",
        "",
        x.ticks(),
        y.ticks(),
        [_dot(found, p, x.at(p.spent(found.budget)), y.at(p.latency_us)) for p in able],
        [("line", path(staircase(best), x, y))],
    )


def _against(found: Sweep, name: str) -> Chart | None:
    """One number against latency: a line for each combination of the others; None of a text."""
    others: dict[tuple[str, ...], list[tuple[float, Point]]] = {}
    for point in found.rows:
        values = dict(point.settings)
        try:
            value = float(values.pop(name))
        except ValueError:
            return None
        if math.isfinite(point.latency_us) and value > 0:
            others.setdefault(tuple(values.values()), []).append((value, point))
    every = [pair for line in others.values() for pair in line]
    if len({value for value, _ in every}) < 2:
        return None
    x = Axis.over([value for value, _ in every], *SIDES, logarithmic=True)
    y = Axis.over([point.latency_us for _, point in every], *ENDS, logarithmic=True)
    lines = [
        ("line", path([(v, p.latency_us) for v, p in sorted(line, key=itemgetter(0))], x, y))
        for line in others.values()
    ]
    dots = [_dot(found, p, x.at(v), y.at(p.latency_us)) for v, p in every]
    return Chart(f"latency, us, against {name}", name, "", x.ticks(), y.ticks(), dots, lines)


def _dot(found: Sweep, point: Point, x: float, y: float) -> Dot:
    base = point is found.baseline
    title = f"{'baseline: ' if base else ''}{_named(point)}: {point.latency_us:.4g} us"
    return Dot(x, y, title, "base" if base else "front" if point.on_front else "other")
