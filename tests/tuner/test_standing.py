"""Machines that lie are set aside, honest ones are not: by simulation, within the stated rates."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from benchmarks.fleet_standing import HONEST_FROM, LIES, NOISES, groups, normal
from tilesmith.tuner.machine_trust.standing import TOLERANCE, Evidence, Standing


def test_the_chance_of_a_false_alarm_is_below_the_bound_exactly() -> None:
    """Over all answers of a fair coin, weighed: P(limit reached within n) <= n / limit."""
    answers, limit = 12, 40.0
    alarms = 0
    for sequence in itertools.product((False, True), repeat=answers):
        evidence = Evidence(limit)
        for yes in sequence:
            evidence.answer(yes)
            if evidence.convincing:
                alarms += 1
                break
    assert 0 < alarms / 2**answers <= answers / limit


def test_evidence_tells_since_when() -> None:
    evidence = Evidence()
    for number in range(200):
        evidence.answer(number % 2 == 0)
    number = 0
    while not evidence.convincing:
        evidence.answer(True)
        number += 1
    assert number < 40 and number <= evidence.since <= number + 8


@pytest.mark.parametrize("noise", NOISES)
def test_honest_machines_stay(noise: str) -> None:
    rng = np.random.default_rng(1)
    assert sum(found.honest for found in groups(rng, 6, 300, NOISES[noise], None)) == 0


@pytest.mark.parametrize(
    ("lie", "noise", "within"),
    [
        ("5 % slower", "1 %", 100),
        ("10 % slower", "5 %", 150),
        ("30 % slower", "15 %", 150),
        ("30 % slower", "busy", 60),
        ("30 % faster", "1 %", 60),
        ("random", "1 %", 200),
        ("1 % slower every 20 trials", "1 %", 200),
    ],
)
def test_liars_are_set_aside_alone(lie: str, noise: str, within: int) -> None:
    rng = np.random.default_rng(2)
    for outcome in groups(rng, 4, HONEST_FROM + within, NOISES[noise], lie):
        assert outcome.caught is not None and outcome.honest == 0


def play(
    standing: Standing, levels: dict[str, float], turns: int, scale: float = 0.01, seed: int = 0
) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(turns):
        for name, level in levels.items():
            standing.read(name, 1e-4 * level * math.exp(rng.normal(0.0, scale)))


def test_the_reason_is_a_sentence_with_figures_and_the_pace_is_told() -> None:
    standing = Standing()
    play(standing, {"a": 1.0, "b": 1.0, "c": 1.0, "slow": 1.3}, 20)
    assert standing.aside == {} and standing.pace("slow") == pytest.approx(1.3, rel=0.02)
    play(standing, {"a": 1.0, "b": 1.0, "c": 1.0, "slow": 1.3}, 30)
    assert set(standing.aside) == {"slow"} and standing.believed == ["a", "b", "c"]
    doubt = standing.aside["slow"]
    assert doubt.lie == "slow" and 20 <= doubt.since <= 50
    assert "disagrees with 3 machines of the same kind" in doubt.reason
    assert "takes 30% longer" in doubt.reason or "takes 29% longer" in doubt.reason
    assert standing.read("slow", 1e-4) is doubt, "it stays aside"


def test_of_two_that_disagree_the_slower_is_doubted() -> None:
    standing = Standing()
    play(standing, {"fast": 1.0, "slow": 1.2}, 60)
    assert set(standing.aside) == {"slow"}


def test_a_machine_alone_has_its_own_past() -> None:
    standing = Standing()
    play(standing, {"alone": 1.0}, 200)
    assert standing.aside == {} and standing.pace("alone") is None
    play(standing, {"alone": 1.25}, 60)
    assert "has slowed down: the control kernel takes 25% longer" in standing.aside["alone"].reason
    scattering = Standing()
    play(scattering, {"alone": 1.0}, 400, scale=0.6)
    assert "measures at random" in scattering.aside["alone"].reason


def test_who_keeps_its_pace_while_most_are_throttled_is_not_the_liar() -> None:
    standing = Standing()
    names = ("a", "b", "c", "d", "steady")
    play(standing, dict.fromkeys(names, 1.0), 60)
    play(standing, {**dict.fromkeys(names, 1.2), "steady": 1.0}, 60)
    assert "steady" not in standing.aside and len(standing.aside) == 4


def test_differences_within_the_tolerance_are_honest() -> None:
    standing = Standing()
    play(standing, {"a": 1.0, "b": 1.0, "c": 1.0 + TOLERANCE * 0.9, "d": 1.0}, 600)
    assert standing.aside == {}


def test_who_comes_later_or_goes_is_no_trouble() -> None:
    standing = Standing()
    play(standing, {"a": 1.0, "b": 1.0}, 40)
    play(standing, {"a": 1.0, "b": 1.0, "late": 1.0}, 100)
    standing.leave("b")
    play(standing, {"a": 1.0, "late": 1.0}, 100)
    standing.read("a", 0.0)
    standing.read("a", math.inf)
    assert standing.aside == {}
    doubt = standing.set_aside("a", "has a clock that lies")
    assert (doubt.reason, doubt.since) == ("has a clock that lies", 240)


def test_the_benchmark_knows_lies_and_noises() -> None:
    rng = np.random.default_rng(0)
    assert all(lie(rng, normal(0.01)(rng, (50,))).shape == (50,) for lie in LIES.values())
