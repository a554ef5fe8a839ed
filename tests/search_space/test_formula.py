"""Formulas: text to scalars and to numpy, the two independent of each other; errors named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search_space.programs import result
from tilesmith.search_space.errors import WorkloadError
from tilesmith.search_space.formula import (
    evaluate,
    function_names,
    operand_count,
    parse_formula,
    to_scalar,
)
from tilesmith.search_space.ir.scalar import FUNCTIONS, load
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule

SAFE = (
    "add", "subtract", "multiply", "maximum", "minimum", "negate", "absolute", "tanh", "erf",
    "sigmoid", "relu", "clip", "gelu", "silu", "hard_swish", "greater_equal", "where",
)  # fmt: skip
ARITY = {**FUNCTIONS, **{n: 1 for n in function_names() if n not in FUNCTIONS}}


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


@given(formulas(), st.integers(0, 9999))
def test_compiled_and_numpy_agree(text: str, seed: int) -> None:
    formula = parse_formula(text)
    arrays = [
        np.random.default_rng(seed + n).uniform(-2, 2, 5).astype(np.float32) for n in range(3)
    ]
    i = axis("i", 5)
    value = to_scalar(formula, [load(f"x{n}", i.var) for n in range(3)])
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
