"""Measures on this CPU, in a worker process of its own: a bad candidate costs one trial, never the
run.

A candidate that crashes, hangs, or exceeds its memory kills the worker; its result says so and the
next trial gets a fresh worker. Where a worker was killed from outside the trial is done again; only
what is killed again and again is said to be why. References live in a temporary folder that
outlasts workers.

What is begun is measured in a thread of its own, so that its caller may choose meanwhile what is
measured next. What a trial tells of the machine is taken in when it is finished, in the order in
which results are joined.

`PaceGauge`: how fast the machine is now, by a reference kernel that is run beside every trial.

On a busy machine two runs of one kernel differ by tens of per cent, so that one look at it says
little: the pace is the median of the latest readings over the median of the first. A move counts
only where it is beyond what the spread of the readings explains.
"""

import math
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from tilesmith.search_space.results.measure import (
    MeasuredBy,
    MeasureResult,
    Status,
    result_from_json,
)
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import JobError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.machines.identity import machine_name
from tilesmith.tuner.measurement.runner import (
    Begun,
    Candidate,
    Candidates,
    Results,
    Runner,
    RunnerOptions,
    TrialCosts,
    runners,
)
from tilesmith.tuner.measurement.timing import LOST, UNSTEADY, spread, uncertainty
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.options import DRIFT_LIMIT
from tilesmith.tuner.workers.builders import Builders
from tilesmith.tuner.workers.worker_process import WorkerError, WorkerProcess

EVERY = 20
"""Readings between two looks at the pace."""
WINDOW = 15
"""Readings that a look takes the median of."""
_SIGMAS = 4.0


class PaceGauge:
    """See the module's docstring.

    Attributes:
        pace: how much longer everything takes than at first, as last believed.
        looks: how often the pace was looked at.
        moved: how far the last look found it from the one before, relative; 0 where that is noise.
        drift: how far it ever was from 1.
    """

    def __init__(self) -> None:
        self._readings: list[float] = []
        self._first: list[float] = []
        self._before: list[float] = []
        self.pace = 1.0
        self.looks = 0
        self.moved = 0.0
        self.drift = 0.0

    def read(self, seconds: float | None) -> None:
        """One more reading; None where there is none."""
        if seconds is None or seconds <= 0:
            return
        self._readings.append(math.log(seconds))
        if not self._first and len(self._readings) >= WINDOW:
            self._first = self._before = self._readings[-WINDOW:]
            self._readings = []
        elif self._first and len(self._readings) >= EVERY:
            self._look()

    def _look(self) -> None:
        """The latest readings against those that told the pace in force."""
        now = self._readings[-WINDOW:]
        self._readings = []
        self.looks += 1
        self.moved = 0.0
        change = statistics.median(now) - statistics.median(self._before)
        noise = math.hypot(uncertainty(now), uncertainty(self._before))
        if abs(change) <= max(math.log1p(DRIFT_LIMIT), _SIGMAS * noise):
            return
        self.moved = abs(math.expm1(change))
        self.pace = math.exp(statistics.median(now) - statistics.median(self._first))
        self.drift = max(self.drift, abs(self.pace - 1))
        self._before = now


@dataclass(frozen=True)
class _Done:
    """One trial: seconds of the reference kernel after it, and its own, in all and by part."""

    result: MeasureResult
    look: float | None
    seconds: float
    spent: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class _Begun(Begun):
    """A candidate that is measured when its turn comes."""

    done: "Future[_Done | None]"


_UNSTEADY_AGAIN = 2
"""Times that a trial with unsteady samples is measured again."""
_JUMPS = 3
"""Times that a trial is tried where the clock jumps."""
_REFERENCE_S, _REFERENCE_AFTER = 0.5e-3, 8
"""The reference is the first kernel that takes less, or the fastest of so many trials."""


