"""Populations: every move gives legal individuals of the same space, reproducibly."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import cost, ok, space, state

from tilesmith.search_space.errors import ConfigError
from tilesmith.search_space.ir.expression import var
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Constraint, choice, layout, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.spaces.transfer import carried_over
from tilesmith.tuner.evolution import Evolution, evolve
from tilesmith.tuner.knob_features import KnobColumns
from tilesmith.tuner.population import Breeder
from tilesmith.tuner.strata import layout_spaces, propose_for_strata, strata
from tilesmith.tuner.task import Trial, plain_layouts

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
        if parent["algorithm"] == mutant["algorithm"]:
            assert sum(parent[k] != mutant[k] for k in parent) <= 2
    for parent, mutant, child in zip(
        *(breeder.decode(p) for p in (parents, mutants, children)), strict=True
    ):
        if parent["algorithm"] == mutant["algorithm"]:
            assert all(child[k] in (parent[k], mutant[k]) for k in child)
        assert child["algorithm"] == parent["algorithm"]


def test_nearly_every_mutant_differs_from_its_parent() -> None:
    rng, breeder = np.random.default_rng(0), Breeder(SPACE)
    parents = breeder.sample(rng, 500)
    mutants = breeder.mutate(parents, rng)
    changed = (parents.rows != mutants.rows).any(axis=1) | (parents.kinds != mutants.kinds)
    assert changed.mean() > 0.99


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
    features = KnobColumns.of(SPACE).rows(list(SPACE))
    assert len(np.unique(features, axis=0)) == len(features) == SPACE.size


def test_knobs_have_the_same_columns_in_every_algorithm() -> None:
    columns = KnobColumns.of(engines())
    one, two = columns.rows(
        [Config.of(engine="a", copies=1, x=4), Config.of(engine="a", copies=2, x=4, y=3)]
    )
    differing = np.flatnonzero(one != two)
    assert len(differing) == 2, "copies, and y, which the first does not have"
    np.testing.assert_allclose(two[differing] - one[differing], [np.log2(3 / 2), 2.0 + 1.0])


def engines() -> SearchSpace:
    """Two fixed choices spread over four algorithms; one of them has a knob more."""
    x = tile("x", (1, 2, 4, 8))
    return SearchSpace(
        tuple(
            Subspace(
                (("engine", engine), ("copies", copies)),
                (x, tile("y", (1, 3))) if copies == 2 else (x,),
                (Constraint(var("x") * copies, 8, "x for each copy"),),
            )
            for engine in ("a", "b")
            for copies in (1, 2)
        )
    )


def test_mutation_reaches_every_algorithm_by_one_fixed_value_at_a_time() -> None:
    searched, rng = engines(), np.random.default_rng(0)
    breeder = Breeder(searched)
    parent = Config.of(engine="a", copies=1, x=4)
    mutants = breeder.decode(breeder.mutate(breeder.encode([parent] * 600), rng))
    crossed = [c for c in mutants if (c["engine"], c["copies"]) != ("a", 1)]
    assert all(c in searched and c["x"] == 4 for c in crossed)
    kinds = Counter((c["engine"], c["copies"]) for c in crossed)
    assert set(kinds) == {("b", 1), ("a", 2)} and 0.5 < len(crossed) / 600 < 0.8
    tight = breeder.mutate(breeder.encode([Config.of(engine="a", copies=1, x=8)] * 200), rng)
    assert not any(c["copies"] == 2 for c in breeder.decode(tight)), "it would break the limit"


def test_crossing_different_algorithms_keeps_the_first_one() -> None:
    searched, rng = engines(), np.random.default_rng(0)
    breeder = Breeder(searched)
    first = breeder.encode([Config.of(engine="a", copies=2, x=1, y=3)] * 64)
    second = breeder.encode([Config.of(engine="b", copies=1, x=4)] * 64)
    children = set(breeder.decode(breeder.cross(first, second, rng)))
    assert {c["x"] for c in children} == {1, 4} and all(c in searched for c in children)
    assert all((c["engine"], c["copies"]) == ("a", 2) for c in children)


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


def test_variants_of_an_algorithm_are_no_parts_of_their_own_if_they_are_many() -> None:
    def parts(algorithms: int, copies: int) -> list[int]:
        """Subspaces of each part of a space with `copies` subspaces of each algorithm."""
        knobs = (tile("x", (1, 2)),)
        kinds = itertools.product(range(algorithms), range(copies))
        subspaces = (Subspace((("algorithm", f"a{a}"), ("copies", c)), knobs) for a, c in kinds)
        found = strata(SearchSpace(tuple(subspaces)), plain_layouts, 3)
        return [len(part.space.subspaces) for part in found]

    assert parts(1, 1) == [] and parts(1, 24) == []
    assert parts(1, 3) == [1, 1, 1]
    assert parts(3, 24) == [24, 24, 24]


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
    expected.add(Config.of(algorithm="other", w=1, x=8))
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
