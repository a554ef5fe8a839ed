"""What a job tried: its trials one by one, and the latencies that values of its knobs came to.

A knob's chart has a column for each value that was tried, numbers in their order, and a point for
each trial that worked; the best trial is marked in every chart. So many trials are read that a page
stays small, the last ones and the best.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilesmith.capabilities.dashboard.data.tally import TaskTally
from tilesmith.capabilities.dashboard.data.watching import configs_tried, trials_of_job
from tilesmith.capabilities.dashboard.pages.convergence import LEFT, RIGHT, unit_of, upright
from tilesmith.capabilities.dashboard.pages.job_pages import JobsWatch
from tilesmith.display.html.charts import Dot, Tick, number
from tilesmith.records import Database, Job
from tilesmith.records.trials.reading import by_number
from tilesmith.search_space.results.measure import STATUSES
from tilesmith.search_space.spaces.config import Config

TRIALS_SHOWN = 50
POINTS_OF_ONE, POINTS_OF_EACH = 2_000, 250
"""Trials drawn where one knob is asked for, and where all are."""
_TICKS, _LABEL = 8, 9


@dataclass(frozen=True)
class AskedTrials:
    """Which trials are asked for; "" allows any, `before` is the number to go on before."""

    workload: str = ""
    status: str = ""
    before: int | None = None


@dataclass(frozen=True)
class KnobChart:
    """Latency over the values of one knob; `best` is the dot of the best trial.

    Attributes:
        dots: with the number of each one's trial.
        rows: for each value: how many trials, and the best latency in `unit`.
    """

    knob: str
    unit: str
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    dots: Sequence[tuple[int, Dot]]
    best: Dot
    rows: Sequence[tuple[str, int, float]]


def trials(database: Database, job: int, asked: AskedTrials) -> dict[str, Any]:
    """Values of the list of trials."""
    with database.reading() as connection:
        lines = trials_of_job(
            connection, job, asked.workload, asked.status, asked.before, TRIALS_SHOWN + 1
        )
    shown, more = lines[:TRIALS_SHOWN], len(lines) > TRIALS_SHOWN
    return {
        "asked": asked,
        "trials": shown,
        "statuses": STATUSES,
        "further": shown[-1].id if more else None,
    }


def knobs(watch: JobsWatch, job: Job, workload: str, knob: str) -> dict[str, Any]:
    """Values of the charts of knobs: of the workload asked for, else of one with most trials."""
    tally = watch.tally(job)
    with tally.lock:
        tasks = sorted(tally.tasks.values(), key=lambda t: (t.best_s is None, -t.trials))
        task = next((t for t in tasks if t.name.workload == workload), tasks[0] if tasks else None)
        names = sorted({t.name.workload for t in tasks})
    tried = {} if task is None else _tried(watch, job, task, bool(knob))
    varied = [name for name in _names(tried) if len({c.get(name) for c, _ in tried.values()}) > 1]
    best = min(tried, key=lambda n: (n != (task and task.best_id), tried[n][1]), default=0)
    wanted = [name for name in varied if knob in ("", name)]
    return {
        "task": task,
        "workloads": names,
        "knob": knob if knob in varied else "",
        "varied": varied,
        "drawn": [_chart(name, tried, best) for name in wanted],
        "points": len(tried),
    }


Tried = Mapping[int, tuple[Mapping[str, int | str], float]]
"""Configuration and latency in seconds of trials, by their numbers."""


def _tried(watch: JobsWatch, job: Job, task: TaskTally, alone: bool) -> Tried:
    most = POINTS_OF_ONE if alone else POINTS_OF_EACH
    with watch.database.reading() as connection:
        rows = configs_tried(connection, job.id, sorted(task.series), most)
        best = [task.best_id] if task.best_id is not None else []
        record = by_number(connection, [n for n in best if n not in {row[0] for row in rows}])
    measured = {number: (dict(Config.from_json(config)), s) for number, config, s in rows}
    return measured | {r.id: (dict(r.config), r.latency) for r in record if r.id and r.latency}


def _names(tried: Tried) -> list[str]:
    return list(dict.fromkeys(name for config, _ in tried.values() for name in config))


def _chart(knob: str, tried: Tried, best: int) -> KnobChart:
    unit, scale = unit_of(min(seconds for _, seconds in tried.values()))
    points = {n: (c[knob], s * scale) for n, (c, s) in tried.items() if knob in c}
    values = sorted({v for v, _ in points.values()}, key=lambda v: (isinstance(v, str), v))
    step = (RIGHT - LEFT) / len(values)
    place = {value: LEFT + step * (index + 0.5) for index, value in enumerate(values)}
    y = upright([latency for _, latency in points.values()])
    dots = {
        n: Dot(place[value], y.at(latency), f"{value}: {number(latency)} {unit}")
        for n, (value, latency) in points.items()
    }
    by_value = {v: [latency for w, latency in points.values() if w == v] for v in values}
    every = -(-len(values) // _TICKS)
    chosen = dots.get(best) or min(dots.values(), key=lambda dot: -dot.y)
    return KnobChart(
        knob,
        unit,
        [Tick(place[v], _short(str(v))) for v in values[::every]],
        y.ticks(5),
        list(dots.items()),
        chosen,
        [(str(v), len(latencies), min(latencies)) for v, latencies in by_value.items()],
    )


def _short(text: str) -> str:
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…"
