"""What a search for hardware found, as a CSV file and as a page with the front drawn."""

import csv
import io
import math

from tilesmith.capabilities.exploration.report import Design, Exploration, columns
from tilesmith.display.html.charts import ENDS, SIDES, Chart, ChartAxis, Dot, path, staircase
from tilesmith.display.html.pages import rendered

_MOST_DOTS = 3000
_MOST_ROWS = 500


def csv_text(exploration: Exploration) -> str:
    """All designs, a line each, below a line of names."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns(exploration.designs), lineterminator="\n")
    writer.writeheader()
    writer.writerows(design.row() for design in exploration.designs)
    return stream.getvalue()


def page(exploration: Exploration, command: str) -> str:
    """The page: fronts of all models together and of each, sensitivities, all designs."""
    shown = list(exploration.designs[:_MOST_ROWS])
    return rendered(
        __package__,
        "exploration.html",
        exploration=exploration,
        command=command,
        charts=[_chart(exploration, model) for model in (None, *exploration.models)],
        names=[name for name, _ in exploration.designs[0].settings],
        columns=columns(exploration.designs),
        base=exploration.designs[0],
        parts=exploration.designs[0].cost.parts,
        rows=[design.row() for design in shown],
        left_out=len(exploration.designs) - len(shown),
    )


def _chart(exploration: Exploration, model: str | None) -> Chart:
    """Cost against the score, or against one model's latency, of every design."""

    def value(design: Design) -> float:
        return design.score if model is None else design.latency_us[model]

    able = [design for design in exploration.designs if math.isfinite(value(design))]
    shown = [d for n, d in enumerate(able) if n < _MOST_DOTS or d.on_front]
    x = ChartAxis.over([d.spent(exploration.budget) for d in shown], *SIDES, logarithmic=True)
    y = ChartAxis.over([value(d) for d in shown], *ENDS, logarithmic=True)
    line = staircase([(d.spent(exploration.budget), value(d)) for d in exploration.front])
    dots = [
        Dot(
            x.at(d.spent(exploration.budget)),
            y.at(value(d)),
            ", ".join(f"{n} {v}" for n, v in d.settings) + f": {value(d):.4g}",
            "base" if d is exploration.designs[0] else "front" if d.on_front else "other",
        )
        for d in shown
    ]
    title = "All models: latency to the base's" if model is None else f"{model}: latency, us"
    label = f"{exploration.budget} of one {exploration.piece}, {exploration.unit}"
    return Chart(title, label, "", x.ticks(), y.ticks(), dots, [("line", path(line, x, y))])
