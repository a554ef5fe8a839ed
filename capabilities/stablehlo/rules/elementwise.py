"""Maps of one element to one element: arithmetic, comparisons, logic, choices, conversions."""

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tilesmith.capabilities.stablehlo.arithmetic import (
    RealValue,
    atan,
    exp,
    floor,
    formula,
    is_nan,
    log,
    number,
    reciprocal,
    sign,
    sqrt,
    where,
)
from tilesmith.capabilities.stablehlo.attributes import tensor_type, text
from tilesmith.capabilities.stablehlo.translator import Rule, Translation, Values, rules
from tilesmith.search_space.expressions.dtypes import is_floating, size_of

_AS_ONNX = {
    "stablehlo.abs": "Abs", "stablehlo.ceil": "Ceil", "stablehlo.floor": "Floor",
    "stablehlo.cosine": "Cos", "stablehlo.sine": "Sin", "stablehlo.tan": "Tan",
    "stablehlo.tanh": "Tanh", "stablehlo.exponential": "Exp", "stablehlo.log": "Log",
    "stablehlo.logistic": "Sigmoid", "stablehlo.sqrt": "Sqrt", "stablehlo.sign": "Sign",
    "stablehlo.round_nearest_even": "Round",
    "chlo.acos": "Acos", "chlo.acosh": "Acosh", "chlo.asin": "Asin", "chlo.asinh": "Asinh",
    "chlo.atan": "Atan", "chlo.atanh": "Atanh", "chlo.cosh": "Cosh", "chlo.sinh": "Sinh",
    "chlo.tan": "Tan", "chlo.erf": "Erf",
}  # fmt: skip
"""Operations that one operator of ONNX computes."""


def _as_onnx(operator: str) -> Rule:
    def rule(translation: Translation, operation: Any, values: Values) -> Values:
        return [translation.builder.elementwise(operator, *values)]

    return rule


for _name, _operator in _AS_ONNX.items():
    rules.register(_name)(_as_onnx(_operator))

for _name, _function in (
    ("add", operator.add), ("subtract", operator.sub), ("multiply", operator.mul),
    ("maximum", RealValue.maximum), ("minimum", RealValue.minimum), ("and", operator.and_),
    ("or", operator.or_), ("xor", operator.xor), ("not", operator.invert), ("select", where),
):  # fmt: skip
    formula(f"stablehlo.{_name}")(_function)


# -- arithmetic ---------------------------------------------------------------------------------
@formula("stablehlo.negate")
def negate(x: RealValue) -> RealValue:
    return 0 - x if x.dtype.startswith("uint") else -x


@formula("stablehlo.divide")
def divide(x: RealValue, divisor: RealValue) -> RealValue:
    """Whole numbers towards zero; a sum over windows by their size is the mean beside it."""
    mean, size = x.b.means.get(x.value.name, (x.value, 0))
    if size and x.b.single(divisor.value) == size:
        return RealValue(x.b, replace(mean, shape=x.value.shape))
    return x / divisor


@formula("stablehlo.rsqrt")
def reciprocal_root(x: RealValue) -> RealValue:
    return reciprocal(sqrt(x))


@formula("chlo.square")
def square(x: RealValue) -> RealValue:
    return x * x


@formula("stablehlo.cbrt")
def cube_root(x: RealValue) -> RealValue:
    return sign(x) * abs(x) ** (1 / 3)


@formula("stablehlo.power")
def power(x: RealValue, exponent: RealValue) -> RealValue:
    if is_floating(x.dtype) or x.dtype in ("int32", "int64"):
        return x**exponent
    if x.dtype in ("uint32", "uint64"):  # the same bits, whatever the sign
        signed = x.dtype.removeprefix("u")
        return (x.bits_as(signed) ** exponent.bits_as(signed)).bits_as(x.dtype)
    return (x.cast("int32") ** exponent.cast("int32")).cast(x.dtype)


@formula("stablehlo.remainder")
def remainder(x: RealValue, divisor: RealValue) -> RealValue:
    """With the sign of x."""
    if is_floating(x.dtype):
        return x.apply("Mod", divisor, fmod=1)
    return x - x / divisor * divisor


