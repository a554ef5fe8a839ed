"""`FleetRunner`: trials are done by the workers of a fleet, each with the runner of that name.

A simulator's results are the same whoever computes them, so a search with it is the same whatever
the number of workers. On hardware the machines differ; each keeps its own references and pace.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilesmith.capabilities.fleet.actor import Request
from tilesmith.capabilities.fleet.dispatch import LONE_TRIAL, TRIAL, Kind
from tilesmith.records.trials.record import WorkerReport
from tilesmith.search_space.results.measure import MeasuredBy, MeasureResult, result_from_json
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.machine_trust.watch import ResultNotes, Watch
from tilesmith.tuner.measurement.runner import (
    Begun,
    Candidate,
    Candidates,
    Results,
    Runner,
    TrialCosts,
)
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.choosing import Choosers

if TYPE_CHECKING:  # what runs imports Ray; this knows none of it
    from tilesmith.capabilities.fleet.fleet import Answer, RayFleet

_COMPARISON = Kind("comparison", single=True)
_PACE_S = 1.0
"""Seconds that what was told of the workers' paces stands."""


@dataclass(frozen=True, eq=False)
class _Begun(Begun):
    """With the fleet's numbers of its candidates."""

    numbers: tuple[int, ...]


class FleetRunner(Runner):
    """See the module's docstring.

    Args:
        fleet: does the trials; whoever made it closes it.
        name: the runner that its workers use, "simulator" or "hardware".
    """

    pace = 1.0
    looks = 0
    moved = 0.0

    def __init__(self, fleet: "RayFleet", name: MeasuredBy) -> None:
        self.measured_by = name
        self.deterministic = name == "simulator"
        self.batch = 64 if self.deterministic else 24
        self.costs = TrialCosts()
        self._fleet = fleet
        self._best: dict[str, float] = {}
        self._drifts: dict[str, float] = {}
        self.watch = Watch()
        self._paces: dict[str, float | None] = {}
        self._paced = float("-inf")

    @property
    def drift(self) -> float:
        """The largest of any worker."""
        return max(self._drifts.values(), default=0.0)

    def measure(self, batch: Candidates, cancel: CancelToken | None = None) -> Results:
        return self.finish(self.begin(batch, cancel), cancel)

    def begin(self, batch: Sequence[Candidate], cancel: CancelToken | None = None) -> Begun:
        requests = [self._request("measure", [one]) for one in batch]
        numbers = self._fleet.begin(requests, TRIAL if self.deterministic else LONE_TRIAL)
        return _Begun(tuple(batch), tuple(numbers))

    def finish(
        self, begun: Begun, cancel: CancelToken | None = None, deadline: float | None = None
    ) -> list[MeasureResult]:
        assert isinstance(begun, _Begun), "what is finished was begun here"
        until = None if self.deterministic else deadline
        answers = self._fleet.wait(begun.numbers, cancel, until)
        for candidate, answer in zip(begun.batch, answers, strict=False):
            self._observe(candidate, answer)
        return [self._results(answer, 1)[0] for answer in answers]

    def abandon(self, begun: Begun) -> None:
        assert isinstance(begun, _Begun), "what is abandoned was begun here"
        self._fleet.forget(begun.numbers)

    def compare(self, batch: Candidates, cancel: CancelToken | None = None) -> Results:
        if self.deterministic or not batch:
            return self.measure(batch, cancel)
        numbers = self._fleet.begin([self._request("compare", batch)], _COMPARISON)
        answers = self._fleet.wait(numbers, cancel)
        return self._results(answers[0], len(batch)) if answers else []

    def workers(self) -> Sequence[WorkerReport]:
        reports = self._fleet.reports()
        if time.monotonic() - self._paced >= _PACE_S:
            self._paces = {report.name: self.watch.pace(report.name) for report in reports}
            self._paced = time.monotonic()
        return [replace(report, pace=self._paces.get(report.name)) for report in reports]

    def expect(self, workload: Workload, latency: float) -> None:
        known = self._best.get(workload.key, latency)
        self._best[workload.key] = min(known, latency)

    def choosers(self) -> Choosers:
        return self._fleet.choosers()

    def doubtful(self) -> list[Candidate]:
        return self.watch.doubtful()

    def _observe(self, candidate: Candidate, answer: "Answer") -> None:
        """What came with a result tells of the machine that gave it."""
        if "clock" not in answer:
            return
        clock = (answer["clock"][0], answer["clock"][1])
        report = ResultNotes(answer["reading"], clock, answer["sent"], answer["received"])
        doubt = self.watch.heard(answer["worker"], candidate, report)
        if doubt is not None:
            self._fleet.set_aside(doubt.name, doubt.reason)

    def close(self) -> None:
        """The fleet is its maker's to close."""

    def _request(self, what: str, batch: Sequence[Candidate]) -> Request:
        asked = [[workload.key, dict(config.items_)] for workload, config in batch]
        best = self._best.get(batch[0][0].key)
        return {"do": what, "runner": self.measured_by, "asked": asked, "best": best}

    def _results(self, answer: "Answer", count: int) -> list[MeasureResult]:
        if "crashed" in answer:
            return [MeasureResult("crash", self.measured_by, message=answer["crashed"])] * count
        for total in answer.get("totals", ()):
            self.costs.add(total, answer["spent"])
        if "gauge" in answer:
            self._drifts[answer["worker"]] = answer["gauge"]["drift"]
        return [result_from_json(values) for values in answer["results"]]
