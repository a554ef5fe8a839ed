"""The predictor: analytical before training, learned after, failures shunned, features kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from problems import TARGET, judge, refused

from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import choice, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import Judgement
from tilesmith.tuner.cost_models.residual import DampedResidual
from tilesmith.tuner.learning.predictor import Predictor
from tilesmith.tuner.surrogates.knob_features import BareKnobs, KnobColumns
from tilesmith.tuner.tasks.cancel import Cancelled
from tilesmith.tuner.tasks.feature_source import JudgedFeatures, KnobFeatures
from tilesmith.tuner.tasks.task import Trial, TuningState, TuningTask

WORKLOAD = Workload.parse("matmul m=128 n=128 k=128 const=b")
OTHER = Workload.parse("matmul m=64 n=64 k=64 const=b")


def state(workload: Workload = WORKLOAD) -> TuningState:
    return TuningState(
        TuningTask(workload),
        space_of(workload, TARGET),
        default_of(workload, TARGET),
        "hardware",
        np.random.default_rng(0),
    )


def measured(configs: Sequence[Config], seconds: Sequence[float]) -> list[Trial]:
    return [
        Trial(WORKLOAD, config, MeasureResult("ok", "hardware", (latency,)))
        for config, latency in zip(configs, seconds, strict=True)
    ]


def test_scores_start_as_the_logarithm_of_the_analytical_latency() -> None:
    searched = state()
    configs = searched.space.sample(np.random.default_rng(1), 20)
    informed = Predictor(JudgedFeatures(judge, TARGET), DampedResidual)
    np.testing.assert_allclose(
        informed.score(searched, configs), np.log(judge(WORKLOAD, TARGET, configs).latency)
    )
    blind = Predictor(JudgedFeatures(judge, TARGET, analytical=False), DampedResidual)
    assert (blind.score(searched, configs) == 0).all(), "the label must not leak"
    knobs = Predictor(KnobFeatures(), DampedResidual)
    assert (knobs.score(searched, configs) == 0).all()
    assert len(informed.score(searched, [])) == 0


def test_equal_features_are_equal_behaviour_only_where_the_judge_measures() -> None:
    searched = state()
    configs = searched.space.sample(np.random.default_rng(1), 200)
    features = judge(WORKLOAD, TARGET, configs).features
    met = JudgedFeatures(judge, TARGET, analytical=False).behaviour(searched, configs)
    assert len(set(met)) == len(np.unique(features, axis=0)) < len(set(configs))
    for source in (JudgedFeatures(judge, TARGET), KnobFeatures()):
        assert len(set(source.behaviour(searched, configs))) == len(set(configs))


def test_features_that_tell_the_label_are_hidden() -> None:
    def telling(workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
        judged = judge(workload, target, configs)
        rows = np.column_stack([judged.features, np.log(judged.latency)]).astype(np.float32)
        return Judgement(judged.latency, rows, judged.bound, (rows.shape[1] - 1,))

    searched = state()
    configs = searched.space.sample(np.random.default_rng(1), 8)
    shown = JudgedFeatures(telling, TARGET).describe(searched, configs).features
    blind = JudgedFeatures(telling, TARGET, analytical=False)
    hidden = blind.describe(searched, configs).features
    np.testing.assert_array_equal(hidden, shown[:, :-1])


def test_what_is_learned_on_one_shape_helps_another() -> None:
    """The machine is ten times slower on unpacked operands, which the analytical model denies."""
    first, second = state(), state(OTHER)
    predictor = Predictor(JudgedFeatures(judge, TARGET), DampedResidual)

    def seconds(workload: Workload, configs: Sequence[Config]) -> list[float]:
        slow = np.array([10.0 if config["pack_b"] == "none" else 1.0 for config in configs])
        return list(judge(workload, TARGET, configs).latency * slow)

    configs = first.space.sample(np.random.default_rng(2), 60)
    predictor.remember(first, measured(configs, seconds(WORKLOAD, configs)))
    predictor.train_if_due()
    held_out = second.space.sample(np.random.default_rng(3), 60)
    ratio = predictor.score(second, held_out) - np.log(judge(OTHER, TARGET, held_out).latency)
    unpacked = np.array([config["pack_b"] == "none" for config in held_out])
    assert ratio[unpacked].min() > ratio[~unpacked].max() + 0.5


def test_what_fails_again_and_again_is_shunned_and_rejected_ones_come_last() -> None:
    searched = state()
    predictor = Predictor(JudgedFeatures(judge, TARGET), DampedResidual)
    configs = list(dict.fromkeys(searched.space.sample(np.random.default_rng(4), 80)))
    seconds = judge(WORKLOAD, TARGET, configs).latency
    trials = [
        Trial(WORKLOAD, c, MeasureResult("compile", "hardware", message="refused"))
        if c.integer("m_tile") > 10
        else Trial(WORKLOAD, c, MeasureResult("ok", "hardware", (s,)))
        for c, s in zip(configs, seconds.tolist(), strict=True)
    ]
    predictor.remember(searched, trials)
    before = predictor.score(searched, configs)
    predictor.train()
    rise = predictor.score(searched, configs) - before
    failing = np.array([config.integer("m_tile") > 10 for config in configs])
    assert rise[failing].mean() > rise[~failing].mean() + 1.0

    def rejecting(workload: Workload, target: Target, asked: Sequence[Config]) -> Judgement:
        return refused(judge(workload, target, asked), range(0, len(asked), 2))

    strict = Predictor(JudgedFeatures(rejecting, TARGET), DampedResidual)
    scores = strict.score(searched, configs)
    assert scores[0::2].min() > scores[1::2].max()


def test_features_of_a_configuration_are_computed_once() -> None:
    asked: list[Config] = []

    def counting(workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
        asked.extend(configs)
        return judge(workload, target, configs)

    searched = state()
    predictor = Predictor(JudgedFeatures(counting, TARGET), DampedResidual)
    configs = list(dict.fromkeys(searched.space.sample(np.random.default_rng(5), 30)))
    once = predictor.score(searched, configs)
    twice = predictor.score(searched, [*configs, configs[3]])
    np.testing.assert_array_equal(twice[:-1], once)
    assert twice[-1] == once[3] and len(asked) == len(configs)


def test_judging_ahead_is_ended_between_pieces_of_known_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, pieces, judged = 0.0, [], list[Config]()

    def slow(workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
        nonlocal now
        now += 0.02 * len(configs)
        pieces.append(len(configs))
        judged.extend(configs)
        return judge(workload, target, configs)

    def ending() -> None:
        if now >= 2.0:
            raise Cancelled

    monkeypatch.setattr("tilesmith.tuner.tasks.feature_source.time.monotonic", lambda: now)
    searched, source = state(), JudgedFeatures(slow, TARGET)
    configs = list(dict.fromkeys(searched.space.sample(np.random.default_rng(5), 600)))
    source.judge_ahead(searched, configs[:90], ending)
    with pytest.raises(Cancelled):
        source.judge_ahead(searched, configs, ending)
    assert max(pieces) * 0.02 <= 0.7 and now <= 2.7
    count = len(judged)
    features = source.describe(searched, judged[:count]).features
    assert sum(pieces) == count, "what was judged until then is kept"
    np.testing.assert_array_equal(features, judge(WORKLOAD, TARGET, judged[:count]).features)


def test_accuracy_is_that_of_the_scores_trials_were_chosen_by() -> None:
    searched = state()
    predictor = Predictor(JudgedFeatures(judge, TARGET), DampedResidual)
    assert predictor.accuracy(searched) is None
    configs = list(dict.fromkeys(searched.space.sample(np.random.default_rng(6), 30)))
    right = judge(WORKLOAD, TARGET, configs).latency
    predictor.remember(searched, measured(configs, right.tolist()))
    assert predictor.accuracy(searched) == pytest.approx(1.0, abs=0.01)
    wrong = Predictor(JudgedFeatures(judge, TARGET), DampedResidual)
    wrong.remember(searched, measured(configs, (1 / right).tolist()))
    assert wrong.accuracy(searched) == pytest.approx(0.0, abs=0.1)


def test_an_untrained_predictor_can_be_told_never_to_learn() -> None:
    searched = state()
    predictor = Predictor(JudgedFeatures(judge, TARGET), DampedResidual, learning=False)
    configs = searched.space.sample(np.random.default_rng(7), 30)
    before = predictor.score(searched, configs)
    predictor.remember(searched, measured(configs, np.linspace(1, 2, 30).tolist()))
    predictor.train()
    np.testing.assert_array_equal(predictor.score(searched, configs), before)


def test_bare_knobs_tell_how_often_two_divides_them() -> None:
    knobs = (tile("x", (0, 16, 24, 96, 512)), tile("y", (1, 2, 4)), choice("z", ("a", "b")))
    space = SearchSpace((Subspace((), knobs),))
    configs = [Config.of(x=x, y=4, z="a") for x in (0, 16, 24, 96, 512)]
    rows = BareKnobs.of(space).rows(configs)
    assert rows.shape == (5, KnobColumns.of(space).rows(configs).shape[1] + 1)
    assert rows[:, -1].tolist() == [0, 4, 3, 5, 7]  # y's logarithm tells its own
