"""What a cost model learns of a machine that changes its pace, and of runs that were aborted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np
import pytest
from problems import TARGET, state

from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.tuner.learning.pace import PaceLog
from tilesmith.tuner.learning.predictor import Predictor
from tilesmith.tuner.measurement.runner import RunnerOptions
from tilesmith.tuner.runners.simulator import SimulatorRunner
from tilesmith.tuner.surrogates.cost_model import CostModel, Floats, Samples
from tilesmith.tuner.tasks.feature_source import KnobFeatures
from tilesmith.tuner.tasks.task import Trial


class Notebook(CostModel):
    """A model that learns by heart; `seen` holds the latencies it was given last."""

    name = "notebook"
    seen: Floats

    def fit(self, samples: Samples, latencies: Floats) -> None:
        self.seen = latencies

    def predict(self, samples: Samples) -> Floats:
        return np.zeros(len(samples))

    def save(self) -> str:
        raise NotImplementedError

    @classmethod
    def load(cls, text: str) -> CostModel:
        raise NotImplementedError


def learned(
    times: list[float], looks: Mapping[int, float], killed_after: int | None = None
) -> Floats:
    """What a model is given of trials of these seconds, the baseline looked at after some."""
    searched = state(0)
    configs = searched.space.sample(np.random.default_rng(1), len(times))
    trials = [
        Trial(searched.task.workload, config, MeasureResult("ok", "simulator", (seconds,)))
        for config, seconds in zip(configs, times, strict=True)
    ]
    runner = SimulatorRunner(RunnerOptions(TARGET))
    model, predictor, log = _fresh()
    for number, trial in enumerate(trials, start=1):
        predictor.remember(searched, [trial], log.now)
        if number in looks:
            runner.looks, runner.pace = runner.looks + 1, looks[number]
            log.follow(runner)
        if number == killed_after:
            saved = json.loads(json.dumps(log.looks))
            model, predictor, log = _fresh()
            for earlier in trials[:number]:
                predictor.remember(searched, [earlier], log.now)
                log.replay(saved)
            log.restart()
            runner = SimulatorRunner(RunnerOptions(TARGET))
    predictor.train()
    return model.seen


def _fresh() -> tuple[Notebook, Predictor, PaceLog]:
    model = Notebook()
    predictor = Predictor(KnobFeatures(), lambda: model)
    return model, predictor, PaceLog(predictor)


TIMES = [1.0] * 10 + [1.3] * 30
LOOKS = {10: 1.0, 20: 1.3, 30: 1.31, 40: 1.3}


def test_latencies_are_learned_without_the_drift() -> None:
    """Ten trials lie between the looks that saw the change: half of it is taken off them."""
    expected = [1.0] * 10 + [math.sqrt(1.3)] * 10 + [1.0] * 20
    assert learned(TIMES, LOOKS) == pytest.approx(expected)


def test_a_steady_machine_is_believed_as_it_is() -> None:
    assert learned([1.0] * 30, {10: 1.01, 20: 0.98, 30: 1.02}) == pytest.approx(np.ones(30))


def test_a_resumed_job_learns_the_same_of_what_came_before() -> None:
    """The new runner finds its own baseline as slow as it is: what it measures counts as it is."""
    times = TIMES[:35]
    resumed = learned(times, LOOKS, killed_after=35)
    assert resumed == pytest.approx(learned(times, LOOKS))


def test_of_an_aborted_run_the_lower_bound_is_learned_and_of_a_crash_nothing() -> None:
    searched = state(0)
    configs = searched.space.sample(np.random.default_rng(1), 3)
    results = [
        MeasureResult("ok", "simulator", (1e-3, 1e-3)),
        MeasureResult("slow", "simulator", (3.5e-3, 3e-3), "three times the best"),
        MeasureResult("crash", "simulator", (), "signal 11"),
    ]
    model, predictor, _ = _fresh()
    pairs = zip(configs, results, strict=True)
    predictor.remember(
        searched, [Trial(searched.task.workload, config, result) for config, result in pairs]
    )
    predictor.train()
    assert model.seen.tolist() == [1e-3, 3e-3]
