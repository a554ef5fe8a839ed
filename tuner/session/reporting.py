"""What people are told of a search: what it came to, and by its `Rate` how long the rest takes."""

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from tilesmith.search_space.results.origin import origin_of
from tilesmith.tuner.confirmation.publish import NEAR_TIE, canonical_best
from tilesmith.tuner.measurement.timing import spread
from tilesmith.tuner.search.search import Search
from tilesmith.tuner.search.task_search import TaskSearch
from tilesmith.tuner.session.progress import TaskReport


def report(search: Search, task: TaskSearch) -> TaskReport:
    """One task's state."""
    state = task.state
    config, latency = state.best or (None, None)
    return TaskReport(
        state.task.workload,
        state.task.weight,
        task.untuned_latency,
        latency,
        config,
        state.layouts(config) if config is not None else ("", ""),
        search.runner.measured_by,
        task.trials,
        search.predictor.accuracy(state),
        state.default,
        origin_of(len(state.results), lambda tried: tried >= state.space.size),
    )


def final_report(search: Search, task: TaskSearch) -> TaskReport:
    """A task's report with the canonical choice among near-ties."""
    summary, state = report(search, task), task.state
    best = canonical_best(state.results, 0.0 if search.runner.deterministic else NEAR_TIE)
    if best is None:
        return summary
    config, latency = best
    return replace(summary, config=config, best_s=latency, layouts=state.layouts(config))


def noise(search: Search, chosen: Iterable[TaskReport]) -> float:
    """How far apart the samples of what was chosen are, of the middle task (`timing.spread`); 0
    where results cannot vary."""
    known = {task.state.task.workload: task.state.results for task in search.tasks}
    results = (known[one.workload].get(one.config) for one in chosen if one.config is not None)
    spreads = [spread(result.samples) for result in results if result is not None and result.ok]
    return 0.0 if search.runner.deterministic or not spreads else statistics.median(spreads)


def failures(search: Search) -> dict[str, int]:
    """Failed trials of all tasks by status, earlier jobs' included."""
    counts: dict[str, int] = {}
    for task in search.tasks:
        for result in task.state.results.values():
            if not result.ok:
                counts[result.status] = counts.get(result.status, 0) + 1
    return counts


_OVER_S = 60.0
_LEAST_S, _LEAST = 3.0, 5
"""Seconds and trials without which nothing is foretold: what starts up is no rate."""


class Rate:
    """Trials a second over the last minute, so that a pause or a long preparation is forgotten."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()

    def note(self, now: float, trials: int) -> None:
        """Note that `trials` trials were done at `now`, a time of a monotonic clock in seconds."""
        self._counts.append((now, trials))
        while now - self._counts[0][0] > _OVER_S and len(self._counts) > 2:
            self._counts.popleft()

    def seconds(self, trials: int) -> float | None:
        """Estimate the seconds that `trials` more take; None before the rate is known."""
        if not self._counts:
            return None
        (first, before), (last, now) = self._counts[0], self._counts[-1]
        if trials > 0 and (last - first < _LEAST_S or now - before < _LEAST):
            return None
        return max(0, trials) * (last - first) / max(1, now - before)