@runners.register("hardware")
class HardwareRunner(Runner):
    """See the module's docstring."""

    measured_by: MeasuredBy = "hardware"
    deterministic = False
    batch = 24

    def __init__(self, options: RunnerOptions) -> None:
        self._timeout_s = options.timeout_s
        self._machine = machine_name()
        self._folder = tempfile.mkdtemp(prefix="tilesmith-")
        self._best: dict[str, float] = {}
        self._reference = None if options.control is None else _named(*options.control)
        self._quickest: tuple[float, Candidate] | None = None
        self._gauge = PaceGauge()
        self.costs = TrialCosts()
        self._spent: dict[str, float] = {}
        """Seconds of the latest request by part, where the worker told."""
        self._look: float | None = None
        """Seconds of the reference kernel after it."""
        self._clock: dict[str, Any] | None = None
        """What the worker's clocks said of it, if they disagreed."""
        self.notices: list[str] = []
        """Sentences about the clocks of this machine, the latest last."""
        self.readings: list[float | None] = []
        """Of each trial since somebody took them: seconds of the reference kernel beside it."""
        setup = {
            "backend": options.backend,
            "target": options.target.to_json(),
            "threads": options.threads,
            "folder": self._folder,
            "memory_mib": options.memory_mib,
            "cores": list(options.cores),
        }
        self.worker = WorkerProcess(setup)
        makers = 1 if options.cores else 0  # the other cores are not ours
        self._builders = Builders(self.worker, setup, options.timeout_s, makers)
        self.in_flight = min(1, self._builders.count)
        self._begun: list[Candidate] = []
        """Those that no measuring was begun of."""
        self._thread, self._turn = ThreadPoolExecutor(1), threading.RLock()
        self._busy_s, self._since = 0.0, math.inf
        """Seconds of trials that are over, and when the one at hand began."""

    def measure(self, batch: Candidates, cancel: CancelToken | None = None) -> Results:
        results: list[MeasureResult] = []
        for candidate in batch:
            if (done := self._measured(candidate, cancel)) is None:
                break
            results.append(self._joined(done))
        return results

    def begin(self, batch: Sequence[Candidate], cancel: CancelToken | None = None) -> Begun:
        if not self.in_flight or len(batch) != 1:
            return super().begin(batch, cancel)
        self._begun += batch
        self._builders.ahead(self._begun)
        return _Begun(tuple(batch), self._thread.submit(self._measured, batch[0], cancel))

    def finish(
        self, begun: Begun, cancel: CancelToken | None = None, deadline: float | None = None
    ) -> list[MeasureResult]:
        if not isinstance(begun, _Begun):
            return super().finish(begun, cancel, deadline)
        if deadline is not None:
            wait([begun.done], max(0.0, deadline - time.monotonic()))
            if self._withdrawn(begun):
                return []
        done = begun.done.result()
        return [] if done is None else [self._joined(done)]

    def abandon(self, begun: Begun) -> None:
        if isinstance(begun, _Begun):
            self._withdrawn(begun)

    def _withdrawn(self, begun: "_Begun") -> bool:
        """Have a candidate not measured; whether its turn had not come."""
        if not begun.done.cancel():
            return False
        self._begun.remove(begun.batch[0])
        return True

    @contextmanager
    def beside(self) -> Iterator[None]:
        alone = self._turn if self._builders.is_alone else nullcontext()
        with alone, self._builders.beside():
            yield

    def _measured(self, candidate: Candidate, cancel: CancelToken | None) -> "_Done | None":
        """One trial; None if it was cancelled."""
        workload, config = candidate
        with self._turn:
            if candidate in self._begun:
                self._begun.remove(candidate)
            if cancel is not None and cancel.cancelled:
                return None
            asked = {**_named(workload, config), "incumbent": self._best.get(workload.key)}
            start = self._since = time.perf_counter()
            self._builders.ready(candidate, cancel)
            waited, is_beside = time.perf_counter() - start, self._builders.is_at_work
            timed = self._steadied({"measure": asked, "reference": self._reference}, cancel)
            self._since, seconds = math.inf, time.perf_counter() - start
            self._busy_s += seconds
            if not timed:
                return None
            spent = {**self._spent, "compile": self._spent.get("compile", 0.0) + waited}
            self._builders.read(self._look, is_beside and self._builders.is_at_work)
            if timed[0].latency is not None:
                self.expect(workload, timed[0].latency)
                self._find_reference(candidate, timed[0].latency)
            return _Done(timed[0], self._look, seconds, spent)

    def _joined(self, done: "_Done") -> MeasureResult:
        """The result, when what was seen beside it is taken in."""
        self.costs.add(done.seconds, done.spent)
        self._gauge.read(done.look)
        self.readings.append(done.look)
        return done.result

    def ahead(self, batch: Sequence[Candidate], cancel: CancelToken | None = None) -> None:
        """Have code made by other processes meanwhile; the first is needed at once."""
        self._builders.ahead(batch[1:])

    @property
    def busy_s(self) -> float:
        """See `Runner`, like the four that follow."""
        return self._busy_s + max(0.0, time.perf_counter() - self._since)

    @property
    def pace(self) -> float:
        return self._gauge.pace

    @property
    def looks(self) -> int:
        return self._gauge.looks

    @property
    def moved(self) -> float:
        return self._gauge.moved

    @property
    def drift(self) -> float:
        return self._gauge.drift

    def _find_reference(self, candidate: Candidate, latency: float) -> None:
        """Settle on a quick kernel that is run beside every trial from now on."""
        if self._reference is not None:
            return
        if self._quickest is None or latency < self._quickest[0]:
            self._quickest = latency, candidate
        if self._quickest[0] < _REFERENCE_S or len(self.costs.totals) >= _REFERENCE_AFTER:
            self._reference = _named(*self._quickest[1])

    def compare(self, batch: Candidates, cancel: CancelToken | None = None) -> Results:
        """Rivals of one workload in turns; if one kills the worker, each by itself instead."""
        workloads = {workload for workload, _ in batch}
        assert len(workloads) <= 1, "rivals are of one workload"
        configs: list[Config] = [config for _, config in batch]
        if not configs:
            return []
        asked = {"workload": batch[0][0].key, "configs": [dict(c) for c in configs]}
        with self._turn:
            self._builders.hold(cancel)
            results = self._timed({"compare": asked}, len(configs), cancel)
            self._builders.ahead(self._begun)
            if any(r.status in ("crash", "timeout") for r in results):
                return self.measure(batch, cancel)
        return results

    def expect(self, workload: Workload, latency: float) -> None:
        known = self._best.get(workload.key, latency)
        self._best[workload.key] = min(known, latency)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._builders.close()
        self.worker.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _steadied(self, request: dict[str, Any], cancel: CancelToken | None) -> list[MeasureResult]:
        """As `_timed` of one trial, again where its samples are too far apart to be believed; of
        several the steadiest. What has clearly lost is believed."""
        best, incumbent = self._timed(request, 1, cancel), request["measure"]["incumbent"]
        lost = math.inf if incumbent is None else LOST * incumbent
        for _ in range(_UNSTEADY_AGAIN):
            if not best or not best[0].ok or spread(best[0].samples) < UNSTEADY:
                break
            if min(best[0].samples) > lost:
                break
            again = self._timed(request, 1, cancel)
            if again and again[0].ok and spread(again[0].samples) < spread(best[0].samples):
                best = again
        return best

    def _timed(
        self, request: dict[str, Any], count: int, cancel: CancelToken | None
    ) -> list[MeasureResult]:
        """As `_ask`, again where the clock jumped meanwhile.

        Raises:
            JobError: it jumped each time.
        """
        for _ in range(_JUMPS):
            results = self._ask(request, count, cancel)
            if self._clock is None:
                return results
            self.notices.append(self._clock["message"])
            if not self._clock["spoils"]:
                return results
        raise JobError(f"nothing can be measured on '{self._machine}': {self.notices[-1]}")

    def _ask(
        self, request: dict[str, Any], count: int, cancel: CancelToken | None
    ) -> list[MeasureResult]:
        """Results of one request; none if it was cancelled."""
        start, self._spent, self._look = time.perf_counter(), {}, None
        self._clock = None
        try:
            reply = self.worker.ask(request, self._timeout_s * count, cancel)
        except WorkerError as error:
            if error.kind == "cancelled":
                return []
            elapsed = time.perf_counter() - start
            status: Status = "timeout" if error.kind == "timeout" else "crash"
            failure = MeasureResult(status, "hardware", message=str(error), elapsed=elapsed)
            return [replace(failure, machine=self._machine)] * count
        self._spent, self._look = reply.get("spent", {}), reply.get("look")
        self._clock = reply.get("clock")
        answers = [result_from_json(values) for values in reply["results"]]
        return [replace(result, machine=self._machine) for result in answers]


def _named(workload: Workload, config: Config) -> dict[str, Any]:
    """A candidate as the worker is told it."""
    return {"workload": workload.key, "config": dict(config)}
