"""Elementwise kernels of several element types: drawn shapes, and numbers that are special."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.conformance.template_checks import run
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import space_of
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.workloads.workload import Workload, shape_text

EXTENTS = st.sampled_from([1, 2, 3, 7, 16, 17, 31, 33, 64, 67])
FLOATS = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1.5, -2.5, 1e-40, 3e38, 16777217.0]
WHOLE = [0, 1, -1, 2, -7, 100, 2**24 + 1, -(2**31), 2**31 - 1]
LONG = [*WHOLE, 2**53 + 1, -(2**63), 2**63 - 1]

FORMULAS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "where(x0,x1,x2)": ("bool,float32,float32", "float32", np.where),
    "where(greater(x0,x1),x0,x1)": (
        "float32,float32", "float32", lambda a, b: np.where(a > b, a, b)),
    "where(x0,to_int64(3),to_int64(9007199254740993))": (
        "bool", "int64", lambda a: np.where(a, 3, 2**53 + 1)),
    "where(is_nan(x0),0,x0)": ("float32", "float32", lambda a: np.where(np.isnan(a), 0, a)),
    "and(less(x0,x1),not(equal(x2,3)))": (
        "float32,float32,int64", "bool", lambda a, b, c: (a < b) & (c != 3)),
    "xor(or(x0,is_inf(x1)),less_equal(x1,x1))": (
        "bool,float32", "bool", lambda a, b: (a | np.isinf(b)) ^ (b <= b)),
    "equal(x0,x1)": ("bool,bool", "bool", np.equal),
    "to_bool(x0)": ("float32", "bool", lambda a: a != 0),
    "to_float32(x0)": ("int64", "float32", lambda a: a.astype(np.float32)),
    "to_int32(x0)": ("int64", "int32", lambda a: a.astype(np.int32)),
    "to_int64(greater_equal(x0,x1))": ("int32,int32", "int64", np.greater_equal),
    "subtract(multiply(x0,x1),negate(x1))": ("int64,int64", "int64", lambda a, b: a * b + b),
    "maximum(absolute(x0),x1)": ("int32,int32", "int32", lambda a, b: np.maximum(np.abs(a), b)),
    "modulo(x0,x1)": ("int64,int64", "int64", np.mod),
    "divide(x0,7)": ("int64", "int64", lambda a: (a - np.fmod(a, 7)) // 7),
}  # fmt: skip
"""Types of operands and of the result, and numpy's way to say it, by formula."""


def drawn(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    """Special numbers beside others."""
    if dtype == "bool":
        return rng.random(shape) < 0.5
    special = {"float32": FLOATS, "int32": WHOLE, "int64": LONG}[dtype]
    array = rng.choice(np.array(special, to_numpy(dtype)), shape)
    plain = rng.integers(-50, 50, shape).astype(array.dtype)
    return np.where(rng.random(shape) < 0.5, array, plain)


@pytest.mark.parametrize("formula", FORMULAS)
@given(st.data())
@settings(max_examples=6, deadline=None)
def test_any_shape_and_number(formula: str, data: st.DataObject) -> None:
    types, dtype, reference = FORMULAS[formula]
    shape = tuple(data.draw(st.lists(EXTENTS, min_size=1, max_size=3)))
    parameters: dict[str, int | str] = {"shape": shape_text(shape), "expression": formula}
    rng = np.random.default_rng(zlib.crc32(repr((formula, shape)).encode()))
    inputs: dict[str, NDArray[Any]] = {}
    for i, name in enumerate(types.split(",")):
        own = tuple(data.draw(st.sampled_from([1, extent])) for extent in shape) if i else shape
        parameters[f"x{i}"] = shape_text(own)
        inputs[f"x{i}"] = drawn(name, own, rng)
    workload = Workload.of("elementwise", {**parameters, "types": types}, dtype=dtype)
    assert Workload.parse(workload.key) == workload
    (config,) = space_of(workload, host_target()).sample(rng, 1)
    with np.errstate(all="ignore"):
        wanted = np.broadcast_to(reference(*inputs.values()), shape).astype(to_numpy(dtype))
    np.testing.assert_array_equal(run(workload, config, inputs), wanted)


def test_quotients_of_whole_numbers_never_trap() -> None:
    """By zero, and of the least number by -1."""
    a, b = (x.ravel() for x in np.meshgrid(np.array(LONG), np.array(LONG)))
    workload = Workload.of(
        "elementwise", {"shape": str(a.size), "expression": "divide(x0,x1)"}, dtype="int64"
    )
    (config,) = space_of(workload, host_target()).sample(np.random.default_rng(0), 1)
    found = run(workload, config, {"x0": a, "x1": b})
    exact = [0 if y == 0 else _cut(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(found, exact)


def _cut(x: int, y: int) -> int:
    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    return (quotient + 2**63) % 2**64 - 2**63


def test_numbers_that_do_not_fit_become_the_nearest() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 2.9, -2.9], np.float32)
    workload = Workload.of(
        "elementwise",
        {"shape": "7", "expression": "to_int32(x0)", "types": "float32"},
        dtype="int32",
    )
    (config,) = space_of(workload, host_target()).sample(np.random.default_rng(0), 1)
    most, least = 2**31 - 1, -(2**31)
    np.testing.assert_array_equal(
        run(workload, config, {"x0": x}), [0, most, least, most, least, 2, -2]
    )
