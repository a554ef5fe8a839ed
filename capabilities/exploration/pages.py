"""What a search for hardware found, as a CSV file and as a page with the front drawn."""

from __future__ import annotations

import csv
import io
import math

from tilesmith.capabilities.exploration.report import Design, Exploration, columns
from tilesmith.display.html.charts import ENDS, SIDES, Axis, Chart, Dot, path, staircase
from tilesmith.display.html.pages import rendered

_MOST_DOTS = 3000
_MOST_ROWS = 500


def csv_text(found: Exploration) -> str:
    """All designs, a line each, below a line of names."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns(found.designs), lineterminator="\n")
    writer.writeheader()
    writer.writerows(design.row() for design in found.designs)
    return stream.getvalue()


def page(found: Exploration, command: str) -> str:
    """The page: fronts of all models together and of each, sensitivities, all designs."""
    shown = list(found.designs[:_MOST_ROWS])
    return rendered(
        __package__,
        "exploration.html",
        found=found,
        command=command,
        charts=[_chart(found, model) for model in (None, *found.models)],
        names=[name for name, _ in found.designs[0].settings],
        columns=columns(found.designs),
        base=found.designs[0],
        parts=found.designs[0].cost.parts,
        rows=[design.row() for design in shown],
        left_out=len(found.designs) - len(shown),
    )


def _chart(found: Exploration, model: str | None) -> Chart:
    """Cost against the score, or against one model's latency, of every design."""

    def value(design: Design) -> float:
        return design.score if model is None else design.latency_us[model]

    able = [design for design in found.designs if math.isfinite(value(design))]
    shown = [d for n, d in enumerate(able) if n < _MOST_DOTS or d.on_front]
    x = Axis.over([d.spent(found.budget) for d in shown], *SIDES, logarithmic=True)
    y = Axis.over([value(d) for d in shown], *ENDS, logarithmic=True)
    line = staircase([(d.spent(found.budget), value(d)) for d in found.front])
    dots = [
        Dot(
            x.at(d.spent(found.budget)),
            y.at(value(d)),
            ", ".join(f"{n} {v}" for n, v in d.settings) + f": {value(d):.4g}",
            "base" if d is found.designs[0] else "front" if d.on_front else "other",
        )
        for d in shown
    ]
    title = "All models: latency to the base's" if model is None else f"{model}: latency, us"
    label = f"{found.budget} of one {found.piece}, {found.unit}"
    return Chart(title, label, "", x.ticks(), y.ticks(), dots, [("line", path(line, x, y))])
