"""Complex numbers: pairs of real tensors (`pairs.Complex`), and what is computed of them.

What moves elements, and what is linear, is done to both parts by the rules of real numbers. Rules
here are registered under an operation's name with `complex.` before it.
"""

from typing import Any

from tilesmith.capabilities.stablehlo.arithmetic import (
    ComplexValue,
    RealValue,
    cos,
    cosh,
    exp,
    formula,
    log,
    number,
    reciprocal,
    sin,
    sinh,
    sqrt,
    tanh,
    where,
)
from tilesmith.capabilities.stablehlo.attributes import is_complex, tensor_type
from tilesmith.capabilities.stablehlo.pairs import Complex, flat, paired, parts
from tilesmith.capabilities.stablehlo.rules.elementwise import angle, exp_minus_one, infinite, word
from tilesmith.capabilities.stablehlo.rules.reductions import ReductionBody
from tilesmith.capabilities.stablehlo.translator import Rule, Translation, Values, rules

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

_PRODUCTS = ("stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution")


def _to_parts(name: str) -> Rule:
    def rule(translation: Translation, operation: Any, values: Values) -> Values:
        sides = [
            rules[name](translation, operation, [parts(value)[min(side, len(parts(value)) - 1)]
                                                 for value in values])
            for side in range(2)
        ]  # fmt: skip
        return [paired(real, imaginary) for real, imaginary in zip(*sides, strict=True)]

    return rule


def _as_they_are(name: str) -> Rule:
    def rule(translation: Translation, operation: Any, values: Values) -> Values:
        return rules[name](translation, operation, values)

    return rule


def _joined(name: str) -> Rule:
    by_parts, whole = _to_parts(name), _as_they_are(name)

    def rule(translation: Translation, operation: Any, values: Values) -> Values:
        body = ReductionBody(translation, operation)
        linear = len(operation.results) == 1 and (body.kind("") == "sum" or body.replaces())
        return (by_parts if linear else whole)(translation, operation, values)

    return rule


def _product(name: str) -> Rule:
    """A sum of products: four of parts, or two where one side is real."""

    def rule(translation: Translation, operation: Any, values: Values) -> Values:
        own, b = rules[name], translation.builder
        left, right = (parts(value) for value in values)
        products = [[own(translation, operation, [x, y])[0] for y in right] for x in left]
        if len(left) == len(right) == 2:
            real = b.elementwise("Sub", products[0][0], products[1][1])
            return [paired(real, b.elementwise("Add", products[0][1], products[1][0]))]
        return [paired(*flat([part for row in products for part in row]))]

    return rule


for _names, _rule in (
    (_MOVING, _to_parts), (_WHOLE, _as_they_are), (_ADDING, _joined), (_PRODUCTS, _product),
):  # fmt: skip
    for _name in _names:
        rules.register(f"complex.{_name}")(_rule(_name))


# -- parts --------------------------------------------------------------------------------------
formula("complex.stablehlo.complex")(ComplexValue)
formula("complex.chlo.conj")(ComplexValue.conjugate)
formula("complex.stablehlo.multiply")(ComplexValue.__mul__)


@formula("complex.stablehlo.real")
def _real(x: ComplexValue) -> RealValue:
    return x.real


@formula("complex.stablehlo.imag")
def _imaginary(x: ComplexValue) -> RealValue:
    return x.imaginary


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
    nothing = b.broadcast(b.like(0, cast[0]), cast[0].shape, ())
    return [paired(cast[0], cast[1] if len(cast) == 2 else nothing)]


@rules.register("complex.stablehlo.compare")
def _compare(translation: Translation, operation: Any, values: Values) -> Values:
    direction = word(operation, "comparison_direction")
    if direction not in ("EQ", "NE"):
        raise translation.refuse(operation, f"compares complex numbers by {direction}")
    x, y = (number(translation.builder, value) for value in values)
    same = x.real.equals(y.real) & x.imaginary.equals(y.imaginary)
    return [(same if direction == "EQ" else ~same).value]


# -- arithmetic ---------------------------------------------------------------------------------
@formula("complex.stablehlo.divide")
def _divide(x: ComplexValue, y: ComplexValue) -> ComplexValue:
    """x y* / |y|^2, of y brought near 1 first, so that its square is a number; of 0 and infinities,
    which nothing brings there, both parts by |y|."""
    largest = abs(y.real).maximum(abs(y.imaginary))
    usual = (largest > 0) & ~infinite(largest)
    scale = where(usual, largest, 1)
    unit = y / scale
    near = (x / scale) * unit.conjugate() / _squared_size(unit)
    far = x / largest
    return ComplexValue(
        where(usual, near.real, far.real), where(usual, near.imaginary, far.imaginary)
    )


