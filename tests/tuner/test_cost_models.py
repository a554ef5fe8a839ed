"""Every cost model ranks held-out data, survives saving, and is deterministic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from tilesmith.search_space.support.errors import InputError
from tilesmith.tuner.cost_models.blend import Blend
from tilesmith.tuner.cost_models.gaussian_process import GaussianProcess
from tilesmith.tuner.cost_models.residual import DampedResidual
from tilesmith.tuner.learning.predictor import ValidityClassifier
from tilesmith.tuner.surrogates.compression import Compression
from tilesmith.tuner.surrogates.cost_model import (
    CostModel,
    Samples,
    centred_logs,
    cost_models,
    rank_agreement,
)


def data(seed: int, count: int, groups: int = 2) -> tuple[Samples, np.ndarray]:
    """Latencies that depend on features by a known law; the analytical model knows half of it."""
    rng = np.random.default_rng(seed)
    features = rng.random((count, 6)).astype(np.float32)
    group = np.arange(count) % groups
    known = 2.0 * features[:, 0] + (features[:, 1] - 0.5) ** 2 * 4
    hidden = 1.0 * (features[:, 2] > 0.6) + 0.5 * features[:, 3]
    latencies = 1e-4 * 10.0**group * np.exp(known + hidden + 0.02 * rng.standard_normal(count))
    return Samples(features, 1e-4 * 10.0**group * np.exp(known), group), latencies


@pytest.mark.parametrize("name", list(cost_models))
def test_models_rank_held_out_data(name: str) -> None:
    model = cost_models[name]()
    model.fit(*data(0, 300))
    held_out, latencies = data(1, 200)
    scores = model.predict(held_out)
    assert scores.shape == (200,) and np.isfinite(scores).all()
    assert rank_agreement(scores, latencies, held_out.groups) > 0.88


@pytest.mark.parametrize("name", list(cost_models))
def test_a_saved_model_predicts_the_same(name: str) -> None:
    kind: type[CostModel] = cost_models[name]
    model = kind()
    model.fit(*data(0, 100))
    held_out, _ = data(1, 50)
    again = kind.load(model.save())
    np.testing.assert_allclose(again.predict(held_out), model.predict(held_out), rtol=1e-6)
    with pytest.raises(InputError, match="not a saved"):
        kind.load("{broken")
    with pytest.raises(InputError, match="not a saved"):
        kind.load("{}")


@pytest.mark.parametrize("name", list(cost_models))
def test_fitting_is_deterministic_and_works_on_a_single_sample(name: str) -> None:
    held_out, _ = data(1, 30)
    first, second = cost_models[name](), cost_models[name]()
    first.fit(*data(0, 80))
    second.fit(*data(0, 80))
    np.testing.assert_array_equal(first.predict(held_out), second.predict(held_out))
    lonely = cost_models[name]()
    lonely.fit(*data(0, 1))
    assert np.isfinite(lonely.predict(held_out)).all()


@pytest.mark.parametrize("name", ["forest", "ensemble"])
def test_uncertainty_grows_away_from_the_data(name: str) -> None:
    model = cost_models[name]()
    samples, latencies = data(0, 200)
    model.fit(samples, latencies)
    spread = model.uncertainty(samples)
    assert spread is not None and (spread >= 0).all() and spread.max() > 0


def test_the_blend_starts_from_the_analytical_latency_where_it_is_shown() -> None:
    """A dozen measurements: what they do not tell is taken from the analytical latency."""
    held_out, latencies = data(1, 200)
    few, measured = data(0, 12)
    ranks = []
    for shown in (True, False):
        samples = [
            s if shown else replace(s, analytical=s.analytical * np.nan) for s in (few, held_out)
        ]
        model = Blend()
        model.fit(samples[0], measured)
        ranks.append(rank_agreement(model.predict(samples[1]), latencies, held_out.groups))
    assert ranks[0] > ranks[1] + 0.05


@pytest.mark.parametrize("noise, believed", [(0.02, 1.0), (3.0, 0.2)])
def test_the_blend_believes_a_pretrained_model_as_far_as_labels_follow_it(
    noise: float, believed: float
) -> None:
    samples, latencies = data(0, 60, groups=1)
    unknown = np.full(len(samples), np.nan)
    chance = np.random.default_rng(2).normal(size=len(samples))
    prior = np.log(latencies) + noise * chance
    model = Blend()
    model.fit(replace(samples, analytical=unknown, prior=prior), latencies)
    assert model._slope == pytest.approx(believed, abs=0.15)
    other = replace(samples, analytical=unknown, prior=prior + chance)
    loaded = Blend.load(model.save())
    np.testing.assert_allclose(loaded.predict(other), model.predict(other))


def test_the_residual_starts_at_the_analytical_ranking_and_improves_on_it() -> None:
    held_out, latencies = data(1, 300, groups=1)
    analytical = spearmanr(held_out.analytical, latencies).statistic
    untrained = DampedResidual()
    untrained.fit(*data(0, 2, groups=1))
    assert spearmanr(untrained.predict(held_out), latencies).statistic == pytest.approx(analytical)
    trained = DampedResidual()
    trained.fit(*data(0, 40, groups=1))
    assert spearmanr(trained.predict(held_out), latencies).statistic > analytical + 0.02


def test_centred_logs_have_mean_zero_in_each_group() -> None:
    groups = np.array([0, 0, 1, 1, 1])
    logs = centred_logs(np.array([1.0, 4.0, 10.0, 20.0, 40.0]), groups)
    assert logs[groups == 0].mean() == pytest.approx(0, abs=1e-12)
    assert logs[groups == 1].mean() == pytest.approx(0, abs=1e-12)
    assert logs[1] - logs[0] == pytest.approx(np.log(4))


def test_rank_agreement_counts_pairs_within_groups() -> None:
    latencies = np.array([1.0, 2.0, 3.0, 10.0])
    groups = np.array([0, 0, 0, 1])
    assert rank_agreement(np.array([1.0, 3.0, 2.0, 0.0]), latencies, groups) == pytest.approx(2 / 3)
    assert rank_agreement(np.zeros(4), latencies, groups) == 0.5
    assert rank_agreement(np.zeros(1), np.ones(1), np.zeros(1)) == 0.5


def test_the_validity_classifier_learns_which_regions_fail() -> None:
    rng = np.random.default_rng(0)
    features = rng.random((200, 3)).astype(np.float32)
    failed = features[:, 0] > 0.7
    model = ValidityClassifier()
    model.fit(features[:6], failed[:6])
    assert (model.failure_probability(features) == 0).all(), "too little is known"
    model.fit(features[:150], failed[:150])
    right = (model.failure_probability(features[150:]) > 0.5) == failed[150:]
    assert right.mean() > 0.95
    again = ValidityClassifier.load(model.save())
    expected = model.failure_probability(features)
    np.testing.assert_allclose(again.failure_probability(features), expected, rtol=1e-6)
    with pytest.raises(InputError, match="not a saved"):
        ValidityClassifier.load('{"kind": "forest"}')


def test_compression_keeps_the_order_and_what_is_fast() -> None:
    rng = np.random.default_rng(0)
    groups = np.arange(200) % 2
    latencies = np.exp(rng.normal(size=200) + 5.0 * groups)
    compression = Compression.of(latencies, groups)
    labels, logs = compression.labels(latencies, groups), centred_logs(latencies, groups)
    for group in (0, 1):
        mine = groups == group
        assert (np.argsort(labels[mine]) == np.argsort(logs[mine])).all()
        same = np.isclose(labels[mine], logs[mine])
        assert same.sum() == 30 and same[np.argsort(latencies[mine])[:30]].all()
        assert np.ptp(labels[mine]) < 0.7 * np.ptp(logs[mine])
    other = np.array([9, 9])
    np.testing.assert_array_equal(compression.compressed(np.array([0.0, 7.0]), other), [0.0, 7.0])


def test_the_process_uses_knobs_where_features_do_not_tell() -> None:
    rng = np.random.default_rng(0)
    features = rng.random((120, 4)).astype(np.float32)
    knobs = rng.integers(0, 5, (120, 2)).astype(np.float32)
    latencies = np.exp(features[:, 0] + 0.3 * np.abs(knobs[:, 0] - 2))
    samples = Samples(features, np.full(120, np.nan), np.zeros(120, np.int64), None, knobs)
    early, late = np.arange(60), np.arange(60, 120)
    found = []
    for seen in (samples, replace(samples, knobs=None)):
        model = GaussianProcess()
        model.fit(seen.take(early), latencies[early])
        scores = model.predict(seen.take(late))
        found.append(rank_agreement(scores, latencies[late], seen.groups[late]))
    assert found[0] > 0.85 > found[1] + 0.05
