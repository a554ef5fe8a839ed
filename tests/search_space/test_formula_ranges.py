"""Ranges of formulas hold of every value that the reference computes; against all operands."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilesmith.search_space.expressions.scalar import Scalar, call
from tilesmith.search_space.operator_parts.formula import evaluate, operand, parse_formula
from tilesmith.search_space.operator_parts.formula_ranges import hull, limits, range_of

INT8, INT64 = (-128, 127), (-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("formula", "operands", "dtypes", "range_"),
    [
        ("minimum(maximum(x0,0),199)", [None], ["int64"], (0, 199)),
        ("minimum(maximum(to_int64(where(less(x0,0),add(x0,9),x0)),0),8)", [None], ["int32"],
         (0, 8)),
        ("add(multiply(x0,16),x1)", [(0, 9), (0, 15)], ["int64", "int64"], (0, 159)),
        ("multiply(x0,4)", [(0, 2**62)], ["int64"], INT64),
        ("subtract(x0,1)", [None], ["int32"], (-(2**31), 2**31 - 1)),
        ("divide(x0,2)", [(-5, 9)], ["int64"], (-2, 4)),
        ("divide(x0,x1)", [(0, 9), (0, 2)], ["int64", "int64"], INT64),
        ("modulo(x0,7)", [None], ["int64"], (0, 6)),
        ("modulo(x0,7)", [(1, 3)], ["int64"], (1, 3)),
        ("absolute(x0)", [(-3, 2)], ["int64"], (0, 3)),
        ("to_int8(x0)", [(0, 300)], ["int64"], INT8),
        ("to_int64(x0)", [None], ["float32"], INT64),
        ("to_float32(x0)", [(0, 3)], ["int64"], None),
        ("add(x0,1)", [None], ["float32"], None),
        ("to_int64(less(x0,3))", [None], ["float32"], (0, 1)),
        ("bit_and(x0,3)", [(0, 9)], ["int64"], INT64),
    ],
)  # fmt: skip
def test_ranges_are_as_tight_as_stated(
    formula: str,
    operands: list[tuple[int, int] | None],
    dtypes: list[str],
    range_: tuple[int, int] | None,
) -> None:
    assert range_of(parse_formula(formula), operands, dtypes) == range_


def test_ranges_of_several_and_of_types() -> None:
    assert hull([(0, 2), (-3, 1)]) == (-3, 2)
    assert hull([(0, 2), None]) is None and hull([]) is None
    assert limits("uint8") == (0, 255) and limits("bool") == (0, 1) and limits("float16") is None


ENDS = st.integers(-6, 6)
FORMULAS = st.recursive(
    st.sampled_from([operand(0), operand(1)]),
    lambda inner: st.one_of(
        st.builds(
            call,
            st.sampled_from(
                ["add", "subtract", "multiply", "maximum", "minimum", "divide", "modulo"]
            ),
            inner, inner,
        ),
        st.builds(call, st.sampled_from(["negate", "absolute"]), inner),
        st.builds(lambda a, b, c: call("where", call("less", a, b), b, c), inner, inner, inner),
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=80)
@given(FORMULAS, st.tuples(ENDS, ENDS).map(sorted), st.tuples(ENDS, ENDS).map(sorted))
def test_every_value_lies_in_the_range(formula: Scalar, a: list[int], b: list[int]) -> None:
    """Of bytes, which wrap around soon."""
    own = range_of(formula, [(a[0], a[1]), (b[0], b[1])], ["int8", "int8"])
    assert own is not None
    pairs = np.array(
        list(itertools.product(range(a[0], a[1] + 1), range(b[0], b[1] + 1))), np.int8
    ).T
    with np.errstate(all="ignore"):
        values = np.asarray(evaluate(formula, list(pairs)))
    assert values.dtype == np.int8 and own[0] <= values.min() and values.max() <= own[1]