def _squared_size(x: ComplexValue) -> RealValue:
    return x.real * x.real + x.imaginary * x.imaginary


@formula("complex.stablehlo.abs")
def _absolute(x: ComplexValue) -> RealValue:
    """The root of both squares' sum, of numbers whose squares are none, too."""
    sizes = abs(x.real), abs(x.imaginary)
    high, low = sizes[0].maximum(sizes[1]), sizes[0].minimum(sizes[1])
    alone = high.equals(0) | infinite(high)
    ratio = low / where(alone, 1, high)
    return where(alone, high, high * sqrt(1 + ratio * ratio))


@formula("complex.stablehlo.sign")
def _sign(x: ComplexValue) -> ComplexValue:
    size = _absolute(x)
    return x / where(size.equals(0), 1, size)


# -- functions ----------------------------------------------------------------------------------
def _exponential(x: ComplexValue) -> ComplexValue:
    size, level = exp(x.real), x.imaginary.equals(0)
    turned = ComplexValue(cos(x.imaginary), sin(x.imaginary)) * size
    return ComplexValue(
        where(level, size, turned.real), where(level, x.imaginary, turned.imaginary)
    )


@formula("complex.stablehlo.exponential_minus_one")
def _exp_minus_one(x: ComplexValue) -> ComplexValue:
    """exp(a) cos(b) - 1 = (exp(a) - 1) cos(b) - 2 sin(b / 2)^2, without cancellation."""
    half = sin(x.imaginary * 0.5)
    near = exp_minus_one(x.real) * cos(x.imaginary)
    return ComplexValue(near - half * half * 2, _exponential(x).imaginary)


@formula("complex.stablehlo.power")
def _power(x: ComplexValue, y: ComplexValue) -> ComplexValue:
    """exp(y log x); 1 where y is 0, and 0 of 0."""
    size = _absolute(x)
    result = _exponential(y * ComplexValue(log(size), angle(x.imaginary, x.real)))
    of_none, to_none = size.equals(0), _absolute(y).equals(0)
    return ComplexValue(
        where(to_none, 1, where(of_none, 0, result.real)),
        where(to_none, 0, where(of_none, 0, result.imaginary)),
    )


@formula("complex.stablehlo.tanh")
def _tanh(x: ComplexValue) -> ComplexValue:
    """tanh(a + ib) = (t + i sin b cos b (1 - t^2)) / (cos^2 b + t^2 sin^2 b) of t = tanh a."""
    t = tanh(x.real)
    sine, cosine = sin(x.imaginary), cos(x.imaginary)
    below = cosine * cosine + t * t * (sine * sine)
    return ComplexValue(t, sine * cosine * (1 - t * t)) / below


@formula("complex.stablehlo.tan")
def _tan(x: ComplexValue) -> ComplexValue:
    """-i tanh(i x)."""
    tangent = _tanh(ComplexValue(-x.imaginary, x.real))
    return ComplexValue(tangent.imaginary, -tangent.real)


@formula("complex.stablehlo.logistic")
def _logistic(x: ComplexValue) -> ComplexValue:
    """1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2."""
    tangent = _tanh(x * 0.5)
    return ComplexValue(tangent.real + 1, tangent.imaginary) * 0.5


@formula("complex.stablehlo.sine")
def _sine(x: ComplexValue) -> ComplexValue:
    """sin(a + ib) = sin a cosh b + i cos a sinh b."""
    a, c = x.parts
    return ComplexValue(sin(a) * cosh(c), cos(a) * sinh(c))


@formula("complex.stablehlo.cosine")
def _cosine(x: ComplexValue) -> ComplexValue:
    """cos(a + ib) = cos a cosh b - i sin a sinh b."""
    a, c = x.parts
    return ComplexValue(cos(a) * cosh(c), -(sin(a) * sinh(c)))


@formula("complex.stablehlo.rsqrt")
def _inverse_root(x: ComplexValue) -> ComplexValue:
    """1 / sqrt(x) = sqrt(1 / x), by the polar form."""
    half = angle(x.imaginary, x.real) * -0.5
    return ComplexValue(cos(half), sin(half)) * reciprocal(sqrt(_absolute(x)))
