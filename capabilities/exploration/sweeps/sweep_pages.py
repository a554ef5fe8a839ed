"""What a sweep over a target's numbers found: as a table, as CSV, and as a page with a picture."""

import csv
import io
import math
from operator import itemgetter

from tilesmith.capabilities.exploration.request import UNITS
from tilesmith.capabilities.exploration.sweeps.sweep_report import MachinePoint, MachineSweep
from tilesmith.display.html.charts import ENDS, SIDES, Chart, ChartAxis, Dot, path, staircase
from tilesmith.display.html.pages import rendered
from tilesmith.display.output import table


def sweep_text(sweep: MachineSweep, subject: str) -> str:
    """The table: the baseline first, differences to it, the front marked."""
    costed = sweep.baseline.cost is not None
    header = ("", *sweep.names, "us", "change", "bound")
    header += ("mm2", "change", "W", "change", "front") if costed else ()
    rows = [_cells(sweep, point, costed) for point in sweep.rows]
    lines = [f"{subject} on {sweep.target}, schedules {_words(sweep)}", table(header, rows)]
    if costed:
        lines.append(
            f"front: no other point takes less {sweep.budget} and is faster; area and power of one "
            f"{sweep.piece}, by a model (docs/codesign.md)"
        )
    lines += [f"{_named(point)}: {point.reason}" for point in sweep.points if point.reason]
    return "\n".join(lines)


def _words(sweep: MachineSweep) -> str:
    return {
        "best": "the better of those chosen for each point and the baseline's",
        "chosen": "chosen for each point (database's best, else default)",
        "kept": "kept from the baseline where they are legal",
        "searched": "searched for anew on each point",
    }[sweep.schedules]


def _named(point: MachinePoint) -> str:
    return ", ".join(f"{name}={value}" for name, value in point.settings)


def _cells(sweep: MachineSweep, point: MachinePoint, costed: bool) -> tuple[object, ...]:
    row = sweep.row(point)
    known = point.result is not None
    cells: tuple[object, ...] = (
        "baseline" if point is sweep.baseline else "",
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


def csv_text(sweep: MachineSweep) -> str:
    """All points, a line each, the baseline first, below a line of names."""
    rows = [{"point": "baseline" if p is sweep.baseline else "", **sweep.row(p)}
            for p in sweep.rows]  # fmt: skip
    stream = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def sweep_page(sweep: MachineSweep, subject: str, command: str) -> str:
    """The page: latency against cost with the front, and against each number, and the table."""
    charts = [_against_cost(sweep)] if sweep.baseline.cost is not None else []
    charts += [chart for name in sweep.names if (chart := _against(sweep, name)) is not None]
    return rendered(
        __package__,
        "sweep.html",
        sweep=sweep,
        subject=subject,
        command=command,
        schedules=_words(sweep),
        charts=charts,
        rows=[(point, sweep.row(point)) for point in sweep.rows],
        costed=sweep.baseline.cost is not None,
        change=_change,
        named=_named,
    )


def _against_cost(sweep: MachineSweep) -> Chart:
    able = [p for p in sweep.rows if math.isfinite(p.latency_us) and p.cost is not None]
    x = ChartAxis.over([p.spent(sweep.budget) for p in able], *SIDES, logarithmic=True)
    y = ChartAxis.over([p.latency_us for p in able], *ENDS, logarithmic=True)
    best = sorted((p.spent(sweep.budget), p.latency_us) for p in able if p.on_front)
    return Chart(
        f"latency, us, against {sweep.budget}; the line is the front",
        f"{sweep.budget} of one {sweep.piece}, {UNITS[sweep.budget]}",
        "",
        x.ticks(),
        y.ticks(),
        [_dot(sweep, p, x.at(p.spent(sweep.budget)), y.at(p.latency_us)) for p in able],
        [("line", path(staircase(best), x, y))],
    )


def _against(sweep: MachineSweep, name: str) -> Chart | None:
    """One number against latency: a line for each combination of the others; None of a text."""
    others: dict[tuple[str, ...], list[tuple[float, MachinePoint]]] = {}
    for point in sweep.rows:
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
    x = ChartAxis.over([value for value, _ in every], *SIDES, logarithmic=True)
    y = ChartAxis.over([point.latency_us for _, point in every], *ENDS, logarithmic=True)
    lines = [
        ("line", path([(v, p.latency_us) for v, p in sorted(line, key=itemgetter(0))], x, y))
        for line in others.values()
    ]
    dots = [_dot(sweep, p, x.at(v), y.at(p.latency_us)) for v, p in every]
    return Chart(f"latency, us, against {name}", name, "", x.ticks(), y.ticks(), dots, lines)


def _dot(sweep: MachineSweep, point: MachinePoint, x: float, y: float) -> Dot:
    base = point is sweep.baseline
    title = f"{'baseline: ' if base else ''}{_named(point)}: {point.latency_us:.4g} us"
    return Dot(x, y, title, "base" if base else "front" if point.on_front else "other")
