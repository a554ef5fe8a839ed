"""Flags, conversions and whole numbers in LLVM.

A flag is one bit until it is stored or computed with: then it is 1 or 0 of the type it meets. In
memory a bool is a byte, and any byte but 0 is true. Values of several operands have one width.
"""

import math
from collections.abc import Sequence

from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import (
    BOOL,
    FLOAT,
    INT32,
    Constant,
    FloatType,
    IntType,
    Type,
    Value,
    VectorType,
    literal,
    scalar_of,
    vector,
)
from tilesmith.codegen.llvm.text.types import element_type, is_float
from tilesmith.search_space.support.errors import CodegenError

_WRAPPING = {
    "add": Builder.add, "subtract": Builder.sub, "multiply": Builder.mul,
    "bit_and": Builder.and_, "bit_or": Builder.or_, "bit_xor": Builder.xor,
}  # fmt: skip
"""Functions of whole numbers that are one instruction."""

_SIGNS = {"equal": "==", "greater": ">", "greater_equal": ">=", "less": "<", "less_equal": "<="}


def is_flag(value: Value) -> bool:
    """Whether a value is one bit, or a vector of bits."""
    return scalar_of(value.type) is BOOL


def is_unsigned(kind: Type) -> bool:
    """Whether whole numbers of a type have no sign."""
    scalar = scalar_of(kind)
    assert isinstance(scalar, IntType) and scalar.sign != "bits", f"no whole numbers of {kind}"
    return scalar.sign == "unsigned"


def _ordered(builder: Builder, sign: str, left: Value, right: Value) -> Value:
    """A comparison of whole numbers."""
    compare = builder.icmp_unsigned if is_unsigned(left.type) else builder.icmp_signed
    return compare(sign, left, right)


def like(kind: Type, scalar: IntType | FloatType) -> Type:
    """A type with other elements: `<8 x scalar>` of `<8 x i1>`."""
    return vector(scalar, kind.count) if isinstance(kind, VectorType) else scalar


def as_flag(builder: Builder, value: Value) -> Value:
    """Whether a value is not zero; not-a-number is not."""
    if is_flag(value):
        return value
    if isinstance(value, Constant) and value.number is not None:
        return literal(like(value.type, BOOL), value.number != 0)
    zero = literal(value.type, 0)
    if is_float(value.type):
        return builder.fcmp_unordered("!=", value, zero)
    return builder.icmp_signed("!=", value, zero)


def from_flag(builder: Builder, value: Value, scalar: Type) -> Value:
    """Convert a flag to 1 or 0 of an element type; return any other value unchanged."""
    if not is_flag(value) or scalar is BOOL:
        return value
    assert isinstance(scalar, IntType | FloatType), f"no numbers of {scalar}"
    word = "uitofp" if isinstance(scalar, FloatType) else "zext"
    return builder.convert(word, value, like(value.type, scalar))


def compare(builder: Builder, function: str, values: Sequence[Value]) -> Value:
    """Emit a comparison or test of values of one type; for NaN only `is_nan` is true."""
    first = values[0]
    if function == "is_nan":
        return builder.fcmp_unordered("!=", first, first)
    if function == "is_inf":
        above = builder.fcmp_ordered("==", first, literal(first.type, math.inf))
        below = builder.fcmp_ordered("==", first, literal(first.type, -math.inf))
        return builder.or_(above, below)
    if is_float(first.type):
        return builder.fcmp_ordered(_SIGNS[function], *values)
    return _ordered(builder, _SIGNS[function], *values)


def combine(builder: Builder, function: str, values: Sequence[Value]) -> Value:
    """And, or, exclusive or, not, of flags."""
    if function == "not":
        return builder.xor(values[0], literal(values[0].type, 1))
    return _WRAPPING[f"bit_{function}"](builder, *values)


def converted(builder: Builder, value: Value, dtype: str) -> Value:
    """A value in another element type, as `scalar.FUNCTIONS` says."""
    if dtype == "bool":
        return as_flag(builder, value)
    scalar, before = element_type(dtype), scalar_of(value.type)
    kind = like(value.type, scalar)
    if is_flag(value):
        return from_flag(builder, value, scalar)
    if isinstance(value, Constant) and value.number is not None:
        return literal(kind, value.number)
    if before is scalar:
        return value
    assert isinstance(before, IntType | FloatType), f"no conversion of {before}"
    if isinstance(before, FloatType):
        if isinstance(scalar, IntType):
            return _cut(builder, value, before, scalar)
        return builder.convert("fptrunc" if before.width > scalar.width else "fpext", value, kind)
    unsigned = is_unsigned(before)
    if isinstance(scalar, FloatType):
        return builder.convert("uitofp" if unsigned else "sitofp", value, kind)
    if before.width == scalar.width:
        return builder.convert("bitcast", value, kind)
    wider = "zext" if unsigned else "sext"
    return builder.convert("trunc" if before.width > scalar.width else wider, value, kind)


def _cut(builder: Builder, value: Value, before: FloatType, after: IntType) -> Value:
    """Towards zero, to the nearest there is; what is not a number is 0. LLVM takes vectors apart
    for its own saturating conversions, so numbers out of range are replaced before its plain one.
    """
    kind = like(value.type, after)
    if after.width < 32:
        return _cut_short(builder, value, after)
    unsigned = after.sign == "unsigned"
    least = 0 if unsigned else -(1 << (after.width - 1))
    beyond = least + (1 << after.width)
    low, high = literal(value.type, least), literal(value.type, beyond)
    inside = builder.select(builder.fcmp_ordered(">", value, low), value, low)
    below = builder.fcmp_ordered("<", inside, high)
    number = builder.convert(
        "fptoui" if unsigned else "fptosi", builder.select(below, inside, low), kind
    )
    number = builder.select(below, number, literal(kind, beyond - 1))
    if unsigned:
        return number
    return builder.select(builder.fcmp_ordered("==", value, value), number, literal(kind, 0))


