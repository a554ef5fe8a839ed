"""Whole models estimated from operators added up: exact where the law holds."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.capabilities.exploration.findings import corrected


def test_slopes_below_and_above_the_base_are_found() -> None:
    rng = np.random.default_rng(0)
    numbers = np.exp(rng.uniform(0, 3, (200, 3)))
    added = np.exp(rng.uniform(3, 5, 200))
    away = np.log(numbers / numbers[0])
    slopes = 0.2 * np.minimum(away[:, 0], 0) - 0.1 * np.maximum(away[:, 2], 0)
    true = added * 0.4 * np.exp(slopes)
    played = {n: float(true[n]) for n in range(14)}
    found = corrected(numbers, added, played)
    assert found == pytest.approx(true, rel=0.03)
    assert [found[n] for n in played] == list(played.values())


def test_the_base_alone_gives_its_ratio_and_one_extreme_its_side() -> None:
    added = np.array([100.0, 200.0, 400.0, 50.0])
    numbers = np.array([[1.0], [2.0], [4.0], [0.5]])
    assert corrected(numbers, added, {0: 50.0}) == pytest.approx(added / 2)
    found = corrected(numbers, added, {0: 50.0, 2: 100.0})
    assert found == pytest.approx([50.0, 200 * 0.5 / 2**0.5, 100.0, 25.0], rel=0.01)


def test_none_played_leaves_sums_and_what_does_not_fit_stays() -> None:
    added = np.array([100.0, np.nan])
    assert corrected(np.ones((2, 1)), added, {})[0] == 100.0
    found = corrected(np.ones((2, 1)), added, {0: 80.0})
    assert np.isnan(found[1])
