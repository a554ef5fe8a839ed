"""Clocks that jump or run at another rate are told, delays are not mistaken for them."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.tuner.machines.clocks import ClockRate, ClockWatch


class Made:
    """Clocks to be set by hand."""

    def __init__(self) -> None:
        self.measuring, self.other, self.wall = 100.0, 5.0, 1e9

    def watch(self) -> ClockWatch:
        return ClockWatch(
            lambda: self.measuring, {"the other clock": lambda: self.other}, lambda: self.wall
        )

    def passes(self, seconds: float) -> None:
        self.measuring += seconds
        self.other += seconds
        self.wall += seconds


def test_clocks_that_agree_are_silent() -> None:
    made = Made()
    watch = made.watch()
    for seconds in (0.0, 0.1, 3600.0):
        made.passes(seconds)
        made.other += seconds * 0.0005  # NTP
        assert watch.look() is None
    assert ClockWatch().look() is None, "those of this machine"


@pytest.mark.parametrize("jump", [-0.5, 0.5])
def test_a_measuring_clock_that_jumps_spoils_what_was_measured(jump: float) -> None:
    made = Made()
    watch = made.watch()
    made.passes(0.2)
    made.measuring += jump
    found = watch.look()
    assert found is not None and found.spoils
    assert "the clock that measures jumped: it says that" in found.message
    made.passes(1.0)
    assert watch.look() is None, "told once"


def test_a_wall_clock_that_is_set_spoils_nothing() -> None:
    made = Made()
    watch = made.watch()
    made.passes(0.2)
    made.wall -= 3600
    found = watch.look()
    assert found is not None and not found.spoils
    assert found.message.startswith("the wall clock was set back by 3.6e+03 s")


@pytest.mark.parametrize("delay", [0.0, 0.05, 2.0])
def test_delays_on_the_way_are_not_a_clock_that_lies(delay: float) -> None:
    rng, rate = np.random.default_rng(0), ClockRate()
    for sent in range(0, 500, 5):
        there, back = rng.random(2) * delay
        assert rate.heard(sent, 1e6 + (sent + there) * 1.0004, sent + there + back) is None


@pytest.mark.parametrize("factor", [0.9, 1.05])
def test_a_clock_of_another_rate_is_found_out_in_seconds(factor: float) -> None:
    rate = ClockRate()
    said = [rate.heard(now, now * factor, now + 0.01) for now in range(20)]
    found = next(sentence for sentence in said if sentence)
    assert "has a clock that lies" in found and said.index(found) < 5
    rate.restart()
    assert rate.heard(0.0, 1.0, 0.1) is None
