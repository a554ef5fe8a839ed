"""A tuned model is published only where it is no slower than untuned, on busy machines too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from problems import TARGET, judge
from test_evaluator import Conversions
from test_session import NoisyHardware

from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.results.model_evaluator import Placed
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.confirmation.whole_model import confirmed, versus
from tilesmith.tuner.learning.learning import Judging
from tilesmith.tuner.session.session import tune
from tilesmith.tuner.tasks.ledger import MemoryLedger
from tilesmith.tuner.tasks.options import TuneOptions
from tilesmith.tuner.tasks.task import TuningTask

KERNELS = [Workload.parse(f"matmul m={m} n=64 k=64") for m in (8, 16, 24, 32, 40, 48, 56, 64)]
USUAL = Config.of(tuned=0)


def never(done: int) -> bool:
    return False


class Busy(Conversions):
    """A model on a machine whose pace wanders by 20 % from run to run, as seeded.

    Args:
        gains: by how much tuning makes each kernel's share of the model slower (negative: faster);
            each takes a tenth of it untuned.
        noise: relative, of each run; the pace that both runs of a pair share wanders by 0.2.
    """

    def __init__(self, gains: Sequence[float], noise: float = 0.03, seed: int = 0) -> None:
        super().__init__()
        self._gains = dict(zip(KERNELS, gains, strict=False))
        self._noise = noise
        self._rng = np.random.default_rng(seed)

    def untuned(self) -> Mapping[Workload, Config]:
        return dict.fromkeys(KERNELS, USUAL)

    def seconds(self, choices: Mapping[Workload, Config]) -> float:
        tuned = (w for w in self._gains if w not in choices)
        return 1.0 + sum(self._gains[w] for w in tuned)

    def measure(self, alternatives: Sequence[Mapping[Workload, Config]]) -> list[MeasureResult]:
        self.asked += [dict(choices) for choices in alternatives]
        pace = np.exp(0.2 * self._rng.standard_normal(15).cumsum() / 4)
        taken = (
            self.seconds(choices) * pace * (1 + self._noise * self._rng.random(15))
            for choices in alternatives
        )
        return [MeasureResult("ok", "hardware", tuple(t.tolist())) for t in taken]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_faster_stays_and_what_is_slower_does_not(seed: int) -> None:
    faster = confirmed(Busy([-0.03], seed=seed), KERNELS[:1], never)
    assert faster.choices == {} and faster.untuned_s is not None and faster.compared == 1
    slower = confirmed(Busy([0.03], seed=seed), KERNELS[:1], never)
    assert slower.choices == dict.fromkeys(KERNELS, USUAL)
    assert slower.reverted == set(KERNELS)
    assert slower.after_s is not None and slower.untuned_s is not None


@pytest.mark.parametrize("culprit", [0, 3, 7])
def test_halves_find_the_kernels_that_make_it_slower(culprit: int) -> None:
    gains = [-0.02] * 8
    gains[culprit] = 0.4
    busy = Busy(gains, noise=0.01)
    found = confirmed(busy, KERNELS, never)
    assert found.reverted == {KERNELS[culprit]}
    assert found.choices.keys() == {KERNELS[culprit]}
    assert busy.seconds(found.choices) < 1.0


def test_without_time_the_first_comparison_is_made_all_the_same() -> None:
    found = confirmed(Busy([0.4, -0.1]), KERNELS[:2], lambda done: True)
    assert found.compared == 1 and found.reverted == set(KERNELS)
    assert confirmed(Busy([0.4]), [], never).compared == 0, "nothing is tuned"


def test_equal_forms_are_no_reason_to_stay_untuned() -> None:
    assert confirmed(Busy([0.0, 0.0], seed=3), KERNELS[:2], never).choices == {}


def test_a_form_that_does_not_run_is_the_slower_one() -> None:
    class Broken(Busy):
        def measure(self, alternatives: Sequence[Mapping[Workload, Config]]) -> list[MeasureResult]:
            failed = MeasureResult("compile", "hardware", message="no code came of it")
            found = super().measure(alternatives)
            return [
                result if KERNELS[0] in choices else failed
                for choices, result in zip(alternatives, found, strict=True)
            ]

    broken = Broken([-0.1])
    assert KERNELS[0] in confirmed(broken, KERNELS, never).reverted
    assert versus(lambda: broken.measure([broken.untuned(), {}])).is_faster


TASKS = [TuningTask(Workload.parse(f"matmul m={m} n=64 k=48")) for m in (16, 512, 32)]


class Foretelling(Conversions):
    """Knows what the defaults take in the model; tuning makes it slower."""

    def measure_untuned(self) -> Mapping[Workload, Placed]:
        found = {}
        for task in TASKS:
            default = default_of(task.workload, TARGET)
            if task is TASKS[0]:  # in other layouts than it has by default
                default = next(c for c in space_of(task.workload, TARGET) if c != default)
            latency = float(judge(task.workload, TARGET, [default]).latency[0])
            found[task.workload] = default, MeasureResult("ok", "hardware", (1.1 * latency,))
        return found

    def kernels(
        self, choices: Mapping[Workload, Config]
    ) -> Sequence[tuple[Workload, Config, float]]:
        assert choices.keys() == self.untuned().keys()
        conversion = Workload.parse("layout_transform shape=1x16x4x4 src=NCHW dst=NCHW16c")
        kernels = [(w, config, 2.0) for w, config in choices.items()]
        return [*kernels, (conversion, Config.of(), 0.5)]

    def untuned(self) -> Mapping[Workload, Config]:
        return {task.workload: default_of(task.workload, TARGET) for task in TASKS}

    def measure(self, alternatives: Sequence[Mapping[Workload, Config]]) -> list[MeasureResult]:
        latencies = (1.0 - 0.1 * len(choices) for choices in alternatives)
        return [MeasureResult("ok", "hardware", (latency,) * 15) for latency in latencies]


def test_tasks_known_from_the_model_wait_until_they_matter() -> None:
    ledger, hardware = MemoryLedger(), NoisyHardware()
    options = TuneOptions(trials=12, time_limit_s=600)
    judging = Judging(judge, evaluator=Foretelling())
    summary = tune(TASKS, TARGET, ledger, [hardware], options, judging)
    assert summary.trials == 12 == len(hardware.measured), "what the model told is no trial"
    assert hardware.measured[0] == default_of(TASKS[1].workload, TARGET), "where most time goes"
    assert [task.trials for task in summary.tasks][1] >= 8
    assert all(task.default_s and task.best_s for task in summary.tasks)
    assert len(ledger.trials) >= 15, "but it is on record"
    assert summary.in_place.reverted == {task.workload for task in summary.tasks}
    choices = summary.in_place.choices
    for task in summary.tasks[1:]:
        assert choices[task.workload] == default_of(task.workload, TARGET) == task.default
    parts = summary.in_place.parts
    assert parts is not None and (parts.in_place_s, parts.added_s) == (4.0, 2.5)
    assert parts.alone_s == pytest.approx(sum(task.default_s or 0.0 for task in summary.tasks[1:]))


def test_a_job_with_foretold_tasks_resumes() -> None:
    class Killed(BaseException):
        pass

    class Mortal(MemoryLedger):
        def commit(self, entries: Sequence[object], state: object) -> None:
            super().commit(entries, state)  # type: ignore[arg-type]
            if len(self.trials) == 8:
                raise Killed

    mortal, options = Mortal(), TuneOptions(trials=30, time_limit_s=600)
    judging = Judging(judge, evaluator=Foretelling())
    with pytest.raises(Killed):
        tune(TASKS, TARGET, mortal, [NoisyHardware()], options, judging)
    again = MemoryLedger(job=mortal.trials, state=mortal.saved_state())
    summary = tune(TASKS, TARGET, again, [NoisyHardware()], options, judging)
    assert summary.trials == 30
    assert all(task.default_s and task.best_s for task in summary.tasks)
