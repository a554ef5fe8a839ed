"""sin and cos of float32 scalars and vectors.

An angle is x = n pi/2 + r, |r| <= pi/4: n and r are found in double precision, pi/2 in two parts,
which is right to float32 for angles up to 1e9 (of larger ones, neighbours are tens of turns
apart; their results only stay within +-1). Of r, Cephes' polynomials for `sinf` and `cosf`
(S. Moshier). Absolute error below 2e-7, relative error below 2e-7 up to an angle of 1e4; what is
infinite or no number gives no number.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilesmith.codegen.llvm.builder import Builder
from tilesmith.codegen.llvm.ir import DOUBLE, Value, VectorType, literal, vector

_HIGH = math.pi / 2
_LOW = 6.123233995736766e-17
"""pi/2 less its nearest double."""
_SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
_MOST = 0.7854
"""|r| at most, a little beyond pi/4."""

Call = Callable[..., Value]
"""`VectorMath.call`: an intrinsic overloaded on its first operand."""


def sine(builder: Builder, call: Call, x: Value, quarters: int) -> Value:
    """sin(x + quarters pi/2): the cosine with one quarter."""
    kind = x.type
    wide = vector(DOUBLE, kind.count) if isinstance(kind, VectorType) else DOUBLE
    angle = builder.convert("fpext", x, wide)
    n = call("llvm.roundeven", builder.fmul(angle, literal(wide, 2 / math.pi)))
    r = call("llvm.fma", n, literal(wide, -_HIGH), angle)
    r = call("llvm.fma", n, literal(wide, -_LOW), r)
    turned = builder.fadd(n, literal(wide, float(quarters)))
    turns = call("llvm.floor", builder.fmul(turned, literal(wide, 0.25)))
    quarter = builder.fadd(turned, builder.fmul(turns, literal(wide, -4.0)))
    second = builder.fcmp_ordered(">=", quarter, literal(wide, 2.0))
    within = builder.select(second, builder.fadd(quarter, literal(wide, -2.0)), quarter)
    odd = builder.fcmp_ordered(">=", within, literal(wide, 1.0))
    value = builder.select(odd, *_of(builder, call, builder.convert("fptrunc", r, kind)))
    return builder.select(second, builder.fneg(value), value)


def _of(builder: Builder, call: Call, r: Value) -> tuple[Value, Value]:
    """(cosine, sine) of a small angle."""
    for sign, limit in ((">", _MOST), ("<", -_MOST)):
        beyond = builder.fcmp_ordered(sign, r, literal(r.type, limit))
        r = builder.select(beyond, literal(r.type, limit), r)
    square = builder.fmul(r, r)

    def polynomial(coefficients: tuple[float, ...]) -> Value:
        total: Value = literal(r.type, coefficients[0])
        for coefficient in coefficients[1:]:
            total = call("llvm.fma", total, square, literal(r.type, coefficient))
        return total

    sine = call("llvm.fma", builder.fmul(polynomial(_SINE), square), r, r)
    near = call("llvm.fma", square, literal(r.type, -0.5), literal(r.type, 1.0))
    cosine = call("llvm.fma", polynomial(_COSINE), builder.fmul(square, square), near)
    return cosine, sine
