"""The page of a tuning job: one HTML file that needs nothing else, made from a Jinja2 template.

Charts are SVG inside the page; there is no script, font or picture to load.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tilesmith.capabilities.dashboard.report.job_curves import TaskCurve
from tilesmith.capabilities.dashboard.report.job_report import JobReport
from tilesmith.capabilities.dashboard.report.job_whole import Against, sentence, shares, wholes
from tilesmith.display.html.charts import Box, ChartAxis, Labels, Tick, number, path, staircase
from tilesmith.display.html.pages import rendered

_CURVES = 24
"""Convergence charts drawn; the rest are in the table only."""
_LABELS = 12
"""Dots of the roofline that are told by number and share; the rest when pointed at."""
_MOVES = frozenset(("memory", "mem", "dma", "hbm"))
"""Bounds by bytes that are moved, as simulators call them; the others are of arithmetic."""
_CURVE = (300.0, 130.0)
_ROOF = (1060.0, 400.0)


@dataclass(frozen=True)
class CurveChart:
    """How one task's best came down over its trials."""

    task: TaskCurve
    number: int
    line: str
    other: str
    default_y: float | None
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    again: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class _Dot:
    """A task in the roofline chart."""

    x: float
    y: float
    roof_y: float
    title: str
    label: str
    label_at: tuple[float, float]


@dataclass(frozen=True)
class Peak:
    """What a machine can do at most: a level line of arithmetic, a rising one of bytes."""

    line: str
    text: str
    x: float
    y: float


@dataclass(frozen=True)
class RoofChart:
    """Operations a second over operations per byte, and the roof above each task."""

    dots: Sequence[_Dot]
    peaks: Sequence[Peak]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    width: float = _ROOF[0]
    height: float = _ROOF[1]


def page(report: JobReport, against: Against | None = None) -> str:
    """The report as HTML; `against`: beside another job."""
    theirs = against.other_tasks if against is not None else {}
    moved = [
        (number, task, theirs.get((task.measured_by, task.workload)))
        for number, task in enumerate(report.tasks, 1)
    ]
    moved = [(number, task, other) for number, task, other in moved if _moves(task, other)]
    return rendered(
        __package__,
        "job_report.html",
        report=report,
        sentence=sentence(report),
        wholes=wholes(report),
        shares=shares(report.tasks),
        against=against,
        curves=[_curve(number, task, other) for number, task, other in moved[:_CURVES]],
        moved=len(moved),
        roof=_roof(report.tasks),
        total_s=sum(spent.seconds for spent in report.spent) or 1.0,
        widest=max((task.gain or 0.0 for task in report.tasks), default=1.0) or 1.0,
    )


def _moves(task: TaskCurve, other: TaskCurve | None) -> bool:
    """Whether there is anything to see: the best changed, or there is another job's to compare."""
    return len({seconds for _, seconds in task.points}) > 1 or (
        other is not None and len(task.points) > 1 and len(other.points) > 1
    )


def _curve(number: int, task: TaskCurve, other: TaskCurve | None) -> CurveChart:
    width, height = _CURVE
    own, theirs = (
        [(float(count), seconds * 1e6) for count, seconds in one.points] if one is not None else []
        for one in (task, other)
    )
    latencies = [us for _, us in (*own, *theirs)]
    default_us = None if task.default_s is None else task.default_s * 1e6
    last = max(task.trials, 2, other.trials if other is not None else 0)
    x = ChartAxis(0.0, float(last), 44.0, width - 8)
    y = ChartAxis.over([*latencies, default_us or latencies[0]], height - 22, 8, logarithmic=True)
    return CurveChart(
        task,
        number,
        path(staircase(own), x, y),
        path(staircase(theirs), x, y),
        None if default_us is None else y.at(default_us),
        x.ticks(4),
        y.ticks(4),
        [(x.at(float(count)), y.at(seconds * 1e6)) for count, seconds in task.again],
    )


def _roof(tasks: Sequence[TaskCurve]) -> RoofChart | None:
    numbered = [
        (number, t)
        for number, t in enumerate(tasks, 1)
        if t.flops and t.bytes_ and t.best_s and t.roofline_s
    ]
    if not numbered:
        return None
    known = [task for _, task in numbered]
    width, height = _ROOF
    speeds = [(_speed(t, t.best_s), _speed(t, t.roofline_s)) for t in known]
    x = ChartAxis.over((t.flops / t.bytes_ for t in known), 64, width - 12, logarithmic=True)
    y = ChartAxis.over([s for pair in speeds for s in pair], height - 40, 12, logarithmic=True)
    labels = Labels(Box(64, 2, width, height - 34))
    places = [
        (x.at(t.flops / t.bytes_), y.at(reached))
        for t, (reached, _) in zip(known, speeds, strict=True)
    ]
    for at in places:
        labels.keep_off(*at, 5)
    peaks = _peaks(known, x, y, labels)
    dots: list[_Dot] = []
    for (place, task), (reached, roof), at in zip(numbered, speeds, places, strict=True):
        title = f"{number(reached)} of {number(roof)} GFLOP/s ({task.measured_by})"
        label = f"{place}: {reached / roof:.0%}" if len(dots) < _LABELS else ""
        told_at = labels.place(label, *at) if label else None
        label, told_at = (label, told_at) if told_at is not None else ("", at)
        dots.append(_Dot(*at, y.at(roof), f"{place}. {task.workload}: {title}", label, told_at))
    return RoofChart(dots, peaks, x.ticks(6), y.ticks(6))


def _peaks(tasks: Sequence[TaskCurve], x: ChartAxis, y: ChartAxis, labels: Labels) -> list[Peak]:
    """The lines that the roofs of tasks lie on: of each bound, the highest that it gives."""
    pace: dict[str, float] = {}
    for task in tasks:
        roof = _speed(task, task.roofline_s)
        value = roof / (task.flops / task.bytes_) if task.bound in _MOVES else roof
        pace[task.bound] = max(value, pace.get(task.bound, 0.0))
    level = max((v for name, v in pace.items() if name and name not in _MOVES), default=y.high)
    peaks: list[Peak] = []
    for name, value in sorted(pace.items()):
        if not name:
            continue
        if name in _MOVES:
            ends = max(x.low, y.low / value), min(x.high, level / value)
            points = [(at, value * at) for at in ends]
            middle = (ends[0] * ends[1]) ** 0.5
            at, text = (middle, value * middle), f"{name}: {number(value)} GB/s"
        else:
            bandwidth = max((v for other, v in pace.items() if other in _MOVES), default=0.0)
            begin = max(x.low, value / bandwidth) if bandwidth else x.low
            points = [(min(begin, x.high), value), (x.high, value)]
            at, text = (x.low, value), f"{name}: {number(value)} GFLOP/s"
        aside = 14.0 if name in _MOVES else -6.0  # below the rising line, above the level one
        wanted = x.at(at[0]), max(10.0, y.at(at[1]) + aside)
        told_at = labels.place(text, *wanted, 6.0)
        text, told_at = (text, told_at) if told_at is not None else ("", wanted)
        peaks.append(Peak(path(points, x, y), text, *told_at))
    return peaks


def _speed(task: TaskCurve, seconds: float | None) -> float:
    """GFLOP/s, counting the direct form's operations."""
    assert seconds, "only of tasks with a latency"
    return task.flops / seconds / 1e9
