"""One workload of a tuning job by one way of measuring, from its records: what was found, and how
the best came down.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from tilesmith.codegen.programs.structures import default_of
from tilesmith.records import TuningRecord
from tilesmith.records.trials.counting import is_trial
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.gain import times_of
from tilesmith.search_space.results.measure import MeasuredBy
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload


@dataclass(frozen=True)
class TaskCurve:
    """One workload by one way of measuring.

    Attributes:
        trials, failed: how many (`records.trials`), and that failed.
        points: (trial number within the job's task, best latency so far in seconds).
        again: of these, those where the best was measured again: only there may it rise.
        default_s, best_s: latencies in seconds; None where nothing worked.
        config: the best's.
        layouts: its input and output layout.
        roofline_s: what the simulator says the best's roofline is; None where it cannot say.
        elapsed_s: seconds its trials took.
        spread: median over trials of (largest - smallest sample) / median sample.
        weight: how often the model runs it; None where the job did not keep that.
        origin: how the best on record was found (`Origin`), "" where nothing works.
        bound: what that roofline is of, as the simulator calls it; "" where it cannot say.

    Latencies of a job that found some in the database are those it told of, its own trials or not.
    """

    workload: str
    measured_by: MeasuredBy
    trials: int
    failed: int
    points: tuple[tuple[int, float], ...]
    default_s: float | None
    best_s: float | None
    config: Config | None
    layouts: tuple[str, str]
    flops: int
    bytes_: int
    roofline_s: float | None
    elapsed_s: float
    spread: float | None
    weight: float | None = None
    bound: str = ""
    again: tuple[tuple[int, float], ...] = ()
    origin: str = ""

    @property
    def gain(self) -> float | None:
        """How many times as fast as the default (`records.questions.gains`)."""
        return times_of(self.default_s, self.best_s)


def curve_of(trials: Sequence[TuningRecord], target: Target | None) -> TaskCurve:
    first, known = trials[0], {record.config: record for record in trials}
    best = min((r for r in known.values() if r.latency), key=_latency, default=None)
    default, flops, bytes_ = _facts(first, target)
    spreads = [
        (max(r.result.samples) - min(r.result.samples)) / r.latency
        for r in trials
        if r.latency and len(r.result.samples) > 1
    ]
    started = known.get(default) if default is not None else None
    roofline_s, bound = _roofline(best, target)
    steps = list(_best_so_far(trials))
    return TaskCurve(
        first.workload_key,
        first.result.measured_by,
        sum(is_trial(record.result.message) for record in trials),
        sum(not r.result.ok and is_trial(r.result.message) for r in trials),
        tuple(_thinned((count, best_s) for count, best_s, _ in steps)),
        started.latency if started else None,
        best.latency if best else None,
        best.config if best else None,
        best.layouts if best else ("", ""),
        flops,
        bytes_,
        roofline_s,
        sum(record.result.elapsed for record in trials),
        median(spreads) if spreads else None,
        bound=bound,
        again=tuple((count, best_s) for count, best_s, was_again in steps if was_again),
    )


def _best_so_far(trials: Sequence[TuningRecord]) -> Iterator[tuple[int, float, bool]]:
    """(trial number, best latency in seconds, whether it is other than before because the best was
    measured again); the last word on a configuration counts."""
    works: dict[Config, float] = {}
    best: Config | None = None
    count, before = 0, None
    for record in trials:
        latency, was_best = record.latency, record.config == best
        count += is_trial(record.result.message)
        if latency is not None:
            works[record.config] = latency
        else:
            works.pop(record.config, None)
        if was_best:
            best = min(works, key=works.__getitem__, default=None)
        elif latency is not None and (best is None or latency < works[best]):
            best = record.config
        if best is not None:
            yield max(1, count), works[best], was_best and works[best] != before
            before = works[best]


def _latency(record: TuningRecord) -> float:
    return record.latency or 0.0


def _thinned(points: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """The ends, and where the value changes."""
    series = list(points)
    last = len(series) - 1
    return [
        point
        for i, point in enumerate(series)
        if i in (0, last) or point[1] != series[i - 1][1] or point[1] != series[i + 1][1]
    ]


def _facts(record: TuningRecord, target: Target | None) -> tuple[Config | None, int, int]:
    """The default configuration, operations and bytes moved at least; as far as known here."""
    from tilesmith.search_space.expressions.dtypes import size_of

    try:
        workload = record.workload
        template = template_of(workload.operator)
        operands = (*template.operands(workload), template.output(workload))
        bytes_ = sum(_elements(operand.shape) * size_of(operand.dtype) for operand in operands)
        default = None if target is None else default_of(workload, target)
        return default, template.flops(workload), bytes_
    except TilesmithError:  # an operator that this installation does not know
        return None, 0, 0


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _roofline(best: TuningRecord | None, target: Target | None) -> tuple[float | None, str]:
    """The least seconds, and what they are of."""
    from tilesmith.simulator import simulate

    if best is None or target is None:
        return None, ""
    try:
        workload: Workload = best.workload
        simulated = simulate(workload, target, best.config, "roofline")
    except TilesmithError:
        return None, ""
    return simulated.latency_us / 1e6, simulated.bound
