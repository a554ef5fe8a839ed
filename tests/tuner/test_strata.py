"""What is made of search spaces: features of knobs, strata, generations of few structures."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from problems import cost, ok, state

from tests.search_space.searched import engines, space
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import layout, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.tuner.search.evolution import Evolution, evolve
from tilesmith.tuner.search.strata import layout_spaces, propose_for_strata, strata
from tilesmith.tuner.surrogates.knob_features import KnobColumns
from tilesmith.tuner.tasks.task import Trial, plain_layouts

SPACE = space()


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
        searched.add(
            [
                Trial(searched.task.workload, c, ok(50.0 if c["input_layout"] == "NHWC" else 1.0))
                for c in proposed
            ]
        )
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


def test_where_some_were_measured_few_structures_are_new() -> None:
    searched = state(0)
    by_structure = {searched.space.structure(config): config for config in searched.space}
    first, second, third, *others = by_structure.values()
    assert len(others) >= 3
    met = {searched.space.structure(config) for config in (first, second, third)}
    workload = searched.task.workload
    searched.add([Trial(workload, c, ok(cost(c))) for c in (first, second, third)])
    asked: list[Config] = []

    def predict(configs: Sequence[Config]) -> np.ndarray:
        asked.extend(configs)
        return np.array([cost(config) for config in configs])

    evolve(
        searched, [first], Evolution(population=64, generations=2, structures=4, unmet=1), predict
    )
    structures = {searched.space.structure(config) for config in asked}
    assert searched.space.structure(first) in structures
    assert len(structures - met) <= 3, "one in each generation"