@formula("stablehlo.round_nearest_afz")
def round_away(x: RealValue) -> RealValue:
    """Halves away from zero."""
    low = floor(abs(x))
    return sign(x) * (low + (abs(x) - low >= 0.5).cast(x.dtype))


@formula("stablehlo.exponential_minus_one")
def exp_minus_one(x: RealValue) -> RealValue:
    """exp(x) - 1 without cancellation: (u - 1) x / log u of u = exp(x) (Kahan)."""
    u = exp(x)
    near = (u - 1) * (x / log(u))
    return where(u.equals(1), x, where(abs(x) < 0.5, near, u - 1))


@formula("stablehlo.log_plus_one")
def log_plus_one(x: RealValue) -> RealValue:
    """log(1 + x) without cancellation: log(u) x / (u - 1) of u = 1 + x (Kahan)."""
    u = x + 1
    near = log(u) * (x / (u - 1))
    return where(u.equals(1), x, where(abs(x) < 1, near, log(u)))


@formula("stablehlo.atan2")
def angle(y: RealValue, x: RealValue) -> RealValue:
    """The angle of (x, y), by the quadrant; at infinity as their signs say, as IEEE 754 asks."""
    far = infinite(x) & infinite(y)
    flat = atan(where(far, sign(y), y) / where(far, sign(x), x))
    below, behind = _sign_is_negative(y), _sign_is_negative(x)
    turn = where(below, x.like(-np.pi), np.pi)
    axis = where(behind, turn, where(below, -x.like(0), 0))
    turned = where(behind, flat + turn, flat)
    return where(y.equals(0), where(x.equals(x), axis, x), turned)


def _sign_is_negative(x: RealValue) -> RealValue:
    """Whether x is below zero, or the negative zero."""
    return where(x.equals(0), reciprocal(x), x) < 0


@formula("chlo.is_inf")
def infinite(x: RealValue) -> RealValue:
    if x.dtype in ("float32", "float64", "float16", "bfloat16"):
        return x.apply("IsInf", dtype="bool")
    return abs(x).equals(np.inf)


@formula("stablehlo.is_finite")
def is_finite(x: RealValue) -> RealValue:
    return ~(infinite(x) | is_nan(x))


@formula("stablehlo.clamp")
def clamp(low: RealValue, x: RealValue, high: RealValue) -> RealValue:
    bounds = [x.b.single(bound.value) for bound in (low, high)]
    if None not in bounds and is_floating(x.dtype):
        return x.apply("Clip", *(x.like(float(bound)) for bound in bounds))
    return x.maximum(low).minimum(high)


# -- comparisons --------------------------------------------------------------------------------
_COMPARISONS: dict[str, Callable[[RealValue, RealValue], RealValue]] = {
    "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge,
}  # fmt: skip


@rules.register("stablehlo.compare")
def _compare(translation: Translation, operation: Any, values: Values) -> Values:
    x, y = (number(translation.builder, value) for value in values)
    if word(operation, "compare_type") == "TOTALORDER" and is_floating(x.dtype):
        x, y = ordered(x), ordered(y)
    direction = word(operation, "comparison_direction")
    if direction in ("EQ", "NE"):
        same = x.equals(y)
        return [(same if direction == "EQ" else ~same).value]
    if x.dtype == "bool":
        x, y = x.cast("int32"), y.cast("int32")
    return [_COMPARISONS[direction](x, y).value]


def word(operation: Any, name: str) -> str:
    """The word of an enumeration, which prints as `#stablehlo<comparison_direction LT>`."""
    return text(operation, name).removesuffix(">").rpartition(" ")[2]


def ordered(x: RealValue) -> RealValue:
    """Whole numbers that are ordered as floating numbers are in total: -NaN, -inf, ..., NaN."""
    if size_of(x.dtype) < 4:  # exact, and one step for every element type
        return ordered(x.cast("float32"))
    kind = f"int{8 * size_of(x.dtype)}"
    integers = x.bits_as(kind)
    return where(integers < 0, integers ^ int(np.iinfo(kind).max), integers)


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
    return [RealValue(translation.builder, value).bits_as(result.dtype).value]


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
