"""Complex numbers: pairs of real tensors (`pairs.Complex`), and what is computed of them.

What moves elements, and what is linear, is done to both parts by the rules of real numbers. Rules
here are registered under an operation's name with `complex.` before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from tilesmith.capabilities.stablehlo.attributes import is_complex, tensor_type
from tilesmith.capabilities.stablehlo.builder import GraphBuilder, TensorValue
from tilesmith.capabilities.stablehlo.pairs import Complex, flat, paired, parts
from tilesmith.capabilities.stablehlo.rules.elementwise import (
    Formula,
    angle,
    choose,
    compare,
    comparison,
    exp_minus_one,
    infinite,
)
from tilesmith.capabilities.stablehlo.rules.reductions import ReductionBody
from tilesmith.capabilities.stablehlo.translator import Rule, Translation, Values, rules

F = TypeVar("F", bound=Formula)

_MOVING = (
    "stablehlo.broadcast_in_dim", "stablehlo.dynamic_broadcast_in_dim", "stablehlo.reshape",
    "stablehlo.dynamic_reshape", "stablehlo.transpose", "stablehlo.concatenate",
    "stablehlo.slice", "stablehlo.reverse", "stablehlo.pad", "stablehlo.gather",
    "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice", "stablehlo.select",
    "stablehlo.add", "stablehlo.subtract", "stablehlo.negate",
)  # fmt: skip
"""Operations that are done to both parts alike."""

_WHOLE = (
    "func.call", "stablehlo.composite", "stablehlo.custom_call", "stablehlo.optimization_barrier",
    "sdy.sharding_constraint", "sdy.reshard", "stablehlo.while", "stablehlo.if", "stablehlo.case",
    "stablehlo.sort", "stablehlo.get_dimension_size",
)  # fmt: skip
"""Operations whose rules take complex values as they are."""

_ADDING = ("stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.scatter")
"""Operations that are done to both parts where their function adds, or replaces."""


def _to_parts(name: str) -> Rule:
    def rule(translation: Translation, operation: Any, values: Values) -> Values:
        own = rules.find(name)
        assert own is not None
        sides = [
            own(translation, operation, [parts(value)[min(side, len(parts(value)) - 1)]
                                         for value in values])
            for side in range(2)
        ]  # fmt: skip
        return [paired(real, imaginary) for real, imaginary in zip(*sides, strict=True)]

    return rule


def _as_they_are(name: str) -> Rule:
    def rule(translation: Translation, operation: Any, values: Values) -> Values:
        own = rules.find(name)
        assert own is not None
        return own(translation, operation, values)

    return rule


def _joined(name: str) -> Rule:
    by_parts, whole = _to_parts(name), _as_they_are(name)

    def rule(translation: Translation, operation: Any, values: Values) -> Values:
        body = ReductionBody(translation, operation)
        linear = len(operation.results) == 1 and (body.kind("") == "sum" or body.replaces())
        return (by_parts if linear else whole)(translation, operation, values)

    return rule


for _name in _MOVING:
    rules.register(f"complex.{_name}")(_to_parts(_name))
for _name in _WHOLE:
    rules.register(f"complex.{_name}")(_as_they_are(_name))
for _name in _ADDING:
    rules.register(f"complex.{_name}")(_joined(_name))


def _formula(*names: str) -> Callable[[F], F]:
    """Decorator: the function of a builder and values computes these operations."""

    def add(function: F) -> F:
        def rule(translation: Translation, operation: Any, values: Values) -> Values:
            return [function(translation.builder, *values)]

        for name in names:
            rules.register(f"complex.{name}")(rule)
        return function

    return add


# -- parts --------------------------------------------------------------------------------------
@_formula("stablehlo.complex")
def _of_parts(b: GraphBuilder, real: TensorValue, imaginary: TensorValue) -> TensorValue:
    return paired(real, imaginary)


@_formula("stablehlo.real")
def _real(b: GraphBuilder, x: Complex) -> TensorValue:
    return x.real


@_formula("stablehlo.imag")
def _imaginary(b: GraphBuilder, x: Complex) -> TensorValue:
    return x.imaginary


@_formula("chlo.conj")
def conjugate(b: GraphBuilder, x: Complex) -> Complex:
    return paired(x.real, b.elementwise("Neg", x.imaginary))


@rules.register("complex.stablehlo.convert")
def _convert(translation: Translation, operation: Any, values: Values) -> Values:
    """Real numbers have no imaginary part; what becomes real loses its own."""
    b, kind = translation.builder, operation.results[0].type
    dtype = tensor_type(kind, operation.name).dtype
    if is_complex(kind) and isinstance(values[0], Complex) and values[0].dtype == dtype:
        return values
    cast = [b.cast(part, dtype) for part in parts(values[0])]
    if not is_complex(kind):
        return cast[:1]
    nothing = replace(b.like(0, cast[0]), shape=cast[0].shape)
    return [paired(cast[0], cast[1] if len(cast) == 2 else nothing)]


@rules.register("complex.stablehlo.compare")
def _compare(translation: Translation, operation: Any, values: Values) -> Values:
    direction, b = comparison(operation), translation.builder
    if direction not in ("EQ", "NE"):
        raise translation.refuse(operation, f"compares complex numbers by {direction}")
    x, y = (parts(value) for value in values)
    same = [compare(b, "EQ", first, second) for first, second in zip(x, y, strict=True)]
    equal = b.elementwise("And", *same)
    return [equal if direction == "EQ" else b.elementwise("Not", equal)]


@_formula("stablehlo.is_finite")
def _is_finite(b: GraphBuilder, x: Complex) -> TensorValue:
    total = b.elementwise("Sub", *(b.elementwise("Sub", p, p) for p in parts(x)))
    return b.elementwise("Equal", total, total, dtype="bool")


# -- arithmetic ---------------------------------------------------------------------------------
@_formula("stablehlo.multiply")
def multiply(b: GraphBuilder, x: Complex, y: Complex) -> Complex:
    def times(first: TensorValue, second: TensorValue) -> TensorValue:
        return b.elementwise("Mul", first, second)

    real = b.elementwise("Sub", times(x.real, y.real), times(x.imaginary, y.imaginary))
    mixed = b.elementwise("Add", times(x.real, y.imaginary), times(x.imaginary, y.real))
    return paired(real, mixed)


def scaled(b: GraphBuilder, x: Complex, operator: str, by: TensorValue) -> Complex:
    """Both parts and a real number under an operator of two."""
    return paired(*(b.elementwise(operator, part, by) for part in parts(x)))


@_formula("stablehlo.divide")
def divide(b: GraphBuilder, x: Complex, y: Complex) -> Complex:
    """x y* / |y|^2, of y brought near 1 first, so that its square is a number; of 0 and infinities,
    which nothing brings there, both parts by |y|."""
    largest = b.elementwise("Max", *(b.elementwise("Abs", part) for part in parts(y)))
    usual = b.elementwise("Greater", largest, b.like(0, largest), dtype="bool")
    usual = b.elementwise("And", usual, b.elementwise("Not", infinite(b, largest)))
    scale = choose(b, usual, largest, b.like(1, largest))
    unit = scaled(b, y, "Div", scale)
    squares = [b.elementwise("Mul", part, part) for part in parts(unit)]
    top = multiply(b, scaled(b, x, "Div", scale), conjugate(b, unit))
    quotient = scaled(b, top, "Div", b.elementwise("Add", *squares))
    plain = scaled(b, x, "Div", largest)
    chosen = zip(parts(quotient), parts(plain), strict=True)
    return paired(*(choose(b, usual, near, far) for near, far in chosen))


@_formula("stablehlo.abs")
def absolute(b: GraphBuilder, x: Complex) -> TensorValue:
    """The root of both squares' sum, of numbers whose squares are none, too."""
    sizes = [b.elementwise("Abs", part) for part in parts(x)]
    high, low = b.elementwise("Max", *sizes), b.elementwise("Min", *sizes)
    zero, one = b.like(0, high), b.like(1, high)
    alone = b.elementwise("Equal", high, zero, dtype="bool")
    alone = b.elementwise("Or", alone, infinite(b, high))
    ratio = b.elementwise("Div", low, choose(b, alone, one, high))
    grown = b.elementwise("Add", one, b.elementwise("Mul", ratio, ratio))
    return choose(b, alone, high, b.elementwise("Mul", high, b.elementwise("Sqrt", grown)))


