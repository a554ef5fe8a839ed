"""Expected improvement against sampling, and batches that spread over what is promising."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from tilesmith.tuner.cost_models.gaussian_process import GaussianProcess
from tilesmith.tuner.surrogates.acquisition import batch_by_improvement, log_expected_improvement
from tilesmith.tuner.surrogates.cost_model import Joint, Samples


@pytest.mark.parametrize("mean", [-1.0, 0.0, 0.7, 2.0])
def test_expected_improvement_is_the_mean_gain_of_draws(mean: float) -> None:
    draws = np.random.default_rng(0).normal(mean, 0.8, 400_000)
    gain = np.maximum(0.3 - draws, 0.0).mean()
    found = log_expected_improvement(np.array([mean]), np.array([0.8]), 0.3)
    assert np.exp(found[0]) == pytest.approx(gain, rel=0.03)


def test_hopeless_candidates_are_still_told_apart() -> None:
    far = log_expected_improvement(np.array([5.9, 6.1, 50.0, 500.0]), np.ones(4), 0.0)
    assert np.isfinite(far).all() and (np.diff(far) < 0).all()


def test_a_batch_spreads_over_likes_and_takes_the_best_score_in_turn() -> None:
    same = np.array([1.0, 1.0, 0.0, 0.0])

    def covariance(number: int) -> np.ndarray:
        return 0.04 * (same == same[number])

    joint = Joint(np.array([-1.0, -0.99, -0.5, -0.49]), np.full(4, 0.2), covariance)
    assert batch_by_improvement(joint, 0.0, 2, greedy=9) == [0, 2], "1 is known once 0 is"
    assert batch_by_improvement(joint, 0.0, 9, greedy=9)[:2] == [0, 2]
    assert sorted(batch_by_improvement(joint, 0.0, 9, greedy=2)) == [0, 1, 2, 3]
    unsure = Joint.independent(np.array([0.0, 0.5, -0.1]), np.array([0.1, 5.0, 0.1]))
    assert batch_by_improvement(unsure, 0.0, 2, greedy=9) == [1, 2]
    assert batch_by_improvement(unsure, 0.0, 1, greedy=1) == [2]


def test_a_process_covaries_as_its_deviations_say() -> None:
    rng = np.random.default_rng(0)
    features = rng.random((60, 3)).astype(np.float32)
    groups = np.zeros(60, np.int64)
    model = GaussianProcess()
    latencies = np.exp(features[:30].sum(axis=1).astype(np.float64))
    model.fit(Samples(features[:30], np.full(30, np.nan), groups[:30]), latencies)
    asked = Samples(features, np.full(60, np.nan), groups)
    joint = model.joint(asked)
    mean, deviation = model.estimate(asked)
    np.testing.assert_allclose(joint.mean, mean)
    diagonal = [joint.covariance(number)[number] for number in range(60)]
    np.testing.assert_allclose(diagonal, deviation**2, rtol=1e-3, atol=1e-9)
    assert joint.covariance(40)[45] == pytest.approx(joint.covariance(45)[40], rel=1e-6)
    assert deviation[:30].max() < deviation[30:].mean(), "what was measured leaves less doubt"
    truth = features[30:].sum(axis=1)
    assert spearmanr(mean[30:], truth).statistic > 0.95, "it extrapolates; labels are compressed"
