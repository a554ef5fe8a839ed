"""What a sweep or a sized load says: as a page, a CSV file, a table, plain data.

The page holds the fronts as charts over all points, the times and the timeline of a load, and every
number in tables below; it is one HTML file that needs nothing else.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilesmith.capabilities.planning.batching.served import Served
from tilesmith.capabilities.planning.sizing.answer import Answer
from tilesmith.capabilities.planning.sweeps.prices import Price
from tilesmith.capabilities.planning.sweeps.sweep import COLUMNS, DeploymentPoint, DeploymentSweep
from tilesmith.display.html.charts import Chart, ChartAxis, Dot, path
from tilesmith.display.html.pages import rendered
from tilesmith.search_space.support.json_object import object_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SIZE = (420.0, 280.0)
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 10.0, 10.0, 40.0
_MOST_DOTS = 3000
_MOST_STEPS = 400
_MOST_ROWS = 500

TITLES = {
    "tpot": ("Time per output token", "ms per output token", "tokens/s per chip"),
    "ttft": ("Time to first token", "ms to the first token", "tokens/s per chip"),
    "cost": ("Cost", "ms per output token", "$ per million tokens"),
}


@dataclass(frozen=True)
class About:
    """The subject of the page: model, mesh, load and command."""

    model: str
    parameters: int
    meshes: Sequence[str]
    command: str
    prices: Mapping[str, Price]


def page(
    about: About, sweep: DeploymentSweep | None, answer: Answer | None, asked: str = ""
) -> str:
    """The page of a sweep, of an answer to a load, or of both.

    Args:
        asked: the load and its bounds, in words.
    """
    return rendered(
        __package__,
        "serving.html",
        about=about,
        asked=asked,
        charts=[] if sweep is None else [c for name in TITLES if (c := front_chart(sweep, name))],
        front=[] if sweep is None else [point.row() for point in sweep.points if point.fronts],
        rows=[] if sweep is None else [point.row() for point in sweep.points[:_MOST_ROWS]],
        left_out=0 if sweep is None else max(0, len(sweep.points) - _MOST_ROWS),
        refusals=[] if sweep is None else sweep.refusals,
        columns=COLUMNS,
        answer=answer,
        facts=[] if answer is None else list(answer_rows(answer)),
        times=[] if answer is None else time_charts(answer),
    )


def csv_text(sweep: DeploymentSweep) -> str:
    """All points, a line each, below a line of names."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(point.row() for point in sweep.points)
    return stream.getvalue()


