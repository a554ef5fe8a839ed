"""Formulas: text to scalars and to numpy, the two independent of each other; errors named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search_space.programs import result
from tilesmith.search_space.expressions.scalar import (
    COMPOSITES,
    FUNCTIONS,
    Const,
    Scalar,
    call,
    load,
)
from tilesmith.search_space.operator_parts.formula import (
    DEEPEST,
    evaluate,
    expanded,
    formula_text,
    number,
    operand,
    operand_count,
    parse_formula,
    substituted,
    uses,
)
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.epilogue import STEPS

SAFE = (
    "add", "subtract", "multiply", "maximum", "minimum", "negate", "absolute", "tanh", "erf",
    "sigmoid", "relu", "clip", "gelu", "silu", "hard_swish", "greater_equal", "where",
)  # fmt: skip
ARITY = {**FUNCTIONS, **dict.fromkeys(COMPOSITES, 1)}


NUMBERS = st.one_of(
    st.integers(-9, 99).map(Const),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(number),
)


def scalars() -> st.SearchStrategy[Scalar]:
    """Formulas of any function, numbers of composites among them."""

    def calls(inner: st.SearchStrategy[Scalar]) -> st.SearchStrategy[Scalar]:
        function = st.sampled_from(sorted(FUNCTIONS)).flatmap(
            lambda name: st.tuples(*[inner] * FUNCTIONS[name]).map(lambda a: call(name, *a))
        )
        composite = st.sampled_from(sorted(COMPOSITES)).flatmap(
            lambda name: st.tuples(inner, *[NUMBERS] * (COMPOSITES[name] - 1)).map(
                lambda a: call(name, *a)
            )
        )
        return function | composite

    leaf: st.SearchStrategy[Scalar] = st.integers(0, 12).map(operand) | NUMBERS
    return st.recursive(leaf, calls, max_leaves=8)


def formulas() -> st.SearchStrategy[str]:
    leaf = st.sampled_from(("x0", "x1", "x2", "1.5", "-2", "0.25"))
    return st.recursive(
        leaf,
        lambda inner: st.sampled_from(SAFE).flatmap(
            lambda name: st.tuples(*[inner] * ARITY[name]).map(
                lambda parts: f"{name}({','.join(parts)})"
            )
        ),
        max_leaves=6,
    )


@given(scalars())
def test_a_formula_is_read_as_it_is_written(formula: Scalar) -> None:
    text = formula_text(formula)
    assert " " not in text
    assert parse_formula(text) == formula
    assert formula_text(parse_formula(text)) == text


@given(formulas(), formulas())
def test_a_formula_in_the_place_of_an_operand(outer: str, inner: str) -> None:
    outside, inside = parse_formula(outer), parse_formula(inner)
    merged = substituted(outside, {0: inside, 1: operand(1), 2: operand(0)})
    x0, x1, x2 = np.random.default_rng(0).uniform(-2, 2, (3, 5))
    expected = evaluate(outside, [evaluate(inside, [x0, x1, x2]), x1, x0])
    np.testing.assert_array_equal(evaluate(merged, [x0, x1, x2]), expected)
    inside_once = {n: uses(inside, n) for n in range(3)}
    assert uses(merged, 2) == uses(outside, 0) * inside_once[2]
    assert uses(merged, 1) == uses(outside, 0) * inside_once[1] + uses(outside, 1)
    assert substituted(outside, {0: inside}) == substituted(
        outside, {0: inside, 1: operand(1), 2: operand(2)}
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (number(1 / 3), "0.33333334"), (number(1e-4), "1e-04"), (number(6), "6.0"),
        (number(-0.1), "-0.1"), (number(0), "0.0"), (Const(0), "0"), (Const(1 / 3), repr(1 / 3)),
        (Const(1e300), "1e+300"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_single_precision_tells_them_apart(value: Const, text: str) -> None:
    assert formula_text(value) == text
    assert parse_formula(text) == value


def test_composites_are_the_epilogue_steps_without_operand() -> None:
    steps = {
        name: 1 + len(kind.arguments)
        for name, kind in STEPS.items()
        if kind.operand == "none" and name not in FUNCTIONS
    }
    assert steps == dict(COMPOSITES)


@given(formulas(), st.integers(0, 9999))
def test_compiled_and_numpy_agree(text: str, seed: int) -> None:
    formula = parse_formula(text)
    arrays = [
        np.random.default_rng(seed + n).uniform(-2, 2, 5).astype(np.float32) for n in range(3)
    ]
    i = axis("i", 5)
    value = expanded(formula, [load(f"x{n}", i.var) for n in range(3)])
    tensors = tuple(Tensor(f"x{n}", (5,)) for n in range(3))
    program = lower(Schedule(ComputeDefinition("f", tensors, (Stage("y", (i,), value),))))
    found = result(program, {f"x{n}": array for n, array in enumerate(arrays)})
    expected = np.broadcast_to(evaluate(formula, arrays), (5,))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "count"), [("x0", 1), ("add(x0,x3)", 4), ("relu(2.5)", 0), ("where(x1,x0,0)", 2)]
)
def test_operands_are_counted(text: str, count: int) -> None:
    assert operand_count(parse_formula(text)) == count


def test_numbers_of_steps_may_be_left_out() -> None:
    assert parse_formula("clip(x0)") == parse_formula("clip(x0,0,6)")
    assert evaluate(parse_formula("clip(x0,-1,1)"), [np.array([5.0])]).tolist() == [1.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds something that is no name"),
        ("x0 x1", "holds something"),
        ("relu", r"'relu' is a function and needs \(arguments\)"),
        ("relu(x0", r"lacks a '\)' or ','"),
        ("relu()", "lacks a value before"),
        ("add(x0)", "'add' takes 2 arguments"),
        ("frobnicate(x0)", "unknown function 'frobnicate'; one of add"),
        ("clip(x0,x1,x2)", "'clip' takes a value and 2 numbers"),
        ("relu(x0))", "goes on after its end"),
        ("add(x0,)", "lacks a value"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        parse_formula(text)


def test_a_formula_may_be_only_so_deep():
    assert (
        formula_text(parse_formula("tanh(" * DEEPEST + "x0" + ")" * DEEPEST)).count("tanh") == 128
    )
    with pytest.raises(WorkloadError, match=r"nests more than 128 functions"):
        parse_formula("tanh(" * 3000 + "x0" + ")" * 3000)