def _cut_short(builder: Builder, value: Value, after: IntType) -> Value:
    """The same to whole numbers that floating ones hold all of: cut to their range first. LLVM
    takes vectors apart for its own conversions to bytes."""
    unsigned = after.sign == "unsigned"
    least = 0 if unsigned else -(1 << (after.width - 1))
    most = least + (1 << after.width) - 1
    zero, low, high = (literal(value.type, number) for number in (0, least, most))
    if not unsigned:
        value = builder.select(builder.fcmp_ordered("==", value, value), value, zero)
    value = builder.select(builder.fcmp_ordered(">", value, low), value, low)  # else: not a number
    value = builder.select(builder.fcmp_ordered("<", value, high), value, high)
    whole_number = builder.convert("fptosi", value, like(value.type, INT32))
    return builder.convert("trunc", whole_number, like(value.type, after))


def ordinal(builder: Builder, value: Value) -> Value:
    """Return an int32 that orders as the value does.

    Of a float32 it is the bits, all but the sign inverted if the sign is set; adding 0 first makes
    -0 equal to 0.
    """
    if is_flag(value) or not is_float(value.type):
        return converted(builder, value, "int32")
    if scalar_of(value.type) is not FLOAT:
        raise CodegenError("function 'ordinal' has code for numbers of at most 32 bits")
    kind = like(value.type, INT32)
    bits = builder.convert("bitcast", builder.fadd(value, literal(value.type, 0)), kind)
    sign = builder.ashr(bits, literal(kind, 31))
    return builder.xor(bits, builder.and_(sign, literal(kind, 0x7FFFFFFF)))


def whole(builder: Builder, function: str, values: Sequence[Value]) -> Value:
    """Arithmetic of whole numbers, which wrap around."""
    first = values[0]
    zero, unsigned = literal(first.type, 0), is_unsigned(first.type)
    if function in _WRAPPING:
        return _WRAPPING[function](builder, *values)
    match function:
        case "maximum" | "minimum":
            sign = ">" if function == "maximum" else "<"
            return builder.select(_ordered(builder, sign, *values), *values)
        case "negate":
            return builder.sub(zero, first)
        case "absolute" if unsigned:
            return first
        case "absolute":
            negative = builder.icmp_signed("<", first, zero)
            return builder.select(negative, builder.sub(zero, first), first)
        case "divide":
            return _divided(builder, *values)
        case "modulo":
            return _modulo(builder, *values)
        case "bit_not":
            return builder.xor(first, _ones(first))
        case "shift_left" | "shift_right":
            return _shifted(builder, function == "shift_left", *values)
        case _:
            raise CodegenError(f"function '{function}' has no integer code")


def _ones(value: Value) -> Value:
    """Every bit set: -1, or the largest number without a sign."""
    scalar = scalar_of(value.type)
    assert isinstance(scalar, IntType)
    return literal(value.type, (1 << scalar.width) - 1 if is_unsigned(value.type) else -1)


def _divided(builder: Builder, a: Value, b: Value) -> Value:
    """Processors trap on division by zero, and on the least number divided by -1."""
    zero, unsigned = literal(a.type, 0), is_unsigned(a.type)
    if isinstance(b, Constant) and b.number not in (None, 0, -1):
        return builder.udiv(a, b) if unsigned else builder.sdiv(a, b)
    by_zero = builder.icmp_signed("==", b, zero)
    if unsigned:
        quotient = builder.udiv(a, builder.select(by_zero, literal(a.type, 1), b))
        return builder.select(by_zero, zero, quotient)
    negated = builder.icmp_signed("==", b, literal(a.type, -1))
    safe = builder.select(builder.or_(by_zero, negated), literal(a.type, 1), b)
    quotient = builder.select(negated, builder.sub(zero, a), builder.sdiv(a, safe))
    return builder.select(by_zero, zero, quotient)


def _shifted(builder: Builder, left: bool, a: Value, b: Value) -> Value:
    """By as many bits as a number has, or by fewer than none, nothing but its sign is left."""
    scalar = scalar_of(a.type)
    assert isinstance(scalar, IntType)
    beyond = builder.icmp_unsigned(">", b, literal(a.type, scalar.width - 1))
    within = builder.select(beyond, literal(a.type, 0), b)
    if left:
        return builder.select(beyond, literal(a.type, 0), builder.shl(a, within))
    if is_unsigned(a.type):
        return builder.select(beyond, literal(a.type, 0), builder.lshr(a, within))
    most = literal(a.type, scalar.width - 1)
    return builder.ashr(a, builder.select(beyond, most, b))


def _modulo(builder: Builder, a: Value, b: Value) -> Value:
    """With the sign of the divisor; 0 where that is 0."""
    zero = literal(a.type, 0)
    if is_unsigned(a.type):
        by_zero = builder.icmp_signed("==", b, zero)
        rest = builder.urem(a, builder.select(by_zero, literal(a.type, 1), b))
        return builder.select(by_zero, zero, rest)
    unsafe = builder.or_(
        builder.icmp_signed("==", b, zero), builder.icmp_signed("==", b, literal(a.type, -1))
    )
    rest = builder.srem(a, builder.select(unsafe, literal(a.type, 1), b))
    opposite = builder.icmp_signed("<", builder.xor(rest, b), zero)
    moved = builder.and_(opposite, builder.icmp_signed("!=", rest, zero))
    return builder.select(moved, builder.add(rest, b), rest)
