"""Populations: every move gives legal individuals of the same space, reproducibly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import cost, ok, space, state

from search_space.config import Config
from search_space.errors import ConfigError
from search_space.expression import var
from search_space.knobs import Constraint, choice, layout, tile
from search_space.space import SearchSpace, Subspace
from search_space.transfer import carried_over
from tuner.evolution import Evolution, evolve
from tuner.population import Breeder
from tuner.strata import layout_spaces, propose_for_strata, strata
from tuner.task import Trial, plain_layouts

SPACE = space()


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_sampled_mutated_and_crossed_individuals_are_legal(seed: int, count: int) -> None:
    rng, breeder = np.random.default_rng(seed), Breeder(SPACE)
    parents = breeder.sample(rng, count, balanced=seed % 2 == 0)
    mutants = breeder.mutate(parents, rng)
    children = breeder.cross(parents, mutants, rng)
    for population in (parents, mutants, children):
        assert all(config in SPACE for config in breeder.decode(population))
    for parent, mutant in zip(breeder.decode(parents), breeder.decode(mutants), strict=True):
        assert sum(parent[k] != mutant[k] for k in parent) <= 2
    for parent, mutant, child in zip(
        *(breeder.decode(p) for p in (parents, mutants, children)), strict=True
    ):
        assert all(child[k] in (parent[k], mutant[k]) for k in child)


def test_nearly_every_mutant_differs_from_its_parent() -> None:
    rng, breeder = np.random.default_rng(0), Breeder(SPACE)
    parents = breeder.sample(rng, 500)
    mutants = breeder.mutate(parents, rng)
    assert (parents.rows != mutants.rows).any(axis=1).mean() > 0.99


def test_encoding_undoes_decoding_and_passes_over_strangers() -> None:
    breeder = Breeder(SPACE)
    configs = breeder.decode(breeder.sample(np.random.default_rng(0), 50))
    stranger = Config.of(algorithm="unheard of", x=1)
    assert breeder.decode(breeder.encode([stranger, *configs])) == configs


def test_samples_are_uniform_over_the_space() -> None:
    small = SearchSpace(
        (
            Subspace((("a", "one"),), (tile("x", (1, 2, 3)), tile("y", (1, 2))),
                     (Constraint(var("x") * var("y"), 4, "product"),)),
            Subspace((("a", "two"),), (tile("x", (1,)),)),
        )
    )  # fmt: skip
    breeder = Breeder(small)
    drawn = breeder.decode(breeder.sample(np.random.default_rng(0), 6000))
    counts = [drawn.count(config) for config in small]
    assert sum(counts) == 6000 and small.size == len(counts) == 6
    assert max(counts) < 1.15 * 1000 and min(counts) > 0.85 * 1000


def test_an_empty_space_is_refused_with_a_sentence() -> None:
    impossible = Constraint(var("x"), 0, "x")
    empty = SearchSpace((Subspace((), (tile("x", (1, 2)),), (impossible,)),))
    with pytest.raises(ConfigError, match="search space is empty"):
        Breeder(empty).sample(np.random.default_rng(0), 1)


def test_knob_features_tell_all_configurations_apart() -> None:
    breeder = Breeder(SPACE)
    population = breeder.encode(list(SPACE))
    features = breeder.features(population)
    assert len(np.unique(features, axis=0)) == len(population) == SPACE.size


def test_a_space_is_cut_by_layout_pairs() -> None:
    knobs = (layout("input_layout", ("NCHW", "NHWC")), tile("x", (1, 2, 4)))
    fixed = Subspace((("algorithm", "a"), ("output_layout", "NCHW")), knobs)
    free = Subspace((("algorithm", "b"),), (*knobs, layout("output_layout", ("NCHW", "NHWC"))))
    whole = SearchSpace((fixed, free))
    parts = layout_spaces(whole, plain_layouts)
    assert set(parts) == {(i, o) for i in ("NCHW", "NHWC") for o in ("NCHW", "NHWC")}
    assert parts["NCHW", "NCHW"].size == 6 and parts["NCHW", "NHWC"].size == 3
    assert {c for part in parts.values() for c in part} == set(whole)
    assert all(plain_layouts(c) == pair for pair, part in parts.items() for c in part)


def test_carrying_over_takes_the_nearest_legal_values() -> None:
    knobs = (tile("x", (1, 2, 4, 8)), tile("y", (1, 3, 9)), choice("order", ("ab", "ba")))
    limit = Constraint(var("x") * var("y"), 12, "product")
    target = SearchSpace((Subspace((("algorithm", "a"),), knobs, (limit,)),))
    given_config = Config.of(algorithm="a", x=5, y=3, order="ba")
    assert carried_over(given_config, target) == Config.of(algorithm="a", x=4, y=3, order="ba")
    big = Config.of(algorithm="a", x=8, y=9, order="ab")
    moved = carried_over(big, target)
    assert moved is not None and moved in target
    assert carried_over(Config.of(algorithm="z", x=1), target) is None
    assert carried_over(Config.of(algorithm="a", x=1, y=1, order="cd"), target) is None
    single = SearchSpace((Subspace((("algorithm", "a"),), (choice("order", ("ab",)),)),))
    assert carried_over(given_config, single) == Config.of(algorithm="a", order="ab")


def test_every_layout_pair_and_algorithm_gets_trials_until_it_is_hopeless() -> None:
    knobs = (layout("input_layout", ("NCHW", "NHWC")), tile("x", range(1, 40)))
    one = Subspace((("algorithm", "one"), ("output_layout", "NCHW")), knobs)
    two = Subspace((("algorithm", "two"), ("output_layout", "NCHW")), knobs[1:])
    whole = SearchSpace((one, replace(two, fixed=(*two.fixed, ("input_layout", "NCHW")))))
    parts = strata(whole, plain_layouts, layout_trials=3)
    assert len(parts) == 4
    searched = state(0, whole)
    counts = []
    while proposed := propose_for_strata(searched, parts, 4):
        assert len(proposed) == len(set(proposed)) <= 4
        counts.append(len(proposed))
        searched.add([Trial(c, ok(50.0 if c["input_layout"] == "NHWC" else 1.0)) for c in proposed])
    tried = Counter((c["algorithm"], c["input_layout"]) for c in searched.results)
    assert tried["two", "NCHW"] >= 2 and tried["one", "NCHW"] >= 1
    assert tried["one", "NCHW"] + tried["two", "NCHW"] >= 3
    assert 1 <= tried["one", "NHWC"] <= 3, "measured fifty times slower: left alone"
    assert strata(space(), plain_layouts, 3) and not strata(SearchSpace((two,)), plain_layouts, 3)


def test_structures_are_numbered_by_first_appearance_and_ignore_tiles() -> None:
    searched = space()
    breeder = Breeder(searched)
    configs = searched.sample(np.random.default_rng(0), 600)
    numbers = breeder.structures(breeder.encode(configs))
    seen: dict[Config, int] = {}
    for config, number in zip(configs, numbers.tolist(), strict=True):
        assert number == seen.setdefault(searched.structure(config), len(seen))
    assert len(seen) == 7, "three orders times packed or not, and the other algorithm"


def test_neighbours_are_all_that_differ_in_one_knob() -> None:
    searched = space()
    breeder = Breeder(searched)
    config = next(c for c in searched if c["algorithm"] == "direct" and c["x"] == 8)
    found = breeder.decode(breeder.neighbours(breeder.encode([config])))
    expected = {
        other
        for other in searched
        if len(other) == len(config) and sum(other[k] != config[k] for k in config) == 1
    }
    assert set(found) == expected and len(found) == len(expected)


def test_a_generation_may_be_held_to_a_few_structures() -> None:
    searched = state(0)
    asked: list[Config] = []

    def predict(configs: Sequence[Config]) -> np.ndarray:
        asked.extend(configs)
        return np.array([cost(config) for config in configs])

    best = min(searched.space, key=cost)
    options = Evolution(population=64, generations=0, structures=3)
    evolve(searched, [best], options, predict)
    structures = {searched.space.structure(config) for config in asked}
    assert len(structures) == 3 and searched.space.structure(best) in structures
