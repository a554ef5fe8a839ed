"""Functions that VXM lacks, as series of what it has: logarithms, powers, sines.

    log(x)      z = x^(1/64) by six roots, t = (z - 1) / (z + 1), 128 (t + t^3/3 + .. + t^9/9)
    x^y         exp(y log x), of a number y that is not whole: what is below 0 has no such power

    sin(x)      x less turns of P = 2^13 pi; of what is left
                k = round(x / pi), r = x - k pi, (-1)^k (r - r^3/3! + .. - r^11/11!)
    cos(x)      the same of k = round(x / pi + 1/2), r = x - (k - 1/2) pi

Two of `rsqrt` are a fourth root. In float32 the logarithm is right to 1e-5 + 1e-6 |log x| for x
from 1e-15 to 1e15, and to 1e-3 of it elsewhere. P and pi come in three parts, the first ones of so
few bits that a number times them is exact (Cody and Waite, as in Cephes); the last part of P is
subtracted behind the first of pi, when what is left is small. So sines are right to 1e-6 up to
2^27, where neighbouring float32 are 8 radians apart; beyond they are no number. They are
taken of float32 alone (`families.lpu.schedules.building_blocks.functions`): angles of many turns,
which positions and time steps make, have no place in float16.
"""

import math
from collections.abc import Sequence
from typing import Protocol

from tilesmith.families.lpu.codegen.selection.graphs.vectors import Vectors
from tilesmith.families.lpu.schedules.building_blocks.machine import WIDE


class _Algebra(Protocol):
    """What builds graphs of ALU functions (`expressions.Algebra`)."""

    def number(self, value: float, dtype: str) -> Vectors: ...
    def apply(self, function: str, *operands: Vectors, dtype: str = WIDE) -> Vectors: ...
    def floating(self, value: Vectors) -> Vectors: ...
    def compare(self, function: str, a: Vectors, b: Vectors) -> Vectors: ...
    def select(self, condition: Vectors, then: Vectors, otherwise: Vectors) -> Vectors: ...
    def reciprocal(self, x: Vectors, positive: bool = False) -> Vectors: ...


_ROOTS = 6


def logarithm(g: _Algebra, x: Vectors) -> Vectors:
    """The natural one: of zero minus infinity, below it no number."""
    x, one = g.floating(x), g.number(1, WIDE)
    root = x
    for _ in range(_ROOTS):
        root = g.apply("rsqrt", root)
    above = g.apply("subtract", root, one)
    t = g.apply("multiply", above, g.reciprocal(g.apply("add", root, one), positive=True))
    total = _series(g, t, [1 / n for n in (9, 7, 5, 3, 1)])
    logarithm = g.apply("multiply", total, g.number(2.0 ** (_ROOTS + 1), WIDE))
    nothing = g.compare("equal", x, g.number(0, WIDE))
    return g.select(nothing, g.number(-math.inf, WIDE), logarithm)


def power(g: _Algebra, x: Vectors, exponent: float) -> Vectors:
    """A power that is not whole."""
    scaled = g.apply("multiply", logarithm(g, x), g.number(exponent, WIDE))
    return g.apply("exp", scaled)


_PI = (3.140625, 9.67502593994140625e-4, 1.509957990978376432e-7)
"""Pi in parts of few bits."""

_MANY = (25728.0, 7.92578125, 0.0012369576143100858)
"""2^13 pi in parts, the first two of at most eleven bits."""

_FARTHEST = 2.0**27
"""Up to which turns of 2^13 pi have so few bits that they are taken off exactly."""


def sine(g: _Algebra, x: Vectors, quarters: bool = False) -> Vectors:
    """The sine; the cosine with `quarters`, of an angle a quarter of a turn further."""
    x, half = g.floating(x), g.number(0.5, WIDE)
    many = _rounded(g, g.apply("multiply", x, g.number(1 / (2**13 * math.pi), WIDE)))
    near = _without(g, x, many, _MANY[:2])
    little = g.apply("multiply", many, g.number(_MANY[2], WIDE))
    turns = g.apply("multiply", g.apply("subtract", near, little), g.number(1 / math.pi, WIDE))
    turns = g.apply("add", turns, half) if quarters else turns
    whole = _rounded(g, turns)
    away = g.apply("subtract", whole, half) if quarters else whole
    rest = g.apply("subtract", _without(g, near, away, _PI[:1]), little)
    rest = _without(g, rest, away, _PI[1:])
    factors = [(-1) ** n / math.factorial(2 * n + 1) for n in range(5, -1, -1)]
    sine = _series(g, rest, factors)
    pairs = _rounded(g, g.apply("multiply", whole, half))
    odd = g.apply("subtract", whole, g.apply("add", pairs, pairs))  # 0, or 1 or -1
    negative = g.compare("equal", g.apply("abs", odd), g.number(1, WIDE))
    sine = g.select(negative, g.apply("negate", sine), sine)
    within = g.compare("greater", g.number(_FARTHEST, WIDE), g.apply("abs", x))
    return g.select(within, sine, g.number(math.nan, WIDE))


def _without(g: _Algebra, x: Vectors, count: Vectors, parts: Sequence[float]) -> Vectors:
    """x less so many times each part."""
    for part in parts:
        x = g.apply("subtract", x, g.apply("multiply", count, g.number(part, WIDE)))
    return x


def _rounded(g: _Algebra, x: Vectors) -> Vectors:
    whole = g.apply("convert", x, dtype="int32")
    return g.apply("convert", whole, dtype=WIDE)


def _series(g: _Algebra, t: Vectors, factors: Sequence[float]) -> Vectors:
    """t times a polynomial of its square, whose highest factor comes first."""
    square = g.apply("multiply", t, t)
    total = g.number(factors[0], WIDE)
    for factor in factors[1:]:
        product = g.apply("multiply", square, total)
        total = g.apply("add", product, g.number(factor, WIDE))
    return g.apply("multiply", t, total)
