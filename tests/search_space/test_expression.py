"""Index expressions agree with Python's integers, whatever is done to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_space.expression import (
    Expr,
    ceildiv,
    const,
    floordiv,
    maximum,
    minimum,
    mod,
    nonnegative,
    var,
)

NAMES = ("i", "j", "k", "n")
Values = dict[str, int]


@dataclass(frozen=True)
class Pair:
    """An expression and the Python function it stands for."""

    expression: Expr
    function: Callable[[Values], int]


def _leaf() -> st.SearchStrategy[Pair]:
    names = st.sampled_from(NAMES).map(lambda n: Pair(var(n), lambda v: v[n]))
    return names | st.integers(-20, 20).map(lambda c: Pair(const(c), lambda _: c))


def _grow(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    two = st.tuples(inner, inner)
    scaled = st.tuples(inner, st.integers(-6, 6))
    divided = st.tuples(inner, st.integers(1, 9))
    return st.one_of(
        two.map(lambda p: Pair(p[0].expression + p[1].expression,
                               lambda v: p[0].function(v) + p[1].function(v))),
        two.map(lambda p: Pair(p[0].expression - p[1].expression,
                               lambda v: p[0].function(v) - p[1].function(v))),
        scaled.map(lambda p: Pair(p[0].expression * p[1], lambda v: p[0].function(v) * p[1])),
        divided.map(lambda p: Pair(p[0].expression // p[1], lambda v: p[0].function(v) // p[1])),
        divided.map(lambda p: Pair(p[0].expression % p[1], lambda v: p[0].function(v) % p[1])),
        two.map(lambda p: Pair(minimum(p[0].expression, p[1].expression),
                               lambda v: min(p[0].function(v), p[1].function(v)))),
        two.map(lambda p: Pair(maximum(p[0].expression, p[1].expression),
                               lambda v: max(p[0].function(v), p[1].function(v)))),
    )  # fmt: skip


pairs = st.recursive(_leaf(), _grow, max_leaves=8)
environments = st.fixed_dictionaries({name: st.integers(0, 40) for name in NAMES})


@given(pairs, environments)
def test_evaluation_agrees_with_python(pair: Pair, values: Values) -> None:
    assert pair.expression.evaluate(values) == pair.function(values)


@given(pairs, pairs, environments)
def test_products_agree_with_python(left: Pair, right: Pair, values: Values) -> None:
    product = left.expression * right.expression
    assert product.evaluate(values) == left.function(values) * right.function(values)


@given(pairs, pairs, environments)
def test_substitution_equals_evaluation_of_the_substitute(
    pair: Pair, other: Pair, values: Values
) -> None:
    replaced = pair.expression.substitute({"i": other.expression, "n": 7})
    expected = pair.function({**values, "i": other.function(values), "n": 7})
    assert replaced.evaluate(values) == expected
    assert "n" not in pair.expression.substitute({"n": 7}).variables()


@given(pairs, environments)
def test_bounds_enclose_every_value(pair: Pair, tops: Values) -> None:
    bounds = {name: const(top) for name, top in tops.items()}
    low, high = pair.expression.lower(bounds).constant, pair.expression.upper(bounds).constant
    assert low is not None and high is not None
    for scale in (0.0, 0.3, 0.5, 0.9, 1.0):
        values = {name: int(top * scale) for name, top in tops.items()}
        assert low <= pair.function(values) <= high


@given(pairs, environments, st.integers(1, 12))
def test_bounds_only_simplify_divisions_that_they_decide(
    pair: Pair, tops: Values, divisor: int
) -> None:
    bounds = {name: const(top) for name, top in tops.items()}
    for made, plain in ((floordiv, int.__floordiv__), (mod, int.__mod__)):
        expression = made(pair.expression, divisor, bounds)
        for scale in (0.0, 0.4, 1.0):
            values = {name: int(top * scale) for name, top in tops.items()}
            assert expression.evaluate(values) == plain(pair.function(values), divisor)
            assert expression.within(bounds).evaluate(values) == expression.evaluate(values)


@given(pairs, st.lists(environments, min_size=1, max_size=5))
def test_numpy_batches_agree_with_single_values(pair: Pair, rows: list[Values]) -> None:
    columns = {name: np.array([row[name] for row in rows]) for name in NAMES}
    found = np.broadcast_to(pair.expression.evaluate(columns), (len(rows),))
    assert found.tolist() == [pair.function(row) for row in rows]


@given(pairs, environments)
def test_what_is_called_nonnegative_is(pair: Pair, values: Values) -> None:
    positive = {name: value + 1 for name, value in values.items()}
    if nonnegative(pair.expression):
        assert pair.function(positive) >= 0


@given(st.integers(0, 1000), st.integers(1, 50))
def test_ceildiv_rounds_up(value: int, divisor: int) -> None:
    assert ceildiv(value, divisor).constant == -(-value // divisor)


def test_equal_polynomials_are_equal_objects() -> None:
    i, j = var("i"), var("j")
    assert (i + 1) * (i - 1) == i * i - 1
    assert i * 16 + j - i * 16 == j
    assert hash(i + j) == hash(j + i)
    assert (i - i) == const(0) and not (i - i).terms
    assert 2 - i == -(i - 2)


def test_divisible_terms_leave_a_division() -> None:
    i, j, f = var("i"), var("j"), var("f")
    assert (i * 32 + j) // 16 == i * 2 + j // 16
    assert (i * f + j) // f == i + j // f
    assert (i * f + j) % f == j % f
    assert floordiv(i * 16 + j, 16, {"j": const(15)}) == i
    assert mod(i * f + j, f, {"j": f - 1}) == j
    assert floordiv(i * 16 + j, 16, {"j": const(16)}) != i


def test_minimum_folds_where_the_difference_is_a_number() -> None:
    n = var("n")
    assert minimum(n, n + 3) == n
    assert maximum(n, n + 3) == n + 3
    assert minimum(4, 9).constant == 4
    assert minimum(n, 3).constant is None


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (var("i") * var("f") + var("j"), var("f")),
        (var("j") * 3, const(0)),
        (var("i") * var("i"), None),
        (var("i") // 4, None),
        (minimum(var("i"), 3) * 2, None),
    ],
)
def test_coefficient(expression: Expr, expected: Expr | None) -> None:
    assert expression.coefficient("i") == expected


def test_text_is_readable() -> None:
    i, n = var("i"), var("n")
    assert str(i * 4 - n + 1) == "i*4 - n + 1"
    assert str(-i) == "-i"
    assert str(const(0)) == "0"
    assert str((i + 1) // 4 + minimum(i, n)) == "((i + 1) // (4)) + min(i, n)"
