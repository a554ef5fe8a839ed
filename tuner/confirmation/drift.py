"""When the machine changes its pace, what was measured on both sides is measured again, in turns.

A runner looks at a baseline kernel now and then. Where that has moved by more than `DRIFT_LIMIT`
since the look before, latencies from both sides of the move do not compare: a good candidate
measured in a slow spell looks bad, a mediocre one measured in a fast spell looks best. So the
candidates that could be a task's best either way are measured again in turns, where the pace of
the machine hits all alike, and their new samples take the place of the old ones (which the
database keeps as history). Results of machines that turned out to lie are all measured again,
by those that are believed.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.search_space.spaces.config import Config
from tilesmith.tuner.confirmation.publish import measure_again
from tilesmith.tuner.measurement.runner import Candidate
from tilesmith.tuner.search.search import Search
from tilesmith.tuner.search.task_search import TaskSearch
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.options import DRIFT_LIMIT
from tilesmith.tuner.tasks.task import Trial


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
            trials = [Trial(one[1], r) for one, r in zip(mine, results, strict=False)]
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
