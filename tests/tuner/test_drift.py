"""A machine that changes its pace does not decide which schedule is best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from problems import JUDGED, TARGET, judge

from tilesmith.search_space.measure import MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workload import Workload
from tilesmith.tuner.cancel import CancelToken
from tilesmith.tuner.ledger import MemoryLedger
from tilesmith.tuner.options import TuneOptions
from tilesmith.tuner.runner import Candidate, RunnerOptions
from tilesmith.tuner.runners.hardware import HardwareRunner
from tilesmith.tuner.runners.simulator import SimulatorRunner
from tilesmith.tuner.session import tune
from tilesmith.tuner.task import TuningTask

WORKLOAD = Workload.parse("matmul m=128 n=128 k=128 const=b")


class ChangingMachine(SimulatorRunner):
    """The judge as a CPU that is 30 % slower from the 20th trial on, as the next look shows."""

    measured_by: MeasuredBy = "hardware"
    deterministic = False
    batch = 8

    def __init__(self) -> None:
        super().__init__(RunnerOptions(TARGET, judge=judge))
        self.trials = 0
        self.looks = 0
        self.pace = 1.0
        self.moved = 0.0
        self.compared: list[int] = []

    def measure(
        self, batch: Sequence[Candidate], cancel: CancelToken | None = None
    ) -> list[MeasureResult]:
        found = []
        for candidate in batch:
            self.trials += 1
            found.append(self._at(candidate, 1.3 if self.trials >= 20 else 1.0))
            if self.trials % 10 == 0:
                self.looks += 1
                self.pace = 1.3 if self.trials >= 20 else 1.0
                self.moved = 0.3 if self.trials == 20 else 0.0
        return found

    def compare(
        self, batch: Sequence[Candidate], cancel: CancelToken | None = None
    ) -> list[MeasureResult]:
        self.compared.append(self.trials)
        return [self._at(candidate, 1.3) for candidate in batch]

    def _at(self, candidate: Candidate, pace: float) -> MeasureResult:
        (result,) = self._judged(candidate[0], [candidate[1]])
        samples = tuple(pace * sample for sample in result.samples)
        return MeasureResult(result.status, "hardware", samples, result.message)


def test_candidates_from_both_sides_of_a_move_are_measured_again_in_turns() -> None:
    runner, ledger = ChangingMachine(), MemoryLedger()
    tune([TuningTask(WORKLOAD)], TARGET, ledger, [runner], TuneOptions(trials=60), JUDGED)
    assert runner.compared[0] == 20, "as soon as the move was seen"
    assert len(runner.compared) >= 2, "and before publishing"
    assert runner.trials == 60, "measuring again is no trial"
    final = {entry.trial.config: entry.trial.result for entry in ledger.entries}
    fastest = min(final, key=lambda config: final[config].latency or np.inf)
    truth = dict(zip(final, judge(WORKLOAD, TARGET, list(final)).latency, strict=True))
    assert truth[fastest] <= 1.01 * np.nanmin(list(truth.values()))


@pytest.mark.parametrize(
    ("samples", "moved", "drift"),
    [
        ([1.0, 1.02], 0.02, 0.02),  # steady
        ([1.0, 1.5, 1.01], 0.01, 0.01),  # one look was disturbed
        ([1.0, 1.5, 1.4], 0.4, 0.4),  # it moved
    ],
)
def test_a_move_is_believed_when_seen_twice(
    samples: list[float], moved: float, drift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = HardwareRunner(RunnerOptions(TARGET))
    replies = iter(samples)

    def reply(*_: object) -> list[MeasureResult]:
        return [MeasureResult("ok", "hardware", (next(replies),))]

    monkeypatch.setattr(runner, "_ask", reply)
    monkeypatch.setattr("tilesmith.tuner.runners.hardware._BASELINE_EVERY", 1)
    runner.measure([(WORKLOAD, Config.of(m_tile=1))])
    runner.close()
    assert runner.looks == 1
    assert runner.moved == pytest.approx(moved)
    assert runner.drift == pytest.approx(drift)
