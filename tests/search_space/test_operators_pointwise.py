"""Formulas and the elementwise template, on drawn shapes and expressions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.template_checks import check_config
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.search_space.expressions.scalar import load, loads
from tilesmith.search_space.operator_parts.flattening import flatten
from tilesmith.search_space.operator_parts.formula import (
    evaluate,
    expanded,
    operand_count,
    parse_formula,
)
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.workload import Workload

EXTENTS = st.sampled_from([1, 2, 3, 5, 7, 16, 17, 31, 33])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds something"),
        ("add(x0", "lacks a '\\)'"),
        ("add(x0,x1))", "goes on"),
        ("frobnicate(x0)", "unknown function 'frobnicate'"),
        ("add(x0)", "takes 2 arguments"),
        ("relu(x0,x1)", "takes a value and 0 numbers"),
        ("add x0", "holds something"),
        ("add(,x1)", "lacks a value"),
        ("relu", "needs \\(arguments\\)"),
    ],
)
def test_a_bad_formula_is_explained(text: str, complaint: str) -> None:
    with pytest.raises(WorkloadError, match=complaint):
        parse_formula(text)


def test_a_formula_reads_its_operands_and_numbers() -> None:
    formula = parse_formula("clip(add(x2,multiply(x0,-1.5e1)),0,6)")
    assert operand_count(formula) == 3
    scalar = expanded(formula, [load(f"t{i}") for i in range(3)])
    assert [found.buffer for found in loads(scalar)] == ["t2", "t0"]
    x = np.linspace(-1, 1, 5)
    np.testing.assert_allclose(evaluate(formula, [x, x, 0 * x]), np.clip(-15 * x, 0, 6))


def test_a_step_without_its_numbers_takes_their_defaults() -> None:
    assert parse_formula("clip(x0)") == parse_formula("clip(x0,0,6)")


def test_an_operand_that_does_not_broadcast_is_refused() -> None:
    with pytest.raises(WorkloadError, match="x1=3 does not broadcast to 2x5"):
        Workload.parse("elementwise shape=2x5 expression=add(x0,x1) x1=3")
    with pytest.raises(WorkloadError, match="extent below 1"):
        Workload.parse("elementwise shape=0x5 expression=relu(x0)")
    with pytest.raises(WorkloadError, match="'exp' is not for dtype=int64"):
        Workload.parse("elementwise shape=5 expression=add(x0,exp(x0)) dtype=int64")
    with pytest.raises(WorkloadError, match="reads 0 operands"):
        Workload.parse("elementwise shape=5 expression=3")


@given(
    shape=st.lists(st.integers(1, 4), min_size=0, max_size=5),
    masks=st.lists(st.integers(0, 31), min_size=1, max_size=3),
)
def test_flattening_keeps_every_element_in_its_place(shape: list[int], masks: list[int]) -> None:
    operands = [[1 if mask >> i & 1 else e for i, e in enumerate(shape)] for mask in masks]
    flat = flatten(shape, operands)
    assert np.prod(flat.shape) == np.prod(shape)
    for position, operand in enumerate(operands):
        array = np.arange(int(np.prod(operand))).reshape(operand)
        pairs = zip(flat.shape, flat.varies[position], strict=True)
        merged = array.reshape([extent if moves else 1 for extent, moves in pairs])
        np.testing.assert_array_equal(
            np.broadcast_to(array, shape).ravel(), np.broadcast_to(merged, flat.shape).ravel()
        )


@settings(max_examples=8)
@given(
    shape=st.lists(EXTENTS, min_size=1, max_size=3),
    mask=st.integers(0, 7),
    unroll=st.sampled_from([1, 2, 4]),
    expression=st.sampled_from(["add(x0,x1)", "tanh(multiply(x0,x1))", "relu(subtract(x1,x0))"]),
)
def test_broadcast_chains_match_numpy(
    shape: list[int], mask: int, unroll: int, expression: str
) -> None:
    other = [1 if mask >> i & 1 else extent for i, extent in enumerate(shape)]
    full, second = ("x".join(map(str, s)) for s in (shape, other))
    workload = Workload.parse(f"elementwise shape={full} expression={expression} x1={second}")
    space = space_of(workload, host_target())
    config = next((c for c in space if c["unroll"] == unroll), next(iter(space)))
    check_config(workload, config, np.random.default_rng(mask))


@pytest.mark.parametrize(
    "function", ["exp", "log", "tanh", "erf", "sigmoid", "gelu", "silu", "sqrt", "power"]
)
def test_functions_are_accurate_over_their_range(function: str) -> None:
    """Against numpy in float64; a few units in the last place of the result."""
    positive = function in ("log", "sqrt", "power")
    x = np.concatenate([np.logspace(-6, 1.9, 500), [0.5, 1.0, 2.0]]).astype(np.float32)
    x = x if positive else np.concatenate([-x, x])
    formula = "power(x0,0.37)" if function == "power" else f"{function}(x0)"
    workload = Workload.parse(f"elementwise shape={len(x)} expression={formula}")
    from tests.conformance.template_checks import expected, run

    config = default_of(workload, host_target())
    want = expected(workload, {"x0": x})
    got = run(workload, config, {"x0": x})
    np.testing.assert_allclose(got, want, rtol=3e-6, atol=5e-7)
    if function == "gelu":  # which has a tail that 1 + erf would cancel
        tail = x.astype(np.float64) / 2 * np.vectorize(math.erfc)(-x.astype(np.float64) / 2**0.5)
        rounding = 8e-7 + 2e-7 * np.where(x < 0, x.astype(np.float64) ** 2 / 2, 0)
        assert np.all(np.abs(got - tail) <= np.abs(tail) * rounding + 1e-44)
    if function in ("tanh", "erf"):  # saturated exactly
        assert np.all(got[np.abs(x) > 10] == want[np.abs(x) > 10].astype(np.float32))
