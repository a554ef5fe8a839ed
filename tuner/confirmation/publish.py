"""Before a best schedule is published: rivals measured again in turns, near-ties settled.

The fastest of many noisy measurements is partly the luckiest. So the top candidates of a task,
over all and for each layout pair that counts, and the default if it is among them, are measured
again in turns, where drift hits all alike; their new samples take the place of the old ones. That
repeats until the choice is one that was measured again. Medians within 2 % are a tie and go to the
canonical choice: the lowest configuration key, the same rule by which the database answers.

When the machine changes its pace, what was measured on both sides is measured again (`DriftWatch`).
A runner looks at a baseline kernel now and then. Where that has moved by more than `DRIFT_LIMIT`
since the look before, latencies from both sides of the move do not compare: a good candidate
measured in a slow spell looks bad, a mediocre one measured in a fast spell looks best. So the
candidates that could be a task's best either way are measured again in turns, where the pace of
the machine hits all alike, and their new samples take the place of the old ones (which the
database keeps as history). Results of machines that turned out to lie are all measured again,
by those that are believed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilesmith.records.questions import bests
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.tuner.measurement.runner import Candidate
from tilesmith.tuner.search.search import Search
from tilesmith.tuner.search.task_search import TaskSearch
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.feature_source import JudgedFeatures
from tilesmith.tuner.tasks.options import DRIFT_LIMIT
from tilesmith.tuner.tasks.task import Layouts, Trial, TuningState

NEAR_TIE = bests.NEAR_TIE["hardware"]
"""Relative difference below which two medians are the same on hardware."""
_LAYOUT_RELEVANCE = 1.25
"""Layout pairs within this factor of the best have their own two top candidates measured again."""
_LUCK = 1.1
"""Candidates slower than the fastest by more than this factor are behind it beyond any noise."""
_BEYOND = 2.5
"""Times what is foretold beyond which a latency that has no rival is measured again."""
_ROUNDS = 5


def confirm(search: Search, task: TaskSearch, rivals: int, cancel: CancelToken | None) -> None:
    """Measure a task's top candidates again in turns and commit the new results."""
    if search.runner.deterministic:
        return
    confirmed: set[Config] = set()
    for _ in range(_ROUNDS):
        best = canonical_best(task.state.results, NEAR_TIE)
        if best is None or best[0] in confirmed:
            return
        chosen = [c for c in _rivals(task.state, rivals) if c not in confirmed]
        chosen = list(dict.fromkeys([*chosen, best[0]]))
        if len(chosen) == 1 and not confirmed and not _is_beyond(search, task, *best):
            return
        confirmed |= set(chosen)
        if measure_again(search, task, chosen, cancel) < len(chosen):
            return


def measure_again(
    search: Search, task: TaskSearch, configs: Sequence[Config], cancel: CancelToken | None
) -> int:
    """Measure rivals again in turns; the new samples take the place of the old. How many it did."""
    workload, known = task.state.task.workload, task.state.results
    results = search.runner.compare([(workload, config) for config in configs], cancel)
    trials = [
        Trial(workload, config, replace(result, warm_samples=known[config].warm_samples))
        for config, result in zip(configs, results, strict=False)
    ]
    if trials:
        search.replace(task, trials)
    return len(trials)


def _is_beyond(search: Search, task: TaskSearch, config: Config, latency: float) -> bool:
    """Whether a latency is so far beyond what is foretold that something was in its way."""
    if not isinstance(search.source, JudgedFeatures):
        return False
    foretold = float(search.source.describe(task.state, [config]).analytical[0])
    return latency > _BEYOND * foretold  # never of NaN: nothing is foretold


def canonical_best(
    results: Mapping[Config, MeasureResult], tolerance: float
) -> tuple[Config, float] | None:
    """The lowest key among the successful configurations within `tolerance` of the fastest.

    Returns the configuration and its latency in seconds; None if nothing succeeded.
    """
    latencies = [(latency, c) for c, r in results.items() if (latency := r.latency) is not None]
    if not latencies:
        return None
    bound = min(latency for latency, _ in latencies) * (1 + tolerance)
    latency, config = min(
        ((latency, c) for latency, c in latencies if latency <= bound), key=lambda pair: pair[1].key
    )
    return config, latency


