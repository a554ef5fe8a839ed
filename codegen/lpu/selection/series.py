"""Functions that VXM lacks, as series of what it has: logarithms and powers.

    log(x)      z = x^(1/64) by six roots, t = (z - 1) / (z + 1), 128 (t + t^3/3 + .. + t^9/9)
    x^y         exp(y log x), of a number y that is not whole: what is below 0 has no such power

Two of `rsqrt` are a fourth root. In float32 the logarithm is right to 1e-5 + 1e-6 |log x| for x
from 1e-15 to 1e15, and to 1e-3 of it elsewhere. Sine and cosine stay on the host: angles of many
turns, which positions and time steps make, have no place in the float16 that operands have here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from tilesmith.codegen.lpu.selection.vectors import Vectors


class Algebra(Protocol):
    """What builds graphs of ALU functions (`expressions.Algebra`)."""

    def number(self, value: float, dtype: str) -> Vectors: ...
    def apply(self, function: str, *operands: Vectors, dtype: str = "float32") -> Vectors: ...
    def floating(self, value: Vectors) -> Vectors: ...
    def compare(self, function: str, a: Vectors, b: Vectors) -> Vectors: ...
    def select(self, condition: Vectors, then: Vectors, otherwise: Vectors) -> Vectors: ...
    def reciprocal(self, x: Vectors, positive: bool = False) -> Vectors: ...


_ROOTS = 6


def logarithm(g: Algebra, x: Vectors) -> Vectors:
    """The natural one: of zero minus infinity, below it no number."""
    x, one = g.floating(x), g.number(1, "float32")
    root = x
    for _ in range(_ROOTS):
        root = g.apply("rsqrt", root)
    above = g.apply("subtract", root, one)
    t = g.apply("multiply", above, g.reciprocal(g.apply("add", root, one), positive=True))
    total = _series(g, t, [1 / n for n in (9, 7, 5, 3, 1)])
    found = g.apply("multiply", total, g.number(2.0 ** (_ROOTS + 1), "float32"))
    nothing = g.compare("equal", x, g.number(0, "float32"))
    return g.select(nothing, g.number(-math.inf, "float32"), found)


def power(g: Algebra, x: Vectors, exponent: float) -> Vectors:
    """A power that is not whole."""
    scaled = g.apply("multiply", logarithm(g, x), g.number(exponent, "float32"))
    return g.apply("exp", scaled)


def _series(g: Algebra, t: Vectors, factors: Sequence[float]) -> Vectors:
    """t times a polynomial of its square, whose highest factor comes first."""
    square = g.apply("multiply", t, t)
    total = g.number(factors[0], "float32")
    for factor in factors[1:]:
        product = g.apply("multiply", square, total)
        total = g.apply("add", product, g.number(factor, "float32"))
    return g.apply("multiply", t, total)
