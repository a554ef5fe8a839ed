"""Native code at special values: NaN, infinities, zeros, denormals, the largest and the smallest.

The oracle is numpy in double precision, rounded to single. Each case runs in vectors of every width
that this machine has, in scalars, and with a tail under a mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.codegen.kernels import HOST, interpreted, narrowed, native, pointwise, vectorized
from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.expressions.scalar import REDUCERS, Scalar, call, load
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.fusion import pointwise as step
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.workloads.epilogue import STEPS

Floats = NDArray[np.float32]
X = load("x", var("i"))
Z = load("z", var("i"))
LIMITS = np.finfo(np.float32)
SPECIAL = np.array(
    [0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 7.0, 1e-3, -1e-3, 100.0,
     -100.0, LIMITS.max, LIMITS.min, LIMITS.tiny, -LIMITS.tiny, LIMITS.smallest_subnormal,
     -LIMITS.smallest_subnormal, 3e-39, -3e-39, 1e30, -1e30],
    dtype=np.float32,
)  # fmt: skip
WIDTHS = ["scalar", "host", "avx10_256", "avx2", "sse"]


@pytest.fixture(params=WIDTHS)
def width(request: pytest.FixtureRequest, needs: Callable[[str], None]) -> str:
    if request.param not in ("scalar", "host"):
        needs(request.param)
    return str(request.param)


def compiled(value: Scalar, arrays: dict[str, Floats], width: str) -> Floats:
    """y[i] = value, with as many elements as x: a tail, unless they fill whole vectors."""
    schedule = pointwise(len(arrays["x"]), value, dict.fromkeys(arrays, "float32"))
    if width == "scalar":
        return native(schedule, arrays)
    target = _target(width)
    return native(vectorized(schedule, vector_width(target)), arrays, target)


def _target(width: str) -> Target:
    return HOST if width in ("scalar", "host") else narrowed(width)


def pairs() -> dict[str, Floats]:
    """Every special value with every other."""
    x, z = np.meshgrid(SPECIAL, SPECIAL)
    return {"x": x.ravel(), "z": z.ravel()}


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_of_two_values(name: str, width: str) -> None:
    arrays = pairs()
    found = compiled(call(name, X, Z), arrays, width)
    np.testing.assert_array_equal(found, getattr(np, name)(arrays["x"], arrays["z"]))


@pytest.mark.parametrize("number", [0.0, -1.5, float("-inf"), float("inf")])
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_of_a_value_and_a_number(name: str, number: float, width: str) -> None:
    expected = getattr(np, name)(SPECIAL, np.float32(number))
    for value in (call(name, X, number), call(name, call("add", number, 0.0), X)):
        np.testing.assert_array_equal(compiled(value, {"x": SPECIAL}, width), expected)


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "clip", "hard_sigmoid", "hard_swish"])
def test_steps_that_cut(name: str, width: str) -> None:
    numbers = STEPS[name].arguments
    found = compiled(step(name, X, *numbers), {"x": SPECIAL}, width)
    with np.errstate(all="ignore"):
        expected = STEPS[name].formula(SPECIAL.astype(np.float64), None, *numbers)
    np.testing.assert_allclose(found, expected.astype(np.float32), rtol=1e-6, atol=1e-30)


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.sum, "product": np.prod, "max": np.max, "min": np.min, "max_number": np.max,
}  # fmt: skip


@pytest.mark.parametrize("along", [False, True], ids=["across", "along"])
@pytest.mark.parametrize("reducer", REDUCERS)
def test_reductions(reducer: str, along: bool, width: str) -> None:
    """Rows with one special value each, in any place, and rows of nothing else."""
    lanes, length = vector_width(_target(width)), 37  # longer than two vectors, and a tail
    rows = np.tile(np.linspace(-1, 1, length, dtype=np.float32), (3 * len(SPECIAL), 1))
    for number, special in enumerate(SPECIAL):
        rows[3 * number, number % length] = special
        rows[3 * number + 1, [0, -1]] = special, 1.0
        rows[3 * number + 2, :] = special
    if reducer == "max_number":  # what comes of no number is not said
        rows = rows[~np.isnan(rows).any(axis=1)]
    i, k = axis("i", len(rows)), axis("k", length)
    stage = Stage("y", (i,), load("x", i.var, k.var), (k,), reducer)
    compute = ComputeDefinition("reduction", (Tensor("x", rows.shape),), (stage,))
    schedule = Schedule(compute)
    if width != "scalar":
        name = "k" if along else "i"
        schedule = schedule.split("y", name, lanes, "outer", "lane").vectorize("y", "lane")
        if not along:
            schedule = schedule.reorder("y", ("outer", "k", "lane"))
    found = native(schedule, {"x": rows}, _target(width))
    with np.errstate(all="ignore"):
        expected = _REDUCTIONS[reducer](rows.astype(np.float64), axis=1).astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(interpreted(schedule, {"x": rows}), expected, rtol=1e-6, atol=1e-6)


def exact(function: Callable[..., Any], *arrays: Floats) -> Floats:
    """In double precision, rounded."""
    with np.errstate(all="ignore"):
        found = function(*(array.astype(np.float64) for array in arrays))
        return np.asarray(found).astype(np.float32)


def agree(found: Floats, expected: Floats, relative: float) -> None:
    """Equal but for a relative error, or for a step of the denormals."""
    np.testing.assert_allclose(found, expected, rtol=relative, atol=2e-45)


MAPS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "exp": (np.exp, 2e-7),
    "log": (np.log, 3e-7),
    "sqrt": (np.sqrt, 0.0),
    "reciprocal": (lambda x: 1.0 / x, 0.0),
    "tanh": (np.tanh, 4e-7),
    "erf": (np.vectorize(math.erf, otypes=[np.float64]), 4e-7),
    "sigmoid": (lambda x: 1.0 / (1.0 + np.exp(-x)), 4e-7),
    "negate": (np.negative, 0.0),
    "absolute": (np.abs, 0.0),
    "floor": (np.floor, 0.0),
    "ceil": (np.ceil, 0.0),
    "round": (np.rint, 0.0),
}


@pytest.mark.parametrize("name", MAPS)
def test_functions_of_one_value(name: str, width: str) -> None:
    function, relative = MAPS[name]
    expected = exact(function, SPECIAL)
    if name == "sigmoid":
        expected[SPECIAL < -88] = 0
    agree(compiled(call(name, X), {"x": SPECIAL}, width), expected, relative)
    bits = np.random.default_rng(0).integers(0, 2**32, 9001, dtype=np.uint32)
    anything = bits.view(np.float32)  # every exponent, either sign, NaNs
    expected = exact(function, anything)
    if name == "sigmoid":
        expected[anything < -88] = 0
    agree(compiled(call(name, X), {"x": anything}, width), expected, relative)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
def test_arithmetic(name: str, width: str) -> None:
    arrays = pairs()
    found = compiled(call(name, X, Z), arrays, width)
    agree(found, exact(getattr(np, name), arrays["x"], arrays["z"]), 0.0)


def test_comparisons_and_choices(width: str) -> None:
    arrays = pairs()
    x, z = arrays["x"], arrays["z"]
    found = compiled(call("greater_equal", X, Z), arrays, width)
    np.testing.assert_array_equal(found, x >= z)
    found = compiled(call("where", X, Z, 2.0), arrays, width)
    np.testing.assert_array_equal(found, np.where(x != 0, z, np.float32(2)))


def test_powers_of_two_values(width: str) -> None:
    """Infinite only where the exact power is, or so close to it that its error reaches there."""
    arrays = pairs()
    x, y = arrays["x"], arrays["z"]
    found, expected = compiled(call("power", X, Z), arrays, width), exact(np.power, x, y)
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    with np.errstate(all="ignore"):
        relative = 4e-7 * (1 + np.abs(y * np.log(np.abs(x.astype(np.float64)))))
        error = np.abs(np.clip(found, -LIMITS.max, LIMITS.max) - expected)
        close = error <= relative * np.abs(expected) + 2e-45
    wrong = ~same & ~close
    assert not wrong.any(), (x[wrong], y[wrong], found[wrong], expected[wrong])


@pytest.mark.parametrize("number", [0.0, 0.3, -1.7, 9.0, -9.0, 12.0, -12.0, 0.5, np.inf, -np.inf])
def test_powers_by_a_number(number: float, width: str) -> None:
    found = compiled(call("power", X, number), {"x": SPECIAL}, width)
    exponents = np.full_like(SPECIAL, number)
    agree(found, exact(np.power, SPECIAL, exponents), 3e-5)


@pytest.mark.parametrize("number", [0.0, -0.0, 1.0, -1.0])
def test_products_with_a_number(number: float, width: str) -> None:
    found = compiled(call("multiply", X, number), {"x": SPECIAL}, width)
    np.testing.assert_array_equal(found, exact(lambda x: x * number, SPECIAL))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_conversions_to_short_whole_numbers(dtype: str, width: str) -> None:
    """Cut towards zero, to the nearest there is; not-a-number becomes 0."""
    ends = np.iinfo(dtype)
    near = np.array([ends.min, ends.max], np.float32)[:, None] + np.linspace(-2, 2, 17)
    x = np.concatenate([SPECIAL, near.ravel().astype(np.float32)])
    with np.errstate(all="ignore"):
        expected = np.clip(np.trunc(np.nan_to_num(x, nan=0.0)), ends.min, ends.max).astype(dtype)
    i = axis("i", len(x))
    stage = Stage("y", (i,), call(f"to_{dtype}", X), dtype=dtype)
    schedule = Schedule(ComputeDefinition("cut", (Tensor("x", (len(x),)),), (stage,)))
    if width == "scalar":
        found = native(schedule, {"x": x})
    else:
        target = _target(width)
        found = native(vectorized(schedule, vector_width(target)), {"x": x}, target)
    np.testing.assert_array_equal(found, expected)
