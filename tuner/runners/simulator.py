"""Measures on the simulator: deterministic, thousands a second, for any target family it covers."""

import time
from dataclasses import replace

from tilesmith.search_space.results.judgement import Judgement
from tilesmith.search_space.results.measure import MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.measurement.runner import (
    Candidates,
    DeterministicRunner,
    Results,
    RunnerOptions,
    runners,
)
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.feature_source import Judge


@runners.register("simulator")
class SimulatorRunner(DeterministicRunner):
    """Calls the judge once for each workload of a batch."""

    measured_by: MeasuredBy = "simulator"

    def __init__(self, options: RunnerOptions) -> None:
        self._target = options.target
        self._judge = options.judge or simulator_judge()

    def measure(self, batch: Candidates, cancel: CancelToken | None = None) -> Results:
        results: dict[int, MeasureResult] = {}
        for workload in dict.fromkeys(workload for workload, _ in batch):
            positions = [i for i, (other, _) in enumerate(batch) if other == workload]
            judged = self._judged(workload, [batch[i][1] for i in positions])
            results.update(zip(positions, judged, strict=True))
        return [results[i] for i in range(len(batch))]

    def _judged(self, workload: Workload, configs: list[Config]) -> list[MeasureResult]:
        start = time.perf_counter()
        try:
            judged = self._judge(workload, self._target, configs)
        except TilesmithError as error:
            if len(configs) > 1:
                return [result for c in configs for result in self._judged(workload, [c])]
            return [MeasureResult.failed(error, "simulator")]
        elapsed = (time.perf_counter() - start) / max(1, len(configs))
        return [replace(_result(judged, row), elapsed=elapsed) for row in range(len(configs))]


def _result(judged: Judgement, row: int) -> MeasureResult:
    if row in judged.failures:
        return judged.failures[row]
    latency = float(judged.latency[row])
    if latency <= 0:  # nothing learns from it
        return MeasureResult("constraint", "simulator", message="it takes no time at all")
    return MeasureResult("ok", "simulator", (latency,), bound=judged.bound[row])


def simulator_judge() -> Judge:
    """The `simulator` package's most faithful judge, imported on first use."""
    from tilesmith.simulator import measure

    return measure
