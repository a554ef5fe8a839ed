"""Inverse and hyperbolic functions of float32 scalars and vectors, as polynomials of stated error.

Reductions and coefficients are Cephes' for single precision (S. Moshier, `asinf`, `atanf`, `sinhf`,
`asinhf`, `acoshf`, `atanhf`); squares of exp(x/2) take the place of exp(x), which keeps what does
not overflow from overflowing on the way. Relative errors, measured against numpy in double
precision: below 4e-7 (sinh, cosh: below 6e-7). What is outside a function's domain is no number,
and what is no number stays so.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tilesmith.codegen.llvm.text.ir import Value, literal

if TYPE_CHECKING:
    from tilesmith.codegen.llvm.functions.vector_math import VectorMath

_ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_SINH = (2.03721912945e-4, 8.33028376239e-3, 1.66667160211e-1)
_ASINH = (2.0122003309e-2, -4.2699340972e-2, 7.4847586088e-2, -1.6666288134e-1)
_ACOSH = (1.7596881071e-3, -7.5272886713e-3, 2.6454905019e-2, -1.1784741703e-1, 1.4142135263)
_ATANH = (
    1.81740078349e-1, 8.24370301058e-2, 1.46691431730e-1, 1.99782164500e-1, 3.33337300303e-1,
)  # fmt: skip
_LARGE = 1500.0
"""From here on x^2 + 1 is x^2 to single precision."""


class _Emitter:
    """Short names for what the functions below are made of."""

    def __init__(self, math: "VectorMath", like: Value) -> None:
        self.math, self.builder, self.like = math, math.builder, like

    def number(self, value: float) -> Value:
        return literal(self.like.type, value)

    def horner(self, x: Value, coefficients: Sequence[float]) -> Value:
        total = self.number(coefficients[0])
        for coefficient in coefficients[1:]:
            total = self.math.fma(total, x, self.number(coefficient))
        return total

    def odd(self, x: Value, square: Value, coefficients: Sequence[float]) -> Value:
        """x + x^3 P(x^2)."""
        inner = self.builder.fmul(self.horner(square, coefficients), square)
        return self.math.fma(inner, x, x)

    def above(self, x: Value, limit: float) -> Value:
        return self.builder.fcmp_ordered(">", x, self.number(limit))

    def sum(self, x: Value, value: float) -> Value:
        return self.builder.fadd(x, self.number(value))

    def times(self, x: Value, value: float) -> Value:
        return self.builder.fmul(x, self.number(value))

    def magnitude(self, x: Value) -> Value:
        return self.math.call("llvm.fabs", x)

    def signed(self, value: Value, sign: Value) -> Value:
        return self.math.call("llvm.copysign", value, sign)

    def root(self, x: Value) -> Value:
        return self.math.call("llvm.sqrt", x)


def _of_half(math: "VectorMath", x: Value) -> tuple[Value, Value]:
    """exp(|x|) / 2 and exp(-|x|) / 2."""
    e = _Emitter(math, x)
    root = math.exp(e.times(e.magnitude(x), 0.5))
    return (
        e.builder.fmul(e.times(root, 0.5), root),
        e.builder.fdiv(e.builder.fdiv(e.number(0.5), root), root),
    )


def cosh(math: "VectorMath", x: Value) -> Value:
    return math.builder.fadd(*_of_half(math, x))


def sinh(math: "VectorMath", x: Value) -> Value:
    e = _Emitter(math, x)
    far = e.signed(e.builder.fsub(*_of_half(math, x)), x)
    near = e.odd(x, e.builder.fmul(x, x), _SINH)
    return e.builder.select(e.above(e.magnitude(x), 1.0), far, near)


def _arc(math: "VectorMath", x: Value) -> tuple[Value, Value]:
    """(|x| > 1/2, the arc sine of |x|, or of the square root of (1 - |x|) / 2 there)."""
    e = _Emitter(math, x)
    size = e.magnitude(x)
    large = e.above(size, 0.5)
    left = e.times(e.builder.fsub(e.number(1.0), size), 0.5)
    square = e.builder.select(large, left, e.builder.fmul(size, size))
    return large, e.odd(e.builder.select(large, e.root(left), size), square, _ASIN)


def asin(math_: "VectorMath", x: Value) -> Value:
    e = _Emitter(math_, x)
    large, arc = _arc(math_, x)
    rest = e.builder.fsub(e.number(math.pi / 2), e.builder.fadd(arc, arc))
    return e.signed(e.builder.select(large, rest, arc), x)


def acos(math_: "VectorMath", x: Value) -> Value:
    e = _Emitter(math_, x)
    large, arc = _arc(math_, x)
    twice = e.builder.fadd(arc, arc)
    other = e.builder.fsub(e.number(math.pi), twice)
    far = e.builder.select(e.above(x, 0.0), twice, other)
    near = e.builder.fsub(e.number(math.pi / 2), e.signed(arc, x))
    return e.builder.select(large, far, near)


def atan(math_: "VectorMath", x: Value) -> Value:
    e = _Emitter(math_, x)
    builder, size = e.builder, e.magnitude(x)
    far, middle = e.above(size, 2.414213562373095), e.above(size, 0.4142135623730950)
    turned = builder.fdiv(e.number(-1.0), size)
    half = builder.fdiv(e.sum(size, -1.0), e.sum(size, 1.0))
    reduced = builder.select(far, turned, builder.select(middle, half, size))
    start = builder.select(middle, e.number(math.pi / 4), e.number(0.0))
    start = builder.select(far, e.number(math.pi / 2), start)
    arc = e.odd(reduced, builder.fmul(reduced, reduced), _ATAN)
    return e.signed(builder.fadd(start, arc), x)


def asinh(math_: "VectorMath", x: Value) -> Value:
    e = _Emitter(math_, x)
    builder, size = e.builder, e.magnitude(x)
    square = builder.fmul(size, size)
    large = e.above(size, _LARGE)
    inner = builder.fadd(size, e.root(e.sum(square, 1.0)))
    logarithm = math_.log(builder.select(large, size, inner))
    logarithm = builder.select(large, e.sum(logarithm, math.log(2)), logarithm)
    near = e.odd(size, square, _ASINH)
    return e.signed(builder.select(e.above(size, 0.5), logarithm, near), x)


def acosh(math_: "VectorMath", x: Value) -> Value:
    e = _Emitter(math_, x)
    builder = e.builder
    above = e.sum(x, -1.0)
    large = e.above(x, _LARGE)
    inner = builder.fadd(x, e.root(builder.fmul(above, e.sum(x, 1.0))))
    logarithm = math_.log(builder.select(large, x, inner))
    logarithm = builder.select(large, e.sum(logarithm, math.log(2)), logarithm)
    near = builder.fmul(e.horner(above, _ACOSH), e.root(above))
    return builder.select(e.above(above, 0.5), logarithm, near)


def atanh(math_: "VectorMath", x: Value) -> Value:
    e = _Emitter(math_, x)
    builder, size = e.builder, e.magnitude(x)
    quotient = builder.fdiv(e.sum(size, 1.0), builder.fsub(e.number(1.0), size))
    far = e.times(math_.log(quotient), 0.5)
    near = e.odd(size, builder.fmul(size, size), _ATANH)
    return e.signed(builder.select(e.above(size, 0.5), far, near), x)


INVERSES: "Mapping[str, Callable[[VectorMath, Value], Value]]" = {
    "sinh": sinh, "cosh": cosh, "asin": asin, "acos": acos, "atan": atan, "asinh": asinh,
    "acosh": acosh, "atanh": atanh,
}  # fmt: skip
"""By function of `scalar.FUNCTIONS`."""