def requests_csv(served: Served) -> str:
    """All requests that were simulated, a line each."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        ("arrival_s", "input", "output", "ttft_ms", "tpot_ms", "end_to_end_ms", "preemptions")
    )
    steps = np.maximum(served.outputs - 1, 1)
    columns = (
        served.arrivals, served.inputs, served.outputs, served.ttft_s * 1e3,
        (served.last - served.first) / steps * 1e3, served.whole_s * 1e3, served.preemptions,
    )  # fmt: skip
    writer.writerows(zip(*(column.tolist() for column in columns), strict=True))
    return stream.getvalue()


def front_chart(sweep: DeploymentSweep, name: str) -> Chart | None:
    """One front over all points; none where there is nothing to draw."""
    title, x_label, y_label = TITLES[name]
    axis = {"tpot": "tpot_ms", "ttft": "ttft_ms", "cost": "tpot_ms"}[name]
    other = "usd_per_million_tokens" if name == "cost" else "tokens_per_s_per_chip"
    if name != "ttft" and not any(point.estimate.tpot_ms for point in sweep.points):
        axis, title = "latency_ms", title.replace("Time per output token", "Latency")
        x_label, y_label = "ms a pass", y_label.replace("tokens", "passes")
    placed = [
        (row[axis], row[other], point)
        for point in sweep.points
        if (row := point.row())[axis] and row[other]
    ]
    if not placed:
        return None
    if len(placed) > _MOST_DOTS:  # the front whole, of the others every so many
        every = math.ceil(len(placed) / _MOST_DOTS)
        placed = [p for n, p in enumerate(placed) if n % every == 0 or name in p[2].fronts]
    x = ChartAxis.over([p[0] for p in placed], _LEFT, _SIZE[0] - _RIGHT, logarithmic=True)
    y = ChartAxis.over([p[1] for p in placed], _SIZE[1] - _BOTTOM, _TOP, logarithmic=True)
    front = sorted({(a, b) for a, b, point in placed if name in point.fronts})
    dots = [Dot(x.at(a), y.at(b), _words(p, a, b), "front" if name in p.fronts else "other")
            for a, b, p in placed]  # fmt: skip
    lines = [("line", path(front, x, y))]
    return Chart(title, x_label, y_label, x.ticks(6), y.ticks(6), dots, lines)


def time_charts(answer: Answer) -> list[Chart]:
    """How times spread over requests, and what the first replica did over time."""
    served = answer.served
    charts = [
        _spread("Times to first token", served.ttft_s * 1e3),
        _spread("Times per output token", served.tpot_s * 1e3),
    ]
    line = served.timeline
    every = max(1, math.ceil(len(line.seconds) / _MOST_STEPS))
    seconds = line.seconds[::every]
    counts = {"line": line.running[::every], "default": line.waiting[::every]}
    most = max([1.0, *(float(values.max()) for values in counts.values() if len(values))])
    charts.append(_over_time("Running (solid) and waiting (dashed)", seconds, counts, most))
    used = {"line": line.used[::every] * 100}
    charts.append(_over_time("Cache in use, %", seconds, used, 100.0))
    return [chart for chart in charts if chart is not None]


def answer_rows(answer: Answer) -> list[tuple[str, str]]:
    """The answer, a line for each thing."""
    fleet, served = answer.candidate.fleet, answer.served.to_json()
    usd = answer.usd_per_hour
    rows = [
        ("deployment", f"{answer.candidate.label}"),
        ("replicas", f"{answer.replicas} of {fleet.cores} cores{_for_prompts(answer)}"),
        ("chips", f"{answer.chips}, on {answer.instances} x {fleet.instance}"),
        ("schedule", f"{_policy(answer)}, at most {answer.engine.batch} sequences at once, "
         f"{answer.engine.budget} tokens of prompts a step"),
        ("a replica serves at most", f"{answer.capacity:.4g} requests/s"),
        *((f"{what}, p50 p90 p99", _three(served[key])) for what, key in _TIMES),
        ("tokens of answers", f"{answer.tokens_per_s:.4g} a second"),
        ("cache in use", "{mean:.1%} on average, {peak:.1%} at most".format(**served["cache"])),
        ("requests sent away", f"{served['preemptions']} times, of {served['requests']} requests"),
    ]  # fmt: skip
    if usd is not None:
        million = answer.usd_per_million_tokens
        rows.append(("cost", f"${usd:.4g} an hour, ${million:.4g} per million tokens of answers"))
    return rows


_ANSWER = (
    "batch:engine.batch budget:engine.budget replica_requests_per_s:capacity usd_per_hour "
    "usd_per_million_tokens served"
)


def answer_json(answer: Answer) -> dict[str, Any]:
    """The answer as plain data."""
    fleet, where = answer.candidate.fleet, answer.candidate.deployment
    return {
        "mesh": fleet.instance,
        **object_of(answer, "chips instances replicas"),
        **object_of(where, "tp:tensor pp:pipeline ep:expert weights cache"),
        "policy": _policy(answer),
        "prefill": None
        if answer.prefill is None
        else {
            **object_of(answer.prefill, "replicas mesh:candidate.fleet.instance"),
            **object_of(
                answer.prefill.candidate.deployment, "tp:tensor pp:pipeline ep:expert weights"
            ),
        },
        **object_of(answer, _ANSWER),
    }


def _policy(answer: Answer) -> str:
    return answer.engine.policy if answer.prefill is None else "disaggregated"


def _for_prompts(answer: Answer) -> str:
    """The pool for prompts, in words."""
    if answer.prefill is None:
        return ""
    pool = answer.prefill
    return f" for answers, {pool.replicas} of {pool.candidate.label} for prompts"


_TIMES = (
    ("time to first token, ms", "ttft_ms"),
    ("time per output token, ms", "tpot_ms"),
    ("arrival to last token, ms", "end_to_end_ms"),
    ("between two tokens, ms", "between_tokens_ms"),
)


def _three(times: Mapping[str, float | None]) -> str:
    values = (times[name] for name in ("p50", "p90", "p99"))
    return "  ".join("-" if value is None else f"{value:.4g}" for value in values)


def _words(point: DeploymentPoint, x: float, y: float) -> str:
    where, load = point.deployment, point.load
    return (
        f"{where.mesh.name} tp={where.tensor} pp={where.pipeline} ep={where.expert} "
        f"dp={where.data} {where.weights}, batch {load.batch}, "
        f"{load.input_tokens}+{load.output_tokens} tokens: "
        f"{x:.4g} ms, {y:.4g}"
    )


def _spread(title: str, milliseconds: "NDArray[np.float64]") -> Chart | None:
    """For each time, the share of the requests that take no longer."""
    if not len(milliseconds):
        return None
    shares = np.linspace(0, 100, 101)
    values = np.percentile(milliseconds, shares)
    low = max(float(values[0]), 1e-6)
    x = ChartAxis.over([low, float(values[-1])], _LEFT, _SIZE[0] - _RIGHT, logarithmic=True)
    y = ChartAxis(0.0, 100.0, _SIZE[1] - _BOTTOM, _TOP)
    points = list(zip(np.maximum(values, low).tolist(), shares.tolist(), strict=True))
    marks = [(x.at(max(float(values[p]), low)), f"p{p}") for p in (50, 99)]
    return Chart(title, "ms", "% of requests", x.ticks(6), y.ticks(5),
                 lines=[("line", path(points, x, y))], marks=marks)  # fmt: skip


def _over_time(
    title: str, seconds: "NDArray[np.float64]", values: "Mapping[str, NDArray[Any]]", most: float
) -> Chart | None:
    if not len(seconds):
        return None
    x = ChartAxis(float(seconds[0]), max(float(seconds[-1]), float(seconds[0]) + 1e-6),
             _LEFT, _SIZE[0] - _RIGHT)  # fmt: skip
    y = ChartAxis(0.0, most * 1.05, _SIZE[1] - _BOTTOM, _TOP)
    lines = [
        (style, path(list(zip(seconds.tolist(), map(float, series), strict=True)), x, y))
        for style, series in values.items()
    ]
    return Chart(title, "seconds", "", x.ticks(6), y.ticks(5), lines=lines)
