"""Whole models estimated from operators added up: exact where the law holds."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.exploration.correction import corrected


def test_a_power_law_is_found() -> None:
    rng = np.random.default_rng(0)
    numbers = np.exp(rng.uniform(0, 3, (200, 3)))
    added = np.exp(rng.uniform(3, 5, 200))
    true = added * 0.4 * numbers[:, 0] ** 0.2 * numbers[:, 2] ** -0.1
    played = {n: float(true[n]) for n in range(14)}
    found = corrected(numbers, added, played)
    assert found.latency_us == pytest.approx(true, rel=0.03)
    assert found.error < 0.02
    assert [found.latency_us[n] for n in played] == list(played.values())


def test_few_played_give_their_mean_ratio() -> None:
    added = np.array([100.0, 200.0, 400.0])
    found = corrected(np.array([[1.0], [2.0], [4.0]]), added, {0: 50.0})
    assert found.latency_us == pytest.approx(added / 2)
    assert np.isnan(found.error)


def test_none_played_leaves_sums_and_what_does_not_fit_stays() -> None:
    added = np.array([100.0, np.nan])
    assert corrected(np.ones((2, 1)), added, {}).latency_us[0] == 100.0
    found = corrected(np.ones((2, 1)), added, {0: 80.0})
    assert np.isnan(found.latency_us[1])
