"""How long the rest takes: foretold by the last minute, or not at all."""

from __future__ import annotations

import pytest

from tilesmith.tuner.session.reporting import Rate


def test_a_first_trial_after_long_preparation_foretells_nothing() -> None:
    rate = Rate()
    assert rate.seconds(100) is None
    rate.note(60.0, 0)
    rate.note(61.0, 1)
    assert rate.seconds(1000) is None
    rate.note(64.0, 8)
    assert rate.seconds(1000) == pytest.approx(1000 * 4.0 / 8)
    assert rate.seconds(0) == 0.0


def test_only_the_last_minute_counts() -> None:
    rate = Rate()
    for second in range(600):
        rate.note(float(second), second)
    for second in range(600, 700):
        rate.note(float(second), 600 + 10 * (second - 600))
    assert rate.seconds(100) == pytest.approx(10.0)
