"""Measures on this CPU, in a worker process of its own: a bad candidate costs one trial, never the
run.

A candidate that crashes, hangs, or exceeds its memory kills the worker; its result says so and the
next trial gets a fresh worker. References live in a temporary folder that outlasts workers.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from tilesmith.search_space.measure import MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workload import Workload
from tilesmith.tuner.cancel import CancelToken
from tilesmith.tuner.costs import TrialCosts
from tilesmith.tuner.messages import result_from_json
from tilesmith.tuner.options import DRIFT_LIMIT
from tilesmith.tuner.runner import Candidate, Runner, RunnerOptions, runners
from tilesmith.tuner.worker_process import WorkerError, WorkerProcess

_BASELINE_EVERY = 40
"""Trials between two looks at the baseline: the first kernel that worked, measured again."""


class HardwareRunner:
    """See the module's docstring."""

    measured_by: MeasuredBy = "hardware"
    deterministic = False
    batch = 24

    def __init__(self, options: RunnerOptions) -> None:
        self._timeout_s = options.timeout_s
        self._folder = tempfile.mkdtemp(prefix="tilesmith-")
        self._best: dict[str, float] = {}
        self._baseline: tuple[Candidate, float] | None = None
        self.pace = 1.0
        self._since_baseline = 0
        self.costs = TrialCosts()
        self.drift = 0.0
        self.looks = 0
        self.moved = 0.0
        self._spent: dict[str, float] = {}
        """Seconds of the latest request by part, where the worker told."""
        self.worker = WorkerProcess(
            {
                "backend": options.backend,
                "target": options.target.to_json(),
                "threads": options.threads,
                "folder": self._folder,
                "memory_mib": options.memory_mib,
            }
        )

    def measure(
        self, batch: Sequence[Candidate], cancel: CancelToken | None = None
    ) -> list[MeasureResult]:
        results: list[MeasureResult] = []
        for workload, config in batch:
            if cancel is not None and cancel.cancelled:
                break
            asked = {
                "workload": workload.key,
                "config": dict(config),
                "incumbent": self._best.get(workload.key),
            }
            start = time.perf_counter()
            found = self._ask({"measure": asked}, 1, cancel)
            if not found:
                break
            self.costs.add(time.perf_counter() - start, self._spent)
            results += found
            if found[0].latency is not None:
                self.expect(workload, found[0].latency)
                self._baseline = self._baseline or ((workload, config), found[0].latency)
            self._watch_drift(cancel)
        return results

    def _watch_drift(self, cancel: CancelToken | None) -> None:
        """Now and then measure the baseline again and note how far it has moved."""
        self._since_baseline += 1
        if self._baseline is None or self._since_baseline < _BASELINE_EVERY:
            return
        self._since_baseline = 0
        (workload, config), latency = self._baseline
        asked = {"workload": workload.key, "config": dict(config), "incumbent": None}
        paces: list[float] = []
        while len(paces) < 2 and (not paces or abs(paces[0] / self.pace - 1) > DRIFT_LIMIT):
            (again,) = self._ask({"measure": asked}, 1, cancel) or (None,)
            if again is None or again.latency is None:
                return
            paces.append(again.latency / latency)
        pace = min(paces, key=lambda found: abs(found / self.pace - 1))  # one may be disturbed
        self.looks += 1
        self.moved = abs(pace / self.pace - 1)
        self.drift = max(self.drift, abs(pace - 1))
        self.pace = pace

    def compare(
        self, batch: Sequence[Candidate], cancel: CancelToken | None = None
    ) -> list[MeasureResult]:
        """Rivals of one workload in turns; if one kills the worker, each by itself instead."""
        workloads = {workload for workload, _ in batch}
        assert len(workloads) <= 1, "rivals are of one workload"
        configs: list[Config] = [config for _, config in batch]
        if not configs:
            return []
        asked = {"workload": batch[0][0].key, "configs": [dict(c) for c in configs]}
        results = self._ask({"compare": asked}, len(configs), cancel)
        if any(r.status in ("crash", "timeout") for r in results):
            return self.measure(batch, cancel)
        return results

    def expect(self, workload: Workload, latency: float) -> None:
        known = self._best.get(workload.key, latency)
        self._best[workload.key] = min(known, latency)

    def close(self) -> None:
        self.worker.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(
        self, request: dict[str, Any], count: int, cancel: CancelToken | None
    ) -> list[MeasureResult]:
        """Results of one request; none if it was cancelled."""
        start, self._spent = time.perf_counter(), {}
        try:
            reply = self.worker.ask(request, self._timeout_s * count, cancel)
        except WorkerError as error:
            if error.kind == "cancelled":
                return []
            elapsed = time.perf_counter() - start
            failure = MeasureResult(error.kind, "hardware", message=str(error), elapsed=elapsed)
            return [failure] * count
        self._spent = reply.get("spent", {})
        return [result_from_json(values) for values in reply["results"]]


@runners.register("hardware")
def _hardware(options: RunnerOptions) -> Runner:
    return HardwareRunner(options)