def contenders(state: TuningState, count: int = 2, luck: float = _LUCK) -> list[Config]:
    """The fastest `count` configurations of every relevant layout pair, the fastest first.

    Of one pair only those within a factor `luck` of its best; a pair counts within a factor of 1.25
    of all.
    """
    ranked = state.ranked()
    of_pair: dict[Layouts, list[tuple[Config, float]]] = {}
    for config, latency in ranked:
        if latency <= _LAYOUT_RELEVANCE * ranked[0][1]:
            of_pair.setdefault(state.layouts(config), []).append((config, latency))
    chosen = [
        (latency, config)
        for members in of_pair.values()
        for config, latency in members[:count]
        if latency <= luck * members[0][1]
    ]
    return [config for _, config in sorted(chosen, key=lambda pair: pair[0])]


def _rivals(state: TuningState, count: int) -> list[Config]:
    """Who is measured again: the fastest, the top two of relevant layout pairs, the default."""
    ranked = state.ranked()
    if not ranked:
        return []
    fastest = ranked[0][1]
    chosen = [config for config, latency in ranked[:count] if latency <= _LUCK * fastest]
    of_pair: dict[Layouts, list[tuple[Config, float]]] = {}
    for config, latency in ranked:
        if latency <= _LAYOUT_RELEVANCE * fastest:
            of_pair.setdefault(state.layouts(config), []).append((config, latency))
    for (first, fast), *others in of_pair.values():
        close = [config for config, latency in others[:1] if latency <= _LUCK * fast]
        chosen += [first, *close]
    default = state.default_latency
    if default is not None and default <= _LUCK * fastest:
        chosen.append(state.default)
    return list(dict.fromkeys(chosen))


class DriftWatch:
    """Follows one search; `check` after every chunk of measurements.

    Args:
        rivals: how many candidates of a task are measured again at most.
    """

    def __init__(self, search: Search, rivals: int) -> None:
        self._search = search
        self._rivals = rivals
        self._looks = search.runner.looks
        self._seen = [len(task.state.results) for task in search.tasks]
        self.measured_again = 0

    def check(self, cancel: CancelToken | None) -> None:
        """If the baseline was looked at since the last call, settle what came in between; and
        replace what was measured by machines that were set aside."""
        runner = self._search.runner
        while not (cancel and cancel.cancelled) and (suspects := runner.doubtful()):
            self._replace(suspects, cancel)
        if runner.looks == self._looks:
            return
        self._looks = runner.looks
        for number, task in enumerate(self._search.tasks):
            recent = set(list(task.state.results)[self._seen[number] :])
            self._seen[number] = len(task.state.results)
            if recent and runner.moved > DRIFT_LIMIT:
                doubtful = self._doubtful(task, recent, 1.0 + runner.moved)
                self.measured_again += measure_again(self._search, task, doubtful, cancel)

    def _replace(self, doubtful: Sequence[Candidate], cancel: CancelToken | None) -> None:
        """Measure candidates once more; the new results take the place of the old."""
        for task in self._search.tasks:
            workload = task.state.task.workload
            mine = [one for one in doubtful if one[0] == workload and one[1] in task.state.results]
            results = self._search.runner.measure(mine, cancel) if mine else []
            trials = [Trial(*one, r) for one, r in zip(mine, results, strict=False)]
            if trials:
                self._search.replace(task, trials)
                self.measured_again += len(trials)

    def _doubtful(self, task: TaskSearch, recent: set[Config], moved: float) -> list[Config]:
        """Candidates that may be the best, if some were measured at another pace than others.

        Empty if they are all of one side: then they compare with one another as they are.
        """
        ranked = task.state.ranked()
        close = [config for config, latency in ranked if latency <= moved * ranked[0][1]]
        new = [config for config in close if config in recent]
        old = [config for config in close if config not in recent]
        if not new or not old:
            return []
        half = max(1, self._rivals // 2)
        return [*old[:half], *new[:half]]