@_formula("stablehlo.sign")
def _sign(b: GraphBuilder, x: Complex) -> Complex:
    size = absolute(b, x)
    none = b.elementwise("Equal", size, b.like(0, size), dtype="bool")
    return scaled(b, x, "Div", choose(b, none, b.like(1, size), size))


# -- functions ----------------------------------------------------------------------------------
def exponential(b: GraphBuilder, x: Complex) -> Complex:
    size = b.elementwise("Exp", x.real)
    turned = [b.elementwise(operator, x.imaginary) for operator in ("Cos", "Sin")]
    real, imaginary = (b.elementwise("Mul", size, part) for part in turned)
    level = b.elementwise("Equal", x.imaginary, b.like(0, size), dtype="bool")
    return paired(choose(b, level, size, real), choose(b, level, x.imaginary, imaginary))


def _like(b: GraphBuilder, number: complex, x: Complex) -> Complex:
    return paired(
        *(replace(b.like(part, x.real), shape=x.shape) for part in (number.real, number.imag))
    )


@_formula("stablehlo.exponential_minus_one")
def _exp_minus_one(b: GraphBuilder, x: Complex) -> Complex:
    """exp(a) cos(b) - 1 = (exp(a) - 1) cos(b) - 2 sin(b / 2)^2, without cancellation."""
    less = exp_minus_one(b, x.real)
    half = b.elementwise("Sin", b.elementwise("Mul", x.imaginary, b.like(0.5, x.real)))
    square = b.elementwise("Mul", b.elementwise("Mul", half, half), b.like(2, half))
    near = b.elementwise("Mul", less, b.elementwise("Cos", x.imaginary))
    return paired(b.elementwise("Sub", near, square), exponential(b, x).imaginary)


