"""Every strategy keeps its contract; the good ones beat random search on a space with known
optimum.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from problems import best_of, cost, ok, run, state

from tests.search_space.searched import space
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.support.errors import InputError
from tilesmith.tuner.tasks.strategy import (
    generator_state,
    pick_diverse,
    restored_generator,
    strategies,
)
from tilesmith.tuner.tasks.task import Trial

SEEDS = (0, 1, 2, 3, 4)


class NoExploring(np.random.Generator):
    """Never gives a share of a batch to chance."""

    def binomial(self, *args: Any, **kwargs: Any) -> Any:
        return 0


@cache
def optimum() -> float:
    return min(cost(config) for config in space())


@cache
def measured(name: str, seed: int) -> tuple[Config, ...]:
    """What a strategy measures, in order; the default one goes on for longer."""
    return tuple(run(name, 200 if name == "evolutionary" else 120, seed))


def found(name: str, trials: int) -> tuple[float, ...]:
    return tuple(best_of(measured(name, seed)[:trials]) / optimum() for seed in SEEDS)


@pytest.mark.parametrize("name", list(strategies))
def test_proposals_are_distinct_legal_and_new(name: str) -> None:
    searched = state(0)
    strategy = strategies[name]()
    for _ in range(4):
        proposed = strategy.propose(searched, 12)
        assert len(proposed) == len(set(proposed)) == 12
        assert all(config in searched.space for config in proposed)
        assert all(searched.is_new(config) for config in proposed)
        trials = [Trial(searched.task.workload, config, ok(cost(config))) for config in proposed]
        searched.add(trials)
        strategy.observe(searched, trials)
    assert strategy.propose(searched, 0) == []


@pytest.mark.parametrize("name", list(strategies))
def test_variants_with_knobs_of_their_own_are_searched_together(name: str) -> None:
    """Moves pass between subspaces that differ in one value; each has other knobs."""
    variants = SearchSpace(
        tuple(
            Subspace(
                (("algorithm", "a"), ("copies", copies)),
                tuple(tile(f"{knob}{copies}", range(1, 9 - copies)) for knob in "xyz"[:copies]),
            )
            for copies in (1, 2, 3)
        )
    )
    searched = state(0, variants)
    strategy = strategies[name]()
    while proposed := strategy.propose(searched, 16):
        assert all(config in variants for config in proposed)
        trials = [
            Trial(searched.task.workload, c, ok(float(sum(v for _, v in c.items_ if v != "a"))))
            for c in proposed
        ]
        searched.add(trials)
        strategy.observe(searched, trials)
    assert len(searched.results) == variants.size


@pytest.mark.parametrize("name", list(strategies))
def test_a_space_is_exhausted_cleanly_with_excluded_ones_left_out(name: str) -> None:
    small = SearchSpace(
        (Subspace((("algorithm", "a"),), (tile("x", range(1, 8)), tile("y", range(1, 6)))),)
    )
    searched = state(0, small)
    quarantined = list(small)[7]
    searched.excluded = {quarantined}
    strategy = strategies[name]()
    while proposed := strategy.propose(searched, 8):
        searched.add(
            [
                Trial(searched.task.workload, config, ok(1.0 + config.integer("x")))
                for config in proposed
            ]
        )
        assert len(searched.results) <= small.size
    assert set(searched.results) == set(small) - {quarantined}
    assert searched.exhausted


@pytest.mark.parametrize("name", list(strategies))
def test_same_seed_same_proposals_and_another_seed_others(name: str) -> None:
    first = list(measured(name, 0)[:32])
    assert run(name, 32, seed=0) == first
    if name != "exhaustive":
        assert list(measured(name, 1)[:32]) != first


@pytest.mark.parametrize("name", list(strategies))
def test_a_saved_strategy_continues_as_if_never_interrupted(name: str) -> None:
    searched = state(3)
    strategy = strategies[name]()
    for _ in range(2):
        searched.add(
            [Trial(searched.task.workload, c, ok(cost(c))) for c in strategy.propose(searched, 16)]
        )
    saved = json.loads(json.dumps([strategy.save(), generator_state(searched.rng)]))
    expected = strategy.propose(searched, 16)
    again = strategies[name]()
    again.load(saved[0])
    searched.rng = restored_generator(saved[1])
    assert again.propose(searched, 16) == expected


def test_exhaustive_search_visits_the_enumeration_in_order() -> None:
    assert run("exhaustive", 100, seed=0) == [c for c, _ in zip(space(), range(100), strict=False)]


@pytest.mark.parametrize("name", ["evolutionary", "annealing", "bayesian", "metaschedule"])
def test_guided_search_comes_near_the_optimum_and_beats_random(name: str) -> None:
    median = float(np.median(found(name, 120)))
    assert median < float(np.median(found("random", 120)))
    assert median < 1.10


def test_the_default_strategy_is_within_three_percent_after_200_trials() -> None:
    assert np.median(found("evolutionary", 200)) <= 1.03


def test_batches_postpone_near_duplicates() -> None:
    searched = state(0)
    first, *rest = list(space())
    near = next(c for c in rest if sum(c[k] != first[k] for k in c) == 1)
    far = next(c for c in rest if len(c) == len(first) and sum(c[k] != first[k] for k in c) > 3)
    assert pick_diverse(searched, [first, near, far], 2) == [first, far]
    assert pick_diverse(searched, [first, near, far], 3) == [first, far, near]


def test_the_default_measures_one_of_those_that_come_to_the_same_and_all_where_none_is_left() -> (
    None
):
    tiles = (tile("x", (1, 2, 3, 4)), tile("idle", range(1, 9)), tile("y", (1, 2, 3)))
    searched = state(0, SearchSpace((Subspace((("algorithm", "a"),), tiles),)))
    searched.behaviour = lambda configs: [(c["x"], c["y"]) for c in configs]
    searched.rng = NoExploring(searched.rng.bit_generator)
    strategy = strategies["evolutionary"]()
    while len(searched.results) < 12:
        proposed = strategy.propose(searched, 4)
        searched.add(
            [
                Trial(searched.task.workload, config, ok(1.0 + config.integer("x")))
                for config in proposed
            ]
        )
    assert len({(c["x"], c["y"]) for c in searched.results}) == 12
    while proposed := strategy.propose(searched, 12):
        searched.add(
            [
                Trial(searched.task.workload, config, ok(1.0 + config.integer("x")))
                for config in proposed
            ]
        )
    assert len(searched.results) == 12 * 8


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_judge_is_wrong_about_is_among_the_first_trials_if_it_is_plausible(
    seed: int,
) -> None:
    """The judge takes the best loop order for a third slower; its best two dozen have another."""

    def judged(configs: Sequence[Config]) -> Any:
        wrong = [1.3 if config.get("order") == "yxz" else 1.0 for config in configs]
        return np.log([cost(c) * factor for c, factor in zip(configs, wrong, strict=True)])

    searched = state(seed)
    searched.predict, searched.doubt = judged, lambda: 0.15
    searched.estimate = lambda configs: (judged(configs), np.zeros(len(configs)))
    searched.shown = searched.informed = True
    by_judge = [config for config in space() if config.get("order") != "yxz"]
    searched.seeds = tuple(sorted(by_judge, key=cost)[:24])
    chosen = []
    for _ in range(2):
        chosen += strategies["evolutionary"]().propose(searched, 12)
        searched.pending |= set(chosen)
    assert len(set(chosen)) == 24
    drawn = [config for config in chosen if config not in searched.seeds]
    assert len(drawn) >= 8
    assert any(config.get("order") == "yxz" for config in drawn)
    slowest = np.exp(judged([max(drawn, key=cost)])[0])
    assert slowest < np.median(np.exp(judged(list(space()))))


def test_an_unknown_strategy_is_refused_with_the_known_names() -> None:
    with pytest.raises(InputError, match="unknown strategy 'magic'; one of annealing"):
        strategies["magic"]


def test_all_strategies_of_the_manual_are_there_and_the_yardstick_keeps_its_batch() -> None:
    assert {
        "evolutionary",
        "metaschedule",
        "annealing",
        "bayesian",
        "random",
        "exhaustive",
    } <= set(strategies)
    searched = state(0)
    assert strategies["metaschedule"]().batch_size(searched) == 64
    assert strategies["evolutionary"]().batch_size(searched) == 8
    searched.add(
        [Trial(searched.task.workload, config, ok(1.0)) for config in list(searched.space)[:400]]
    )
    assert strategies["evolutionary"]().batch_size(searched) == 16
    searched.informed = True
    assert strategies["evolutionary"]().batch_size(searched) == 100
