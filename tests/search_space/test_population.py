"""Populations: every move gives legal individuals of the same space, reproducibly."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search_space.searched import engines, space
from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Constraint, choice, layout, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.spaces.transfer import carried_over
from tilesmith.search_space.support.errors import ConfigError

SPACE = space()


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_sampled_mutated_and_crossed_individuals_are_legal(seed: int, count: int) -> None:
    rng, breeder = np.random.default_rng(seed), SPACE.breeder
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
    rng, breeder = np.random.default_rng(0), SPACE.breeder
    parents = breeder.sample(rng, 500)
    mutants = breeder.mutate(parents, rng)
    changed = (parents.rows != mutants.rows).any(axis=1) | (parents.kinds != mutants.kinds)
    assert changed.mean() > 0.99


def test_encoding_undoes_decoding_and_passes_over_strangers() -> None:
    breeder = SPACE.breeder
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
    breeder = small.breeder
    drawn = breeder.decode(breeder.sample(np.random.default_rng(0), 6000))
    counts = [drawn.count(config) for config in small]
    assert sum(counts) == 6000 and small.size == len(counts) == 6
    assert max(counts) < 1.15 * 1000 and min(counts) > 0.85 * 1000


def test_an_empty_space_is_refused_with_a_sentence() -> None:
    impossible = Constraint(var("x"), 0, "x")
    empty = SearchSpace((Subspace((), (tile("x", (1, 2)),), (impossible,)),))
    with pytest.raises(ConfigError, match="search space is empty"):
        empty.breeder.sample(np.random.default_rng(0), 1)


def test_mutation_reaches_every_algorithm_by_one_fixed_value_at_a_time() -> None:
    searched, rng = engines(), np.random.default_rng(0)
    breeder = searched.breeder
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
    breeder = searched.breeder
    first = breeder.encode([Config.of(engine="a", copies=2, x=1, y=3)] * 64)
    second = breeder.encode([Config.of(engine="b", copies=1, x=4)] * 64)
    children = set(breeder.decode(breeder.cross(first, second, rng)))
    assert {c["x"] for c in children} == {1, 4} and all(c in searched for c in children)
    assert all((c["engine"], c["copies"]) == ("a", 2) for c in children)


def test_structures_are_numbered_by_first_appearance_and_ignore_tiles() -> None:
    searched = space()
    breeder = searched.breeder
    configs = searched.sample(np.random.default_rng(0), 600)
    numbers = breeder.structures(breeder.encode(configs))
    seen: dict[Config, int] = {}
    for config, number in zip(configs, numbers.tolist(), strict=True):
        assert number == seen.setdefault(searched.structure(config), len(seen))
    assert len(seen) == 7, "three orders times packed or not, and the other algorithm"


def test_neighbours_are_all_that_differ_in_one_knob() -> None:
    searched = space()
    breeder = searched.breeder
    config = next(c for c in searched if c["algorithm"] == "direct" and c["x"] == 8)
    found = breeder.decode(breeder.neighbours(breeder.encode([config])))
    expected = {
        other
        for other in searched
        if len(other) == len(config) and sum(other[k] != config[k] for k in config) == 1
    }
    expected.add(Config.of(algorithm="other", w=1, x=8))
    assert set(found) == expected and len(found) == len(expected)


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


def test_layouts_are_carried_over_to_the_same_with_other_blocks() -> None:
    layouts = layout("input_layout", ("NCHW", "NCHW8c", "NCHW4c", "NHWC"))
    fixed = (("algorithm", "winograd2"), ("output_layout", "NCHW8c"))
    target = SearchSpace((Subspace(fixed, (layouts,)),))
    wide = Config.of(algorithm="winograd2", input_layout="NCHW16c", output_layout="NCHW16c")
    narrow = Config.of(algorithm="winograd2", input_layout="NCHW8c", output_layout="NCHW8c")
    assert carried_over(wide, target) == narrow
    exact = Subspace((("algorithm", "winograd2"), ("output_layout", "NCHW16c")), (layouts,))
    both = SearchSpace((*target.subspaces, exact))
    assert carried_over(wide, both) == Config.of({**narrow, "output_layout": "NCHW16c"})
    for other in (
        {"output_layout": "NCHW"},
        {"input_layout": "CHWN16c"},
        {"algorithm": "winograd4"},
    ):
        assert carried_over(Config.of({**wide, **other}), target) is None


def test_a_space_of_one_point_has_no_neighbours() -> None:
    only = SearchSpace((Subspace((("algorithm", "only"),), (tile("x", (4,)),)),))
    rng, parents = np.random.default_rng(0), only.breeder.encode(list(only))
    assert only.size == 1
    assert only.breeder.decode(only.breeder.mutate(parents, rng)) == list(only)
    assert len(only.breeder.neighbours(parents)) == 0
