"""Maps of one element to one element: arithmetic, comparisons, logic, choices, conversions.

Rules look at the shapes of their operands alone, not at the operation's: so the body of a
reduction, a function of single numbers, can be put to work on whole tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tilesmith.capabilities.stablehlo.attributes import tensor_type, text
from tilesmith.capabilities.stablehlo.builder import GraphBuilder, TensorValue
from tilesmith.capabilities.stablehlo.translator import Rule, Translation, Values, rules
from tilesmith.search_space.expressions.dtypes import is_floating, size_of

Formula = Callable[..., TensorValue]
"""A function of a builder and values."""


def formula(*names: str) -> Callable[[Formula], Formula]:
    """Decorator: the function of a builder and values computes these operations."""

    def add(function: Formula) -> Formula:
        def rule(translation: Translation, operation: Any, values: Values) -> Values:
            return [function(translation.builder, *values)]

        for name in names:
            rules.register(name)(rule)
        return function

    return add


def _as_onnx(operator: str) -> Rule:
    def rule(translation: Translation, operation: Any, values: Values) -> Values:
        return [translation.builder.elementwise(operator, *values)]

    return rule


for _name, _operator in {
    "abs": "Abs", "ceil": "Ceil", "floor": "Floor", "cosine": "Cos", "sine": "Sin", "tan": "Tan",
    "tanh": "Tanh", "exponential": "Exp", "log": "Log", "logistic": "Sigmoid", "sqrt": "Sqrt",
    "round_nearest_even": "Round", "sign": "Sign", "subtract": "Sub",
}.items():  # fmt: skip
    rules.register(f"stablehlo.{_name}")(_as_onnx(_operator))

for _name, _operator in {
    "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan",
    "atanh": "Atanh", "cosh": "Cosh", "sinh": "Sinh", "tan": "Tan", "erf": "Erf",
}.items():  # fmt: skip
    rules.register(f"chlo.{_name}")(_as_onnx(_operator))

for _name, _flags, _numbers in (
    ("add", "Or", "Add"), ("multiply", "And", "Mul"), ("maximum", "Or", "Max"),
    ("minimum", "And", "Min"), ("and", "And", "BitwiseAnd"), ("or", "Or", "BitwiseOr"),
    ("xor", "Xor", "BitwiseXor"), ("not", "Not", "BitwiseNot"),
):  # fmt: skip

    def _of_both(flags: str, numbers: str) -> Rule:
        def rule(translation: Translation, operation: Any, values: Values) -> Values:
            operator = flags if values[0].dtype == "bool" else numbers
            return [translation.builder.elementwise(operator, *values)]

        return rule

    rules.register(f"stablehlo.{_name}")(_of_both(_flags, _numbers))


# -- arithmetic ---------------------------------------------------------------------------------
@formula("stablehlo.negate")
def negate(b: GraphBuilder, x: TensorValue) -> TensorValue:
    if x.dtype.startswith("uint"):
        return b.elementwise("Sub", b.like(0, x), x)
    return b.elementwise("Neg", x)


@formula("stablehlo.divide")
def divide(b: GraphBuilder, x: TensorValue, divisor: TensorValue) -> TensorValue:
    """Whole numbers towards zero; a sum over windows by their size is the mean beside it."""
    mean, size = b.means.get(x.name, (x, 0))
    if size and b.single(divisor) == size:
        return replace(mean, shape=x.shape)
    return b.elementwise("Div", x, divisor)


@formula("stablehlo.rsqrt")
def reciprocal_root(b: GraphBuilder, x: TensorValue) -> TensorValue:
    return b.elementwise("Reciprocal", b.elementwise("Sqrt", x))


@formula("chlo.square")
def square(b: GraphBuilder, x: TensorValue) -> TensorValue:
    return b.elementwise("Mul", x, x)


@formula("stablehlo.cbrt")
def cube_root(b: GraphBuilder, x: TensorValue) -> TensorValue:
    root = b.elementwise("Pow", b.elementwise("Abs", x), b.like(1 / 3, x))
    return b.elementwise("Mul", b.elementwise("Sign", x), root)


@formula("stablehlo.power")
def power(b: GraphBuilder, x: TensorValue, exponent: TensorValue) -> TensorValue:
    if x.dtype in ("float32", "float64", "float16", "bfloat16", "int32", "int64"):
        return b.elementwise("Pow", x, exponent)
    if x.dtype in ("uint32", "uint64"):  # the same bits, whatever the sign
        signed = x.dtype.removeprefix("u")
        raised = b.elementwise("Pow", bit_cast(b, x, signed), bit_cast(b, exponent, signed))
        return bit_cast(b, raised, x.dtype)
    wide = b.elementwise("Pow", b.cast(x, "int32"), b.cast(exponent, "int32"))
    return b.cast(wide, x.dtype)


@formula("stablehlo.remainder")
def remainder(b: GraphBuilder, x: TensorValue, divisor: TensorValue) -> TensorValue:
    """With the sign of x."""
    if is_floating(x.dtype):
        return b.elementwise("Mod", x, divisor, fmod=1)
    whole = b.elementwise("Mul", b.elementwise("Div", x, divisor), divisor)
    return b.elementwise("Sub", x, whole)


@formula("stablehlo.round_nearest_afz")
def round_away(b: GraphBuilder, x: TensorValue) -> TensorValue:
    """Halves away from zero."""
    size = b.elementwise("Abs", x)
    low = b.elementwise("Floor", size)
    rest = b.elementwise("Sub", size, low)
    up = b.elementwise("GreaterOrEqual", rest, b.like(0.5, x), dtype="bool")
    rounded = b.elementwise("Add", low, b.cast(up, x.dtype))
    return b.elementwise("Mul", b.elementwise("Sign", x), rounded)


@formula("stablehlo.exponential_minus_one")
def exp_minus_one(b: GraphBuilder, x: TensorValue) -> TensorValue:
    """exp(x) - 1 without cancellation: (u - 1) x / log u of u = exp(x) (Kahan)."""
    u, one = b.elementwise("Exp", x), b.like(1, x)
    less = b.elementwise("Sub", u, one)
    near = b.elementwise("Mul", less, b.elementwise("Div", x, b.elementwise("Log", u)))
    small = b.elementwise("Less", b.elementwise("Abs", x), b.like(0.5, x), dtype="bool")
    same = b.elementwise("Equal", u, one, dtype="bool")
    return choose(b, same, x, choose(b, small, near, less))


@formula("stablehlo.log_plus_one")
def log_plus_one(b: GraphBuilder, x: TensorValue) -> TensorValue:
    """log(1 + x) without cancellation: log(u) x / (u - 1) of u = 1 + x (Kahan)."""
    one = b.like(1, x)
    u = b.elementwise("Add", x, one)
    logarithm = b.elementwise("Log", u)
    near = b.elementwise("Mul", logarithm, b.elementwise("Div", x, b.elementwise("Sub", u, one)))
    small = b.elementwise("Less", b.elementwise("Abs", x), one, dtype="bool")
    same = b.elementwise("Equal", u, one, dtype="bool")
    return choose(b, same, x, choose(b, small, near, logarithm))


@formula("stablehlo.atan2")
def angle(b: GraphBuilder, y: TensorValue, x: TensorValue) -> TensorValue:
    """The angle of (x, y), by the quadrant; at infinity as their signs say, as IEEE 754 asks."""
    zero = b.like(0, x)
    far = b.elementwise("And", infinite(b, x), infinite(b, y))
    y_near = choose(b, far, b.elementwise("Sign", y), y)
    x_near = choose(b, far, b.elementwise("Sign", x), x)
    flat = b.elementwise("Atan", b.elementwise("Div", y_near, x_near))
    below, behind = _sign_is_negative(b, y), _sign_is_negative(b, x)
    turn = choose(b, below, b.like(-np.pi, x), b.like(np.pi, x))
    turned = choose(b, behind, b.elementwise("Add", flat, turn), flat)
    axis = choose(b, behind, turn, choose(b, below, b.elementwise("Neg", zero), zero))
    valid = b.elementwise("Equal", x, x, dtype="bool")
    return choose(b, _is_zero(b, y), choose(b, valid, axis, x), turned)


def _is_zero(b: GraphBuilder, x: TensorValue) -> TensorValue:
    return b.elementwise("Equal", x, b.like(0, x), dtype="bool")


def _sign_is_negative(b: GraphBuilder, x: TensorValue) -> TensorValue:
    """Whether x is below zero, or the negative zero."""
    signed = choose(b, _is_zero(b, x), b.elementwise("Reciprocal", x), x)
    return b.elementwise("Less", signed, b.like(0, x), dtype="bool")


def infinite(b: GraphBuilder, x: TensorValue) -> TensorValue:
    if x.dtype in ("float32", "float64", "float16", "bfloat16"):
        return b.elementwise("IsInf", x, dtype="bool")
    return b.elementwise("Equal", b.elementwise("Abs", x), b.like(np.inf, x), dtype="bool")


@formula("chlo.is_inf")
def is_infinite(b: GraphBuilder, x: TensorValue) -> TensorValue:
    return infinite(b, x)


@formula("stablehlo.is_finite")
def is_finite(b: GraphBuilder, x: TensorValue) -> TensorValue:
    unlike = b.elementwise("Or", infinite(b, x), b.elementwise("IsNaN", x, dtype="bool"))
    return b.elementwise("Not", unlike)


# -- choices and comparisons --------------------------------------------------------------------
def choose(
    b: GraphBuilder, condition: TensorValue, then: TensorValue, otherwise: TensorValue
) -> TensorValue:
    """`Where`; the branch itself where the condition is known."""
    known = b.single(condition)
    if known is not None:
        taken = then if bool(known) else otherwise
        shape = np.broadcast_shapes(condition.shape, then.shape, otherwise.shape)
        return TensorValue(taken.name, taken.dtype, taken.own, shape)
    return b.elementwise("Where", condition, then, otherwise, dtype=then.dtype)


@formula("stablehlo.select")
def select(
    b: GraphBuilder, condition: TensorValue, then: TensorValue, otherwise: TensorValue
) -> TensorValue:
    return choose(b, condition, then, otherwise)


@formula("stablehlo.clamp")
def clamp(b: GraphBuilder, low: TensorValue, x: TensorValue, high: TensorValue) -> TensorValue:
    bounds = [b.single(low), b.single(high)]
    if None not in bounds and is_floating(x.dtype):
        names = (b.like(float(n), x) for n in bounds)
        return b.elementwise("Clip", x, *names)
    return b.elementwise("Min", b.elementwise("Max", x, low), high)


_COMPARISONS = {
    "EQ": "Equal", "LT": "Less", "LE": "LessOrEqual", "GT": "Greater", "GE": "GreaterOrEqual",
}  # fmt: skip


@rules.register("stablehlo.compare")
def _compare(translation: Translation, operation: Any, values: Values) -> Values:
    direction = comparison(operation)
    b, (x, y) = translation.builder, values
    if word(operation, "compare_type") == "TOTALORDER" and is_floating(x.dtype):
        x, y = ordered(b, x), ordered(b, y)
    return [compare(b, direction, x, y)]


def comparison(operation: Any) -> str:
    """What a comparison asks: EQ, NE, LT, LE, GT, GE."""
    return word(operation, "comparison_direction")


def word(operation: Any, name: str) -> str:
    """The word of an enumeration, which prints as `#stablehlo<comparison_direction LT>`."""
    return text(operation, name).removesuffix(">").rpartition(" ")[2]


def compare(b: GraphBuilder, direction: str, x: TensorValue, y: TensorValue) -> TensorValue:
    if direction == "NE":
        return b.elementwise("Not", compare(b, "EQ", x, y))
    if x.dtype == "bool" and direction != "EQ":
        x, y = b.cast(x, "int32"), b.cast(y, "int32")
    return b.elementwise(_COMPARISONS[direction], x, y, dtype="bool")


def ordered(b: GraphBuilder, x: TensorValue) -> TensorValue:
    """Whole numbers that are ordered as floating numbers are in total: -NaN, -inf, ..., NaN."""
    bits = f"int{8 * size_of(x.dtype)}"
    if size_of(x.dtype) < 4:  # exact, and one step for every element type
        return ordered(b, b.cast(x, "float32"))
    integers = bit_cast(b, x, bits)
    low = b.like(np.iinfo(bits).max, integers)
    below = b.elementwise("Less", integers, b.like(0, integers), dtype="bool")
    return choose(b, below, b.elementwise("BitwiseXor", integers, low), integers)


# -- conversions --------------------------------------------------------------------------------
@rules.register("stablehlo.convert")
def _convert(translation: Translation, operation: Any, values: Values) -> Values:
    wanted = tensor_type(operation.results[0].type, operation.name).dtype
    return [translation.builder.cast(values[0], wanted)]


@rules.register("stablehlo.bitcast_convert")
def _bitcast_convert(translation: Translation, operation: Any, values: Values) -> Values:
    result = tensor_type(operation.results[0].type, operation.name)
    value = values[0]
    if size_of(result.dtype) != size_of(value.dtype) or "bool" in (result.dtype, value.dtype):
        raise translation.refuse(
            operation, f"reads {value.dtype} as {result.dtype}; types of one size are supported"
        )
    return [bit_cast(translation.builder, value, result.dtype)]


def bit_cast(b: GraphBuilder, x: TensorValue, dtype: str) -> TensorValue:
    """The same bits as another type of the same size."""
    if x.dtype == dtype:
        return x
    from tilesmith.compiler.onnx.inference.inference import DTYPE_NUMBERS

    return b.elementwise("BitCast", x, dtype=dtype, to=DTYPE_NUMBERS[dtype])


_PRECISIONS = {(8, 7): "bfloat16", (5, 10): "float16", (8, 23): "float32"}


@rules.register("stablehlo.reduce_precision")
def _reduce_precision(translation: Translation, operation: Any, values: Values) -> Values:
    bits = tuple(int(operation.attributes[f"{n}_bits"].value) for n in ("exponent", "mantissa"))
    if bits not in _PRECISIONS:
        raise translation.refuse(
            operation,
            f"rounds to {bits[0]} exponent and {bits[1]} mantissa bits; those of float32, bfloat16 "
            "and float16 are supported",
        )
    b, x = translation.builder, values[0]
    return [b.cast(b.cast(x, _PRECISIONS[bits]), x.dtype)]
