"""Replays recorded results: studies search strategies without measuring anything again.

A configuration that was never recorded gives a "constraint" failure that says so.
"""

from tilesmith.search_space.results.measure import MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.measurement.runner import (
    Candidates,
    DeterministicRunner,
    Results,
    RunnerOptions,
    runners,
)
from tilesmith.tuner.tasks.cancel import CancelToken


@runners.register("replay")
class ReplayRunner(DeterministicRunner):
    """Looks results up in `RunnerOptions.recorded`, all of one way of measuring.

    Raises:
        InputError: nothing is recorded, or results of both ways are mixed.
    """

    def __init__(self, options: RunnerOptions) -> None:
        self._recorded = options.recorded
        labels = {r.measured_by for known in self._recorded.values() for r in known.values()}
        if not labels:
            raise InputError("nothing to replay: the database holds no results of these workloads")
        if len(labels) > 1:
            raise InputError("replay takes results of one way of measuring, not of both")
        self.measured_by: MeasuredBy = labels.pop()

    def measure(self, batch: Candidates, cancel: CancelToken | None = None) -> Results:
        return [self._lookup(workload, config) for workload, config in batch]

    def _lookup(self, workload: Workload, config: Config) -> MeasureResult:
        known = self._recorded.get(workload.key, {}).get(config)
        if known is None:
            return MeasureResult("constraint", self.measured_by, message="never recorded")
        return known