@_formula("stablehlo.power")
def _power(b: GraphBuilder, x: Complex, y: Complex) -> Complex:
    """exp(y log x); 1 where y is 0, and 0 of 0."""
    size = absolute(b, x)
    logarithm = paired(b.elementwise("Log", size), angle(b, x.imaginary, x.real))
    result = exponential(b, multiply(b, y, logarithm))
    zero = b.like(0, size)
    of_none = b.elementwise("Equal", size, zero, dtype="bool")
    to_none = b.elementwise("Equal", absolute(b, y), zero, dtype="bool")
    either = zip(parts(result), (b.like(1, size), zero), strict=True)
    return paired(
        *(choose(b, to_none, one, choose(b, of_none, zero, part)) for part, one in either)
    )


def _hyperbolic_tangent(b: GraphBuilder, x: Complex) -> Complex:
    """tanh(a + ib) = (t + i sin b cos b (1 - t^2)) / (cos^2 b + t^2 sin^2 b) of t = tanh a."""
    t = b.elementwise("Tanh", x.real)
    sine, cosine = (b.elementwise(name, x.imaginary) for name in ("Sin", "Cos"))

    def square(value: TensorValue) -> TensorValue:
        return b.elementwise("Mul", value, value)

    turned = b.elementwise("Mul", square(t), square(sine))
    below = b.elementwise("Add", square(cosine), turned)
    steep = b.elementwise("Sub", b.like(1, t), square(t))
    across = b.elementwise("Mul", b.elementwise("Mul", sine, cosine), steep)
    return scaled(b, paired(t, across), "Div", below)


def _turned(b: GraphBuilder, x: Complex) -> Complex:
    """i x."""
    return paired(b.elementwise("Neg", x.imaginary), x.real)


def _turned_back(b: GraphBuilder, x: Complex) -> Complex:
    """-i x."""
    return paired(x.imaginary, b.elementwise("Neg", x.real))


@_formula("stablehlo.tanh")
def _tanh(b: GraphBuilder, x: Complex) -> Complex:
    return _hyperbolic_tangent(b, x)


@_formula("stablehlo.tan")
def _tan(b: GraphBuilder, x: Complex) -> Complex:
    return _turned_back(b, _hyperbolic_tangent(b, _turned(b, x)))


@_formula("stablehlo.logistic")
def _logistic(b: GraphBuilder, x: Complex) -> Complex:
    """1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2."""
    half = b.like(0.5, x.real)
    tangent = _hyperbolic_tangent(b, scaled(b, x, "Mul", half))
    one = b.like(1, x.real)
    return scaled(
        b, paired(b.elementwise("Add", tangent.real, one), tangent.imaginary), "Mul", half
    )


def _waves(b: GraphBuilder, x: Complex, first: str, second: str, sign: str) -> Complex:
    """sin and cos of a + ib: products of the waves of a and the hyperbolic ones of b."""
    real = b.elementwise("Mul", b.elementwise(first, x.real), b.elementwise("Cosh", x.imaginary))
    other = b.elementwise("Mul", b.elementwise(second, x.real), b.elementwise("Sinh", x.imaginary))
    return paired(real, b.elementwise("Neg", other) if sign == "-" else other)


@_formula("stablehlo.sine")
def _sine(b: GraphBuilder, x: Complex) -> Complex:
    return _waves(b, x, "Sin", "Cos", "+")


@_formula("stablehlo.cosine")
def _cosine(b: GraphBuilder, x: Complex) -> Complex:
    return _waves(b, x, "Cos", "Sin", "-")


def _inverse_root(translation: Translation, operation: Any, values: Values) -> Values:
    """1 / sqrt(x) = sqrt(1 / x), by the polar form."""
    b, (x,) = translation.builder, values
    assert isinstance(x, Complex)
    size = b.elementwise("Reciprocal", b.elementwise("Sqrt", absolute(b, x)))
    half = b.elementwise("Mul", angle(b, x.imaginary, x.real), b.like(-0.5, size))
    waves = (b.elementwise(operator, half) for operator in ("Cos", "Sin"))
    return [paired(*(b.elementwise("Mul", size, wave) for wave in waves))]


rules.register("complex.stablehlo.rsqrt")(_inverse_root)


# -- products -----------------------------------------------------------------------------------
def _product(name: str) -> Rule:
    """A sum of products: four of parts, or two where one side is real."""

    def rule(translation: Translation, operation: Any, values: Values) -> Values:
        own, b = rules.find(name), translation.builder
        assert own is not None
        left, right = (parts(value) for value in values)
        products = [[own(translation, operation, [x, y])[0] for y in right] for x in left]
        if len(left) == len(right) == 2:
            real = b.elementwise("Sub", products[0][0], products[1][1])
            return [paired(real, b.elementwise("Add", products[0][1], products[1][0]))]
        return [paired(*flat([part for row in products for part in row]))]

    return rule


for _name in ("stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution"):
    rules.register(f"complex.{_name}")(_product(_name))
