"""What a judge promises of a task, and what is made of it: the first trials, and shares of them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from problems import TARGET, WORKLOAD, cost, ok, state

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.judgement import Judgement
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import layout, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.dispatch import judge
from tilesmith.tuner.cost_models.residual import DampedResidual
from tilesmith.tuner.learning.learning import Judging
from tilesmith.tuner.learning.predictor import Predictor
from tilesmith.tuner.measurement.runner import RunnerOptions
from tilesmith.tuner.runners.simulator import SimulatorRunner
from tilesmith.tuner.search.forecast import Forecast, forecast_of, structure_of, structures, untried
from tilesmith.tuner.search.task_search import TaskSearch, opened_state
from tilesmith.tuner.session.session import tune
from tilesmith.tuner.strategies.random_search import RandomSearch
from tilesmith.tuner.tasks.feature_source import JudgedFeatures
from tilesmith.tuner.tasks.ledger import MemoryLedger
from tilesmith.tuner.tasks.options import TuneOptions
from tilesmith.tuner.tasks.scheduler import TaskProgress, schedulers
from tilesmith.tuner.tasks.task import Trial, TuningState, TuningTask

CONV = Workload.parse("conv2d c=32 h=14 w=14 oc=32 kh=3 kw=3 pad=1 const=weight")
POINTWISE = Workload.parse("conv2d c=64 h=14 w=14 oc=64 kh=1 kw=1 const=weight")


def judged_state(*seconds: tuple[str, str, float]) -> TuningState:
    """A task of small structures, and the seconds that a judge tells of the best of each."""
    knobs = (tile("x", range(1, 9)),)
    subspaces = [
        Subspace((("algorithm", name), ("input_layout", lay), ("output_layout", lay)), knobs)
        for name, lay, _ in seconds
    ]
    known = {(name, lay): s for name, lay, s in seconds}

    def judged(configs: Sequence[Config]) -> np.ndarray:
        return np.array(
            [
                math.log(known[c.text("algorithm"), c.text("input_layout")])
                + 0.1 * abs(c.integer("x") - 5)
                for c in configs
            ]
        )

    searched = state(0, SearchSpace(tuple(subspaces)))
    searched.judged = judged
    return searched


def test_the_best_of_each_structure_is_sought_by_the_judge() -> None:
    searched = judged_state(("a", "NCHW", 3.0), ("b", "NCHW", 1.0), ("b", "NHWC", 2.0))
    forecast = forecast_of(searched)
    assert [(c["algorithm"], c["input_layout"], c["x"]) for c, _ in forecast.bests] == [
        ("b", "NCHW", 5), ("b", "NHWC", 5), ("a", "NCHW", 5)
    ]  # fmt: skip
    assert [score for _, score in forecast.bests] == pytest.approx(np.log([1.0, 2.0, 3.0]))
    assert forecast.default == pytest.approx(math.log(3.0) + 0.4)
    searched.rng = np.random.default_rng(77)
    assert forecast_of(searched) == forecast, "whatever the search drew in between"
    assert Forecast.load(json.loads(json.dumps(forecast.save()))) == forecast


def test_structures_are_the_space_cut_by_algorithm_and_layouts() -> None:
    knobs = (layout("input_layout", ("NCHW", "NHWC")), tile("x", range(1, 4)))
    one = Subspace((("algorithm", "one"), ("output_layout", "NCHW")), knobs)
    two = Subspace((("algorithm", "two"), ("output_layout", "NCHW")), knobs)
    searched = state(0, SearchSpace((one, two)))
    parts = structures(searched)
    assert set(parts) == {(a, (i, "NCHW")) for a in ("one", "two") for i in ("NCHW", "NHWC")}
    for structure, part in parts.items():
        assert {structure_of(searched, config) for config in part} == {structure}
    assert sorted(c.key for part in parts.values() for c in part) == sorted(
        c.key for c in searched.space
    )


def test_doubt_tells_what_is_hopeless_and_results_tell_what_is_left() -> None:
    searched = judged_state(("a", "NCHW", 1.0), ("b", "NCHW", 1.3), ("c", "NCHW", 2.0))
    forecast = forecast_of(searched)
    names = [[c["algorithm"] for c in forecast.promising(doubt)] for doubt in (0.0, 0.2, 0.4)]
    assert names == [["a"], ["a", "b"], ["a", "b", "c"]]
    promising = forecast.promising(0.2)
    assert untried(searched, promising) == promising
    searched.add([Trial(WORKLOAD, searched.default, ok(1.0))])
    assert untried(searched, promising) == promising, "the untuned schedule is no trial of it"
    searched.add([Trial(WORKLOAD, Config.of({**dict(promising[0]), "x": 2}), ok(1.0))])
    assert untried(searched, promising) == promising[1:]
    searched.pending = {promising[1]}
    assert untried(searched, promising) == []


@pytest.mark.parametrize(
    ("gain", "realised", "doubt"), [(0.5, 0.0, 0.1), (0.2, 0.3, 0.2), (0.0, 0.0, 0.15)]
)
def test_headroom_is_the_mean_of_what_is_above_nothing(
    gain: float, realised: float, doubt: float
) -> None:
    forecast = Forecast(((Config.of(x=1), -gain),), 0.0)
    drawn = gain - realised + doubt * np.random.default_rng(0).standard_normal(400_000)
    expected = np.maximum(drawn, 0).mean()
    assert forecast.headroom(realised, doubt) == pytest.approx(expected, rel=0.02)


def test_trials_go_where_gain_is_foretold_and_not_where_time_is_spent() -> None:
    def progress(seconds: float, headroom: float | None, trials: int = 1) -> TaskProgress:
        return TaskProgress(
            1.0, "conv2d", 10**9, trials, float(trials), 1, (seconds,), headroom=headroom
        )

    scheduler = schedulers["expected_gain"]()
    assert scheduler.choose([progress(9e-3, 0.02), progress(1e-3, 0.9)]) == 1
    assert scheduler.choose([progress(9e-3, 0.2), progress(1e-3, 0.9)]) == 0
    assert scheduler.choose([progress(9e-3, 0.02, trials=9), progress(9e-3, 0.02)]) == 1
    fast = progress(1e-4, 0.02, trials=9)  # ten times the effective speed by another algorithm
    assert scheduler.choose([fast, progress(1e-3, 0.02, 9), progress(1.1e-3, 0.02, 9)]) == 2


def test_a_promise_that_many_trials_have_not_kept_counts_for_little() -> None:
    searched = judged_state(("direct", "a", 2.0), ("fast", "a", 1.0))
    task = TaskSearch(searched, RandomSearch(), [], 0)
    unforeseen = task.progress().headroom
    assert unforeseen is not None and 0 < unforeseen < math.log(2), "less than a foretold gain"
    task.foresee()
    expected = []
    for _ in range(4):
        expected.append(task.progress().headroom or 0.0)
        task.note([Trial(WORKLOAD, searched.default, ok(1.0))] * 8, 8.0)
    assert expected[0] == pytest.approx(task.forecast.headroom(0.0, searched.doubt()))
    assert [expected[0] / one for one in expected] == pytest.approx([1, 2, 3, 4])
    blind = TaskSearch(replace(searched, judged=None), RandomSearch(), [], 0)
    assert blind.progress().headroom is None, "nobody can be asked"


def test_doubt_begins_with_what_is_usual_and_becomes_what_is_seen() -> None:
    searched = state(0)
    configs = list(searched.space)[:200]

    def as_judged(_: Workload, __: Target, asked: Sequence[Config]) -> Judgement:
        latency = np.array([cost(config) for config in asked])
        return Judgement(latency, np.zeros((len(asked), 2), np.float32), [""] * len(asked), ())

    usual = Predictor(JudgedFeatures(as_judged, TARGET), DampedResidual)
    for error in (0.05, 0.6):
        predictor = Predictor(JudgedFeatures(as_judged, TARGET), DampedResidual)
        noise = np.random.default_rng(1).standard_normal(len(configs))
        times = [3.0 * cost(c) * math.exp(error * e) for c, e in zip(configs, noise, strict=True)]
        predictor.remember(
            searched, [Trial(WORKLOAD, c, ok(t)) for c, t in zip(configs, times, strict=True)]
        )
        seen = math.sqrt(2) * error
        assert predictor.doubt(searched) == pytest.approx(seen, rel=0.25)
        assert (predictor.doubt(searched) < usual.doubt(searched)) == (seen < math.sqrt(2) * 0.15)


def test_the_first_trials_of_a_task_are_its_promising_structures_fastest_first() -> None:
    ledger = MemoryLedger()
    tasks = [TuningTask(CONV), TuningTask(POINTWISE)]
    runner, judging = SimulatorRunner(RunnerOptions(TARGET, judge=judge)), Judging(judge, False)
    tune(tasks, TARGET, ledger, [runner], TuneOptions(trials=24), judging)
    for workload in (CONV, POINTWISE):
        mine = [t.config for t in ledger.trials if t.workload == workload]
        searched = opened_state(TuningTask(workload), TARGET, "simulator", 0, ledger)
        searched.judged = lambda configs, w=workload: np.log(judge(w, TARGET, configs).latency)  # type: ignore[misc]
        promising = forecast_of(searched).promising(math.sqrt(2) * 0.15)
        assert mine[0] == searched.default
        first = [config for config in promising if config != mine[0]]
        assert len(first) >= 2 and mine[1:3] == first[:2]
        assert workload != CONV or len(promising) < len(structures(searched)), "some are hopeless"
