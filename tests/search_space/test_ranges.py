"""Ranges of index expressions enclose what Python's integers give."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.search_space.integer_expressions import Pair, Values, environments, pairs
from tilesmith.search_space.expressions.expression import const, var
from tilesmith.search_space.expressions.ranges import (
    floordiv,
    lower,
    mod,
    nonnegative,
    upper,
    within,
)


@given(pairs, environments)
def test_bounds_enclose_every_value(pair: Pair, tops: Values) -> None:
    bounds = {name: const(top) for name, top in tops.items()}
    low, high = lower(pair.expression, bounds).constant, upper(pair.expression, bounds).constant
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
            assert within(expression, bounds).evaluate(values) == expression.evaluate(values)


@given(pairs, environments)
def test_what_is_called_nonnegative_is(pair: Pair, values: Values) -> None:
    positive = {name: value + 1 for name, value in values.items()}
    if nonnegative(pair.expression):
        assert pair.function(positive) >= 0


def test_bounds_decide_divisions() -> None:
    i, j, f = var("i"), var("j"), var("f")
    assert floordiv(i * 16 + j, 16, {"j": const(15)}) == i
    assert mod(i * f + j, f, {"j": f - 1}) == j
    assert floordiv(i * 16 + j, 16, {"j": const(16)}) != i
