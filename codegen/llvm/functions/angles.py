"""sin and cos of float32 scalars and vectors.

An angle is x = n pi/2 + r, |r| <= pi/4: n and r are found in double precision, pi/2 in two parts,
which is right to float32 for angles up to 2^30. A larger one is m 2^s, m a whole number of 24 bits:
the part of a turn that it is beyond whole turns is the fraction of m times the 64 bits of 1/(2 pi)
from bit s on (Payne and Hanek), of which 32 bits are kept and go the same way as small angles. Of
r, Cephes' polynomials for `sinf` and `cosf` (S. Moshier). Absolute error below 2e-7, relative error
below 2e-7 up to an angle of 1e4; what is infinite or no number gives no number.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import DOUBLE, INDEX, INT32, Value, VectorType, literal, vector

_HIGH = math.pi / 2
_LOW = 6.123233995736766e-17
"""pi/2 less its nearest double."""
_LARGE = 2.0**30
_TURNS = (0x28BE60DB9391054A, 0x7F09D5F47D4D3770, 0x36D8A5664F10E410)
"""1/(2 pi), 64 bits a word: as many as the fraction of a float32's product with it depends on."""
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
    angle = _without_turns(builder, call, x, builder.convert("fpext", x, wide))
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


def _without_turns(builder: Builder, call: Call, x: Value, angle: Value) -> Value:
    """`angle`, which is x in double precision; of a large one, what is beyond whole turns."""
    count = x.type.count if isinstance(x.type, VectorType) else 0
    half, whole = (vector(kind, count) if count else kind for kind in (INT32, INDEX))

    def number(value: int) -> Value:
        return literal(whole, value)

    bits = builder.convert("zext", builder.convert("bitcast", x, half), whole)
    mantissa = builder.or_(builder.and_(bits, number((1 << 23) - 1)), number(1 << 23))
    exponent = builder.and_(builder.lshr(bits, number(23)), number(255))
    shift = builder.sub(exponent, number(150))  # modulo 64 where x is small, and not looked at
    further = builder.icmp_signed(">=", shift, number(64))
    first, second = (
        builder.select(further, number(_TURNS[word + 1]), number(_TURNS[word])) for word in (0, 1)
    )
    window = call("llvm.fshl", first, second, shift)
    part = builder.convert("trunc", builder.lshr(builder.mul(mantissa, window), number(32)), half)
    turns = builder.convert("sitofp", part, angle.type)
    turned = builder.fmul(turns, literal(angle.type, 2 * math.pi / 2**32))
    size = call("llvm.fabs", angle)
    large = builder.and_(
        builder.fcmp_ordered(">=", size, literal(angle.type, _LARGE)),
        builder.fcmp_ordered("<", size, literal(angle.type, math.inf)),
    )
    signed = call("llvm.copysign", literal(angle.type, 1.0), angle)
    return builder.select(large, builder.fmul(turned, signed), angle)


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
