"""Pretrained models: stamped, refused when stale, used from the first batch, dropped when wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from problems import TARGET, judge

from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.cost_models.blend import Blend
from tilesmith.tuner.learning.predictor import Predictor
from tilesmith.tuner.pretrained import pretrained as module
from tilesmith.tuner.pretrained.learners import Ensemble, NeuralNetwork
from tilesmith.tuner.pretrained.pretrained import Pretrained, reference, relative, usual
from tilesmith.tuner.surrogates.knob_features import KnobColumns
from tilesmith.tuner.tasks.feature_source import JudgedFeatures
from tilesmith.tuner.tasks.task import Trial, TuningState, TuningTask

WORKLOAD = Workload.parse("matmul m=128 n=128 k=128 const=b")
COLUMNS = 7
"""Features that `problems.judge` gives."""


def state(workload: Workload = WORKLOAD) -> TuningState:
    space = space_of(workload, TARGET)
    default = default_of(workload, TARGET)
    return TuningState(TuningTask(workload), space, default, "simulator", np.random.default_rng(0))


class Known(Pretrained):
    """Says what a function of the features says."""

    def __init__(self, sign: float) -> None:
        self.columns = COLUMNS
        self.sign = sign

    def predict(
        self,
        features: NDArray[np.float32],
        usually: NDArray[np.float32],
        configs: Sequence[Config],
        analytical: NDArray[np.float64],
    ) -> np.ndarray:
        assert usually.shape == (2, COLUMNS) and len(configs) == len(features)
        area, spills = features[:, 5], features[:, 6]
        return self.sign * np.log(1 + (1 - area / 30) ** 2 + 0.4 * spills).astype(np.float64)


def small_model() -> Pretrained:
    rng = np.random.default_rng(0)
    knobs = KnobColumns.met(state().space.sample(rng, 200))
    width = 3 * COLUMNS + knobs.rows([state().default]).shape[1]
    networks = [
        NeuralNetwork.of(
            [rng.standard_normal((width, 8)), rng.standard_normal((8, 1))],
            [rng.standard_normal(8), rng.standard_normal(1)],
        )
        for _ in range(2)
    ]
    ensemble = Ensemble.of(rng.random(width), 0.1 + rng.random(width), networks)
    return Pretrained(ensemble, COLUMNS, knobs)


def trials(configs: Sequence[Config]) -> list[Trial]:
    seconds = judge(WORKLOAD, TARGET, configs).latency.tolist()
    return [
        Trial(WORKLOAD, c, MeasureResult("ok", "simulator", (s,)))
        for c, s in zip(configs, seconds, strict=True)
    ]


def test_a_saved_model_predicts_the_same() -> None:
    model = small_model()
    again, stale = Pretrained.parsed(model.to_text({"family": "test"}), "m")
    assert again is not None and stale == [] and again.columns == COLUMNS
    rng = np.random.default_rng(1)
    features, usually = rng.random((20, COLUMNS), np.float32), rng.random((2, COLUMNS), np.float32)
    configs = state().space.sample(rng, 20)
    expected = model.predict(features, usually, configs, np.ones(20))
    np.testing.assert_array_equal(again.predict(features, usually, configs, np.ones(20)), expected)


def test_a_model_of_another_version_is_reported_and_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = small_model().to_text({})
    monkeypatch.setattr(module, "SIMULATOR", "of another time")
    assert Pretrained.parsed(text, "m") == (None, ["simulator"])


@pytest.mark.parametrize("end", ["", "[1]", '{"versions": 3}', "half"])
def test_what_is_no_model_is_refused(end: str) -> None:
    text = small_model().to_text({})[:2000] if end == "half" else end
    with pytest.raises(InputError, match="'m' is not a pretrained cost model"):
        Pretrained.parsed(text, "m")


def test_the_reference_of_a_space_is_always_the_same() -> None:
    space = state().space
    first, again = reference(space, WORKLOAD), reference(space, WORKLOAD)
    np.testing.assert_array_equal(first.rows, again.rows)


def test_features_are_compared_with_the_usual_in_units_of_its_spread() -> None:
    usually = usual(np.array([[0, 1], [4, 1]], np.float32))
    np.testing.assert_allclose(usually, [[2, 1], [2, 0.1]], rtol=1e-6)
    rows = relative(np.array([[3, 2]], np.float32), usually)
    np.testing.assert_allclose(rows, [[3, 2, 1, 1, 0.5, 10]], rtol=1e-6)


def test_knobs_keep_their_columns_and_strangers_are_passed_over() -> None:
    columns = KnobColumns.met([Config.of(tile=3, order="ab"), Config.of(order="ba", other="x")])
    again = KnobColumns.from_json(columns.to_json())
    asked = [Config.of(tile=7, order="ba", unheard=5), Config.of(order="cd", other=2)]
    np.testing.assert_array_equal(again.rows(asked), columns.rows(asked))
    np.testing.assert_array_equal(columns.rows(asked), [[0, 1, 0, 3], [0, 0, 0, -1]])
    with pytest.raises(ValueError, match="not knob columns"):
        KnobColumns.from_json("[1]")


def test_scores_start_from_the_pretrained_model_and_features_it_knows_only() -> None:
    searched = state()
    configs = searched.space.sample(np.random.default_rng(1), 20)
    source = JudgedFeatures(judge, TARGET, analytical=False)
    known = Predictor(source, Blend, prior=Known(1.0))
    features = source.describe(searched, configs).features
    expected = Known(1.0).predict(
        features, np.zeros((2, COLUMNS), np.float32), configs, np.ones(20)
    )
    np.testing.assert_allclose(known.score(searched, configs), expected)
    narrow = Known(1.0)
    narrow.columns = COLUMNS + 1
    assert (Predictor(source, Blend, prior=narrow).score(searched, configs) == 0).all()


@pytest.mark.parametrize("trusted", [True, False])
def test_a_model_that_ranks_worse_than_a_fresh_one_is_left_out(trusted: bool) -> None:
    searched = state()
    source = JudgedFeatures(judge, TARGET, analytical=False)
    predictor = Predictor(source, Blend, prior=Known(1.0))
    noise = np.random.default_rng(5)
    configs = list(dict.fromkeys(searched.space.sample(np.random.default_rng(2), 60)))
    if not trusted:  # noise, which a model with it fits at the cost of what can be learned
        wild = Known(1.0)
        wild.predict = lambda features, usually, configs, analytical: (
            9.0 * noise.standard_normal(len(features))
        )  # type: ignore[method-assign]
        predictor = Predictor(source, Blend, prior=wild)
    predictor.remember(searched, trials(configs))
    predictor.train()
    memory = next(iter(predictor._memories.values()))
    assert isinstance(memory.model, Blend) and memory.tested == 48
    assert memory.trusted == trusted
    held_out = searched.space.sample(np.random.default_rng(3), 200)
    ranks = np.argsort(np.argsort(predictor.score(searched, held_out)))
    true = np.argsort(np.argsort(judge(WORKLOAD, TARGET, held_out).latency))
    assert np.corrcoef(ranks, true)[0, 1] > 0.8


def test_the_test_depends_on_the_first_trials_alone() -> None:
    configs = list(dict.fromkeys(state().space.sample(np.random.default_rng(2), 70)))

    def fitted(steps: Sequence[int]) -> Predictor:
        searched = state()
        source = JudgedFeatures(judge, TARGET, analytical=False)
        predictor = Predictor(source, Blend, prior=Known(-1.0))
        for start, stop in zip((0, *steps), steps, strict=False):
            predictor.remember(searched, trials(configs[start:stop]))
            predictor.train()
        return predictor

    once, often = fitted((70,)), fitted((5, 23, 30, 55, 70))
    searched = state()
    np.testing.assert_array_equal(
        once.score(searched, configs[:20]), often.score(searched, configs[:20])
    )
    assert once.fitted == often.fitted
