"""The interpreter: every function against numpy, and the errors that only it can see."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.search_space.programs import result
from tilesmith.search_space.expressions.expression import const, var
from tilesmith.search_space.expressions.scalar import FUNCTIONS, REDUCERS, Const, call, load
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.program import Allocate, Block, Buffer, Loop, Program, sequence
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.support.errors import VerificationError

_NUMPY = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "maximum": np.maximum, "minimum": np.minimum, "power": np.power, "negate": np.negative,
    "absolute": np.abs, "exp": np.exp, "log": np.log, "sqrt": np.sqrt,
    "reciprocal": np.reciprocal, "tanh": np.tanh, "erf": np.vectorize(math.erf),
    "sin": np.sin, "cos": np.cos, "sinh": np.sinh, "cosh": np.cosh, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "floor": np.floor, "ceil": np.ceil,
    "round": np.rint, "greater_equal": lambda a, b: (a >= b).astype(float),
    "where": lambda flag, a, b: np.where(flag != 0, a, b), "modulo": np.mod,
    "equal": np.equal, "greater": np.greater, "less": np.less, "less_equal": np.less_equal,
    "is_nan": np.isnan, "is_inf": np.isinf, "and": np.logical_and, "or": np.logical_or,
    "xor": np.logical_xor, "not": np.logical_not, "to_float32": np.float32, "to_int64": np.int64,
    "to_int32": np.int32, "to_bool": np.bool_, "to_int16": np.int16, "to_int8": np.int8,
    "to_uint16": np.uint16, "to_uint8": np.uint8, "to_uint32": np.uint32, "to_uint64": np.uint64,
    "to_float64": np.float64,
    "ordinal": lambda a: a.astype(np.float32).view(np.int32),  # of what is above zero
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n in _NUMPY])
def test_functions(name: str) -> None:
    i = axis("i", 6)
    rng = np.random.default_rng(1)
    arrays = {f"x{n}": rng.uniform(0.2, 3, 6).astype(np.float32) for n in range(FUNCTIONS[name])}
    if name == "where":
        arrays["x0"] = np.array([0, 1, 0, 1, 1, 0], dtype=np.float32)
    if name in ("asin", "acos", "atanh", "acosh"):
        arrays["x0"] = arrays["x0"] / 4 + np.float32(name == "acosh")
    value = call(name, *(load(tensor, i.var) for tensor in arrays))
    compute = ComputeDefinition(
        "f", tuple(Tensor(n, (6,)) for n in arrays), (Stage("y", (i,), value),)
    )
    found = result(lower(Schedule(compute)), arrays)
    expected = _NUMPY[name](*(array.astype(np.float64) for array in arrays.values()))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("reducer", REDUCERS)
def test_reductions(reducer: str) -> None:
    i, k = axis("i", 3), axis("k", 5)
    stage = Stage("y", (i,), load("x", i.var, k.var), (k,), reducer)
    compute = ComputeDefinition("r", (Tensor("x", (3, 5)),), (stage,))
    x = np.random.default_rng(2).uniform(-2, 2, (3, 5)).astype(np.float32)
    names = {"product": "prod", "max_number": "max"}
    expected = getattr(np, names.get(reducer, reducer))(x, axis=1)
    np.testing.assert_allclose(result(lower(Schedule(compute)), {"x": x}), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("reducer", ["max", "min"])
def test_extremes_of_whole_numbers(reducer: str, dtype: str) -> None:
    """They begin from the least, or the largest, that there is."""
    i, k = axis("i", 3), axis("k", 5)
    stage = Stage("y", (i,), load("x", i.var, k.var), (k,), reducer, dtype=dtype)
    compute = ComputeDefinition("r", (Tensor("x", (3, 5), dtype),), (stage,))
    limits = np.iinfo(dtype)
    x = np.random.default_rng(2).integers(limits.min, limits.max, (3, 5)).astype(dtype)
    x[1], x[2] = limits.min, limits.max
    expected = getattr(np, reducer)(x, axis=1)
    np.testing.assert_array_equal(result(lower(Schedule(compute)), {"x": x}), expected)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_keep_what_is_not_a_number(name: str) -> None:
    """In either place, alone and in a reduction, first, last or between."""
    special = np.array([np.nan, np.inf, -np.inf, 0, 1], dtype=np.float32)
    x, z = (a.ravel() for a in np.meshgrid(special, special))
    i, k = axis("i", len(x)), axis("k", 3)
    both = call(name, load("x", i.var), load("z", i.var))
    tensors = (Tensor("x", x.shape), Tensor("z", z.shape))
    compute = ComputeDefinition("two", tensors, (Stage("y", (i,), both),))
    found = result(lower(Schedule(compute)), {"x": x, "z": z})
    np.testing.assert_array_equal(found, getattr(np, name)(x, z))

    rows = np.stack([x, z, np.ones_like(x)], axis=1)
    stage = Stage("y", (i,), load("x", i.var, k.var), (k,), name[:3])
    compute = ComputeDefinition("rows", (Tensor("x", rows.shape),), (stage,))
    expected = getattr(np, name[:3])(rows, axis=1)
    np.testing.assert_array_equal(result(lower(Schedule(compute)), {"x": rows}), expected)


def _program(*blocks: Block, temporary: Buffer | None = None) -> Program:
    body = Loop("i", const(4), "serial", sequence(*blocks))
    y = Buffer("y", (const(4),), role="output")
    whole = Allocate(temporary, body) if temporary else body
    return Program("p", (Buffer("x", (const(4),), role="input"), y), whole)


def test_memory_nobody_wrote_is_not_a_number() -> None:
    t = Buffer("t", (const(4),))
    found = result(
        _program(Block("s", "y", (var("i"),), load("t", var("i"))), temporary=t),
        {"x": np.ones(4, np.float32)},
    )
    assert np.isnan(found).all()


def test_integers_stay_integers() -> None:
    i = axis("i", 3)
    total = call("add", load("x", i.var), load("x", i.var))
    stage = Stage("y", (i,), total, dtype="int64")
    compute = ComputeDefinition("n", (Tensor("x", (3,), "int64"),), (stage,))
    x = np.array([2**53 + 1, -7, 0])
    assert result(lower(Schedule(compute)), {"x": x}).tolist() == [2**54 + 2, -14, 0]


X = np.arange(4, dtype=np.float32)


@pytest.mark.parametrize(
    ("program", "arrays", "message"),
    [
        (_program(Block("s", "y", (var("i"),), load("x", var("i") + 1))), {"x": X},
         r"x\[i \+ 1\] is \[4\], outside the shape \(4,\)"),
        (_program(Block("s", "y", (var("i") - 1,), Const(0.0))), {"x": X}, r"is \[-1\], outside"),
        (_program(Block("s", "z", (var("i"),), Const(0.0))), {"x": X},
         "buffer 'z' is used outside its allocation"),
        (_program(Block("s", "y", (var("j"),), Const(0.0))), {"x": X},
         "variable 'j' in 'j' is bound by no loop"),
        (_program(Block("s", "y", (var("i"),), Const(0.0))), {}, "no array was given for .* 'x'"),
        (_program(Block("s", "y", (var("i"),), Const(0.0))), {"x": X[:3]}, r"shape \(4,\)"),
        (_program(Block("s", "y", (var("i"),), Const(0.0)), temporary=Buffer("t", (var("f"),))),
         {"x": X}, "symbolic extent f"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    program: Program, arrays: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(VerificationError, match=message):
        interpret(program, arrays)


def test_inputs_are_not_changed() -> None:
    x = X.copy()
    interpret(_program(Block("s", "y", (var("i"),), load("x", var("i")))), {"x": x})
    np.testing.assert_array_equal(x, X)


_BITS = {
    "bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor,
    "bit_not": np.bitwise_not, "shift_left": np.left_shift, "shift_right": np.right_shift,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["int64", "uint8", "int16"])
@pytest.mark.parametrize("name", _BITS)
def test_bits(name: str, dtype: str) -> None:
    i = axis("i", 6)
    arrays = {"x0": np.array([0, 1, 7, 100, 127, 5], dtype)}
    if FUNCTIONS[name] == 2:
        arrays["x1"] = np.array([3, 0, 1, 2, 4, 6], dtype)
    value = call(name, *(load(tensor, i.var) for tensor in arrays))
    compute = ComputeDefinition(
        "f", tuple(Tensor(n, (6,), dtype) for n in arrays), (Stage("y", (i,), value, dtype=dtype),)
    )
    found = result(lower(Schedule(compute)), arrays)
    np.testing.assert_array_equal(found, _BITS[name](*arrays.values()))


def test_every_function_is_tested() -> None:
    assert set(FUNCTIONS) == {*_NUMPY, *_BITS}
