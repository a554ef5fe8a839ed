"""Search spaces against enumeration: size, uniformity, legality of everything drawn, messages."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import (
    Constraint,
    Knob,
    choice,
    divisors,
    layout,
    order,
    tile,
    tile_sizes,
)
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.support.errors import ConfigError

AREA = Constraint(var("x") * var("y"), 12, "elements of the tile (x*y)", "choose a smaller x")
SPACE = SearchSpace((
    Subspace(
        (("algorithm", "tiled"),),
        (tile("x", (1, 2, 3, 4, 6)), tile("y", range(1, 7)), choice("mode", ("a", "b"))),
        (AREA,),
    ),
    Subspace((("algorithm", "plain"), ("width", 4)), (order("loops", ("i", "j")),)),
))  # fmt: skip


def _brute_force() -> set[Config]:
    tiled = {
        Config.of(algorithm="tiled", x=x, y=y, mode=mode)
        for x, y, mode in itertools.product((1, 2, 3, 4, 6), range(1, 7), ("a", "b"))
        if x * y <= 12
    }
    plain = {Config.of(algorithm="plain", width=4, loops=o) for o in ("i,j", "j,i")}
    return tiled | plain


def test_enumeration_and_size_agree_with_brute_force() -> None:
    found = list(SPACE)
    assert len(found) == len(set(found)) == SPACE.size
    assert set(found) == _brute_force()
    assert all(config in SPACE for config in found)


@pytest.mark.parametrize("grid", [1, 4, 7, 40, 1000])
def test_the_size_does_not_depend_on_how_many_are_judged_at_a_time(
    grid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constraints over one knob, over two that are no neighbours, and over none."""
    monkeypatch.setattr("tilesmith.search_space.spaces.subspace.GRID", grid)
    knobs = (tile("x", range(1, 6)), tile("y", range(1, 8)), tile("z", range(1, 5)))
    limits = (
        Constraint(var("x") * var("z") + var("w"), 11, "of two"),
        Constraint(var("y"), 5, "of one"),
        Constraint(var("w"), 3, "of none"),
    )
    legal = [
        x * z + 3 <= 11 and y <= 5 for x, y, z in itertools.product(*(k.values for k in knobs))
    ]
    assert Subspace((("w", 3),), knobs, limits).size == sum(legal)
    assert Subspace((("w", 4),), knobs, limits).size == 0


def test_sampling_is_uniform() -> None:
    """Chi-squared over 40 draws for each configuration, at the 1e-4 quantile."""
    draws = 40 * SPACE.size
    counts = Counter(SPACE.sample(np.random.default_rng(3), draws))
    assert set(counts) <= _brute_force()
    expected = draws / SPACE.size
    statistic = sum((counts[c] - expected) ** 2 / expected for c in _brute_force())
    degrees = SPACE.size - 1
    assert statistic < degrees + 3.7 * (2 * degrees) ** 0.5


def test_an_empty_space_says_so() -> None:
    space = SearchSpace((Subspace((), (tile("x", (4, 5)),), (Constraint(var("x"), 3, "x"),)),))
    assert space.size == 0 and space.empty
    assert list(space) == []
    with pytest.raises(ConfigError, match="search space is empty"):
        space.sample(np.random.default_rng(0))


@given(st.integers(1, 70), st.integers(1, 70), st.integers(-10, 5000))
def test_a_space_is_empty_where_nothing_is_legal(rows: int, columns: int, limit: int) -> None:
    """The first legal configuration may be far behind."""
    knobs = (tile("x", range(1, rows + 1)), tile("y", range(1, columns + 1)))
    beyond = Constraint(limit - var("x") * var("y"), 0, "too small a tile")
    space = SearchSpace((Subspace((), knobs, (beyond,)),))
    assert space.empty == (space.size == 0) == (rows * columns < limit)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"algorithm": "tiled", "x": 6, "y": 6, "mode": "a"},
         r"elements of the tile \(x\*y\): 36 exceeds the limit of 12; choose a smaller x"),
        ({"algorithm": "tiled", "x": 5, "y": 1, "mode": "a"},
         "knob 'x' cannot be 5; allowed: 1, 2, 3, 4, 6"),
        ({"algorithm": "tiled", "x": 1, "y": 1}, "unexpected or missing knobs: mode"),
        ({"algorithm": "tiled", "x": 1, "y": 1, "mode": "a", "z": 1},
         "unexpected or missing knobs: z"),
        ({"algorithm": "other", "x": 1},
         "is of no algorithm of this space"),
        ({"algorithm": "plain", "width": 8, "loops": "i,j"}, "is of no algorithm"),
    ],
)  # fmt: skip
def test_validation_names_what_is_wrong(values: dict[str, int | str], message: str) -> None:
    config = Config.of(values)
    assert config not in SPACE
    with pytest.raises(ConfigError, match=message):
        SPACE.validate(config)


def test_structure_and_tiles_part_a_config() -> None:
    config = Config.of(algorithm="tiled", x=2, y=3, mode="b")
    assert SPACE.structural_knobs == {"algorithm", "mode", "width", "loops"}
    assert SPACE.structure(config) == Config.of(algorithm="tiled", mode="b")
    assert SPACE.tiles(config) == {"x": 2, "y": 3}
    assert SPACE.describe()["algorithm"] == ("tiled", "plain")
    assert SPACE.describe()["x"] == (1, 2, 3, 4, 6)


def test_configs_are_canonical_and_parse_back() -> None:
    config = Config.of(b=2, a="x")
    assert config == Config.of({"a": "x"}, b=2)
    assert config.key == '{"a":"x","b":2}'
    assert Config.from_json(config.key) == config
    assert (config.integer("b"), config.text("a")) == (2, "x")
    assert str(config) == "a=x b=2"
    assert "z" not in config and config.get("z") is None


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1.5}', '{"a": null}', "{"])
def test_wrong_json_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="a configuration"):
        Config.from_json(text)


def test_knob_values_have_types() -> None:
    config = Config.of(a="x", b=2)
    with pytest.raises(ConfigError, match="'a' is an integer"):
        config.integer("a")
    with pytest.raises(ConfigError, match="'b' is a name"):
        config.text("b")


@given(st.integers(1, 400), st.integers(1, 64))
def test_tile_sizes_are_divisors_and_powers_within_the_limit(extent: int, limit: int) -> None:
    found = tile_sizes(extent, limit)
    top = min(extent, limit)
    expected = [s for s in range(1, top + 1) if extent % s == 0 or s & (s - 1) == 0]
    assert list(found) == expected
    assert divisors(extent, limit) == tuple(s for s in expected if extent % s == 0)


def test_knob_constructors() -> None:
    assert tile("t", (4, 2, 2)) == Knob("t", (2, 4), structural=False)
    assert order("o", ("m", "n", "k")).values[:2] == ("m,n,k", "m,k,n")
    assert len(order("o", ("m", "n", "k")).values) == 6
    assert order("o", ("m", "n", "k"), trivial=("n",)).values == ("m,n,k", "n,k,m")
    assert layout("l", ("NCHW",)).structural and not layout("l", ("NCHW",)).ordered


def test_drawing_where_nothing_is_legal_ends_in_a_sentence() -> None:
    never = Subspace((), (tile("x", (4, 5)),), (Constraint(var("x"), 3, "rows of the tile"),))
    with pytest.raises(ConfigError, match="drawn from 2 is legal: rows of the tile <= 3; give"):
        never.draw(np.random.default_rng(0), 1000)
