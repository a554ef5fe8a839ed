"""A machine that changes its pace does not decide which schedule is best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from problems import JUDGED, TARGET, judge

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import Judgement
from tilesmith.tuner.learning.learning import Judging
from tilesmith.tuner.measurement.runner import Candidate, RunnerOptions
from tilesmith.tuner.runners.hardware import EVERY, WINDOW, PaceGauge
from tilesmith.tuner.runners.simulator import SimulatorRunner
from tilesmith.tuner.session.session import tune
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.ledger import MemoryLedger
from tilesmith.tuner.tasks.options import TuneOptions
from tilesmith.tuner.tasks.task import TuningTask

WORKLOAD = Workload.parse("matmul m=128 n=128 k=128 const=b")


def unforetold(workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
    """The judge, that has no latency to tell of any of them."""
    judged, none = judge(workload, target, configs), np.full(len(configs), np.nan)
    untold = MeasureResult("lowering", "simulator", message="no simulator covers it")
    failures = dict.fromkeys(range(len(configs)), untold)
    return Judgement(none, judged.features, judged.bound, failures=failures)


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


class DisturbedOnce(ChangingMachine):
    """The judge as a CPU on which a first measurement takes a factor too long."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor
        self.again: list[Candidate] = []

    def measure(
        self, batch: Sequence[Candidate], cancel: CancelToken | None = None
    ) -> list[MeasureResult]:
        return [self._at(candidate, self._factor) for candidate in batch]

    def compare(
        self, batch: Sequence[Candidate], cancel: CancelToken | None = None
    ) -> list[MeasureResult]:
        self.again += batch
        return [self._at(candidate, 1.0) for candidate in batch]


@pytest.mark.parametrize(("factor", "judging", "is_again"), [
    (2.6, JUDGED, True),
    (2.4, JUDGED, False),
    (0.3, JUDGED, False),
    (2.6, Judging(unforetold), False),
])  # fmt: skip
def test_what_has_no_rival_is_measured_again_where_it_takes_far_longer_than_foretold(
    factor: float, judging: Judging, is_again: bool
) -> None:
    runner, task = DisturbedOnce(factor), TuningTask(WORKLOAD)
    summary = tune([task], TARGET, MemoryLedger(), [runner], TuneOptions(trials=1), judging)
    config = summary.tasks[0].config
    assert config is not None
    assert runner.again == ([(WORKLOAD, config)] if is_again else [])
    published = summary.tasks[0].best_s
    (foretold,) = judge(WORKLOAD, TARGET, [config]).latency
    assert published == pytest.approx(foretold * (1.0 if is_again else factor))


def test_candidates_from_both_sides_of_a_move_are_measured_again_in_turns() -> None:
    runner, ledger = ChangingMachine(), MemoryLedger()
    tune([TuningTask(WORKLOAD)], TARGET, ledger, [runner], TuneOptions(trials=60), JUDGED)
    assert runner.compared[0] == 20, "as soon as the move was seen"
    assert len(runner.compared) >= 2, "and before publishing"
    assert runner.trials == 60, "measuring again is no trial"
    final = {entry.config: entry.result for entry in ledger.trials}
    fastest = min(final, key=lambda config: final[config].latency or np.inf)
    truth = dict(zip(final, judge(WORKLOAD, TARGET, list(final)).latency, strict=True))
    assert truth[fastest] <= 1.02 * np.nanmin(list(truth.values()))


def looked(pace: Sequence[float], noise: float, seed: int) -> PaceGauge:
    """A gauge after readings at these paces, each longer by up to `noise` as neighbours have it."""
    rng = np.random.default_rng(seed)
    gauge = PaceGauge()
    for seconds in 1e-4 * np.array(pace) * (1 + noise * rng.random(len(pace))):
        gauge.read(float(seconds))
    return gauge


@pytest.mark.parametrize("noise", [0.01, 0.22, 0.41])
@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_drift(noise: float, seed: int) -> None:
    gauge = looked([1.0] * 400, noise, seed)
    assert gauge.looks == (400 - WINDOW) // EVERY
    assert gauge.drift < 0.25, "it may be believed once in hundreds of looks"
    assert gauge.pace == pytest.approx(1.0, abs=0.25)


def test_noise_is_hardly_ever_believed() -> None:
    gauges = [looked([1.0] * 400, 0.3, seed) for seed in range(100)]
    assert sum(gauge.drift > 0 for gauge in gauges) <= 10


@pytest.mark.parametrize("noise", [0.01, 0.2, 0.4])
@pytest.mark.parametrize("seed", range(5))
def test_a_lasting_change_is_found_in_the_noise(noise: float, seed: int) -> None:
    steps = [1.0] * (WINDOW + EVERY) + [1.5] * EVERY
    gauge = looked(steps, noise, seed)
    assert (gauge.looks, gauge.moved) == (2, pytest.approx(0.5, abs=0.2))
    assert gauge.pace == pytest.approx(1.5, abs=0.2)
    back = looked(steps + [1.0] * EVERY, noise, seed)
    assert back.moved == pytest.approx(1 / 3, abs=0.15)
    assert back.pace == pytest.approx(1.0, abs=0.15) and back.drift == pytest.approx(0.5, abs=0.2)


def test_a_slow_drift_is_followed() -> None:
    pace = np.linspace(1.0, 1.4, 400)
    gauge = looked(pace.tolist(), 0.05, 0)
    assert gauge.pace == pytest.approx(1.4, abs=0.08)


def test_without_readings_nothing_moves() -> None:
    gauge = PaceGauge()
    for _ in range(100):
        gauge.read(None)
    assert (gauge.looks, gauge.pace, gauge.moved, gauge.drift) == (0, 1.0, 0.0, 0.0)
