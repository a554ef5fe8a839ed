"""Polynomials (exp, log, tanh, erf, erfc, sigmoid, sin, cos) within the errors that docs state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.codegen.kernels import narrowed, native, pointwise, vectorized
from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.expressions.scalar import Scalar, call, load
from tilesmith.search_space.hardware.instruction_set import vector_width

Floats = NDArray[np.float32]


def compiled(function: str, x: Floats, vector: bool, isa: str | None = None) -> Floats:
    element = load("x", var("i"))
    value = WRITTEN[function](element) if function in WRITTEN else call(function, element)
    schedule = pointwise(len(x), value, {"x": "float32"})
    target = narrowed(isa) if isa else None
    lanes = vector_width(target) if target else None
    if vector:
        schedule = vectorized(schedule, lanes) if lanes else vectorized(schedule)
    return native(schedule, {"x": x}, target) if target else native(schedule, {"x": x})


def grid(low: float, high: float, count: int = 20011) -> Floats:
    return np.linspace(low, high, count).astype(np.float32)


def magnitudes(low: float, high: float, count: int = 20011) -> Floats:
    """Positive numbers, evenly spread over their exponents."""
    return np.exp(np.linspace(np.log(low), np.log(high), count)).astype(np.float32)


def relative(found: Floats, exact: NDArray[Any]) -> float:
    return float(np.max(np.abs(found - exact) / np.abs(exact)))


def either(low: float, high: float) -> Floats:
    """Numbers of either sign."""
    return np.concatenate([-magnitudes(low, high), magnitudes(low, high)])


WRITTEN: dict[str, Callable[[Scalar], Scalar]] = {
    "1 - erf(x)": lambda x: call("subtract", 1.0, call("erf", x)),
    "1 + erf(-x)": lambda x: call("add", 1.0, call("erf", call("negate", x))),
    "erf(-x) + 1": lambda x: call("add", call("erf", call("negate", x)), 1.0),
}
"""What is computed as erfc, which no expression names."""

ERFC = np.vectorize(math.erfc, otypes=[np.float64])
ERF = np.vectorize(math.erf, otypes=[np.float64])
CASES: dict[str, tuple[Callable[[Any], Any], Floats, float]] = {
    "exp": (np.exp, grid(-87.2, 88.2), 2e-7),
    "log": (np.log, np.concatenate([magnitudes(1e-37, 0.9), magnitudes(1.1, 3e38)]), 3e-7),
    "tanh": (np.tanh, np.concatenate([-magnitudes(1e-6, 12), magnitudes(1e-6, 12)]), 4e-7),
    "erf": (ERF, np.concatenate([-magnitudes(1e-6, 6), magnitudes(1e-6, 6)]), 4e-7),
    **{form: (ERFC, np.concatenate([-magnitudes(1e-6, 30), magnitudes(1e-6, 9.19)]), 8e-7)
       for form in WRITTEN},
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), grid(-80, 80), 4e-7),
    "sin": (np.sin, np.concatenate([grid(-9, 9, 20010), grid(-1e4, 1e4, 20010)]), 2e-7),
    "cos": (np.cos, np.concatenate([grid(-9, 9), grid(-1e4, 1e4)]), 2e-7),
    "sinh": (np.sinh, either(1e-30, 89.4), 6e-7),
    "cosh": (np.cosh, either(1e-6, 89.4), 6e-7),
    "asin": (np.arcsin, either(1e-30, 1.0), 4e-7),
    "acos": (np.arccos, either(1e-6, 0.9999), 4e-7),
    "atan": (np.arctan, either(1e-30, 3e38), 4e-7),
    "asinh": (np.arcsinh, either(1e-30, 3e38), 4e-7),
    "acosh": (np.arccosh, 1 + magnitudes(1e-6, 3e38), 4e-7),
    "atanh": (np.arctanh, either(1e-30, 0.99999), 4e-7),
}  # fmt: skip


@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
@pytest.mark.parametrize("function", CASES)
def test_error_is_within_what_is_stated(function: str, vector: bool) -> None:
    exact, x, limit = CASES[function]
    assert relative(compiled(function, x, vector), exact(x.astype(np.float64))) < limit


@pytest.mark.parametrize("isa", ["avx10_256", "avx2", "sse"])
@pytest.mark.parametrize("function", ["exp", "tanh"])
def test_narrower_vectors_are_as_exact(
    function: str, isa: str, needs: Callable[[str], None]
) -> None:
    needs(isa)
    exact, x, limit = CASES[function]
    assert relative(compiled(function, x, True, isa), exact(x.astype(np.float64))) < 2 * limit


def test_log_near_one_is_absolutely_exact() -> None:
    x = grid(0.9, 1.1)
    assert np.max(np.abs(compiled("log", x, True) - np.log(x.astype(np.float64)))) < 1e-7


@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
def test_limits_saturate(vector: bool) -> None:
    x = np.array([-1e30, -200, -0.0, 0.0, 200, 1e30], dtype=np.float32)
    exponential = compiled("exp", x, vector)
    np.testing.assert_array_equal(exponential, [0, 0, 1, 1, np.inf, np.inf])
    np.testing.assert_allclose(compiled("sigmoid", x, vector), [0, 0, 0.5, 0.5, 1, 1], atol=1e-30)
    np.testing.assert_array_equal(compiled("tanh", x, vector), [-1, -1, 0, 0, 1, 1])
    np.testing.assert_allclose(compiled("erf", x, vector), [-1, -1, 0, 0, 1, 1], atol=1e-7)
    np.testing.assert_array_equal(compiled("1 - erf(x)", x, vector), [2, 2, 1, 1, 0, 0])
    denormal = np.array([9.3, 9.7, 10.0, 10.05, -np.inf, np.inf, np.nan], np.float32)
    np.testing.assert_allclose(
        compiled("1 - erf(x)", denormal, vector),
        ERFC(denormal.astype(np.float64)),
        rtol=4e-7,
        atol=2e-45,
    )


@pytest.mark.parametrize("function", ["floor", "ceil", "round", "absolute", "sqrt", "reciprocal"])
def test_exact_functions_are_exact(function: str) -> None:
    x = np.abs(grid(-9, 9, 73)) + np.float32(0.5)
    names = {"round": np.rint, "absolute": np.abs, "reciprocal": lambda v: np.float32(1) / v}
    expected = names.get(function, getattr(np, function, None))(x)
    np.testing.assert_array_equal(compiled(function, x, True), expected)


@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
@pytest.mark.parametrize("function", ["sin", "cos"])
def test_large_angles_are_angles(function: str, vector: bool) -> None:
    x = either(1e4, 3.4e38)
    exact = getattr(np, function)(x.astype(np.float64))
    assert np.abs(compiled(function, x, vector) - exact).max() < 2e-7
    x = np.array([np.inf, -np.inf, np.nan], np.float32)
    assert np.isnan(compiled(function, x, vector)).all()


INVERSES = {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip


@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
@pytest.mark.parametrize("function", INVERSES)
def test_ends_of_domains(function: str, vector: bool) -> None:
    """Infinities, zeros and ones, what is outside, what is no number."""
    x = np.array([-np.inf, -200, -1.5, -1, -0.0, 0, 1, 1.5, 200, np.inf, np.nan], np.float32)
    with np.errstate(all="ignore"):
        expected = INVERSES[function](x)
    found = compiled(function, x, vector)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=0)
    np.testing.assert_array_equal(np.signbit(found[4:6]), np.signbit(expected[4:6]))
