"""Index expressions agree with Python's integers, whatever is done to them."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search_space.integer_expressions import NAMES, Pair, Values, environments, pairs
from tilesmith.search_space.expressions.expression import (
    Atom,
    Expr,
    ceildiv,
    const,
    maximum,
    minimum,
    var,
)


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


@given(pairs, pairs)
def test_mapped_atoms_make_the_sum_of_their_products(pair: Pair, other: Pair) -> None:
    def change(atom: Atom) -> Expr:
        return other.expression if atom.name == "i" else Expr((((atom,), 1),))

    products = (
        prod((change(atom) for atom in monomial), start=const(factor))
        for monomial, factor in pair.expression.terms
    )
    assert pair.expression.map_atoms(change) == sum(products, start=const(0))


@given(pairs)
def test_an_expression_none_of_whose_atoms_change_stays_the_same_object(pair: Pair) -> None:
    assert pair.expression.map_atoms(lambda atom: Expr((((atom,), 1),))) is pair.expression


@given(pairs, st.lists(environments, min_size=1, max_size=5))
def test_numpy_batches_agree_with_single_values(pair: Pair, rows: list[Values]) -> None:
    columns = {name: np.array([row[name] for row in rows]) for name in NAMES}
    found = np.broadcast_to(pair.expression.evaluate(columns), (len(rows),))
    assert found.tolist() == [pair.function(row) for row in rows]


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
