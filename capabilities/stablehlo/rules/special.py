"""Functions of the error function's family, as compositions of what operators there are."""

from __future__ import annotations

import numpy as np

from tilesmith.capabilities.stablehlo.builder import GraphBuilder, TensorValue
from tilesmith.capabilities.stablehlo.rules.elementwise import choose, formula
from tilesmith.compiler.graph.graph import Node

_ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398,
    1.48851587, -0.82215223, 0.17087277,
)  # fmt: skip
"""Numerical Recipes, 2nd edition, section 6.2: erfc to 1.2e-7 of its value."""

_ERF_INVERSE = (
    (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
     -0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
    (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
     -0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)  # fmt: skip
"""M. Giles, "Approximating the erfinv function": the centre, and the tails."""


@formula("chlo.erfc")
def complementary_error(b: GraphBuilder, x: TensorValue) -> TensorValue:
    """1 - erf(x).

    The argument of a GELU, -x / sqrt 2, keeps this form, which passes recognise; elsewhere small
    values keep their digits.
    """
    if _is_scaled_negation(b, x):
        return b.elementwise("Sub", b.like(1, x), b.elementwise("Erf", x))
    size = b.elementwise("Abs", x)
    half = b.elementwise("Mul", size, b.like(0.5, x))
    t = b.elementwise("Reciprocal", b.elementwise("Add", half, b.like(1, x)))
    total = _polynomial(b, t, _ERFC[::-1])
    exponent = b.elementwise("Sub", total, b.elementwise("Mul", x, x))
    tail = b.elementwise("Mul", t, b.elementwise("Exp", exponent))
    mirrored = b.elementwise("Sub", b.like(2, x), tail)
    above = b.elementwise("GreaterOrEqual", x, b.like(0, x), dtype="bool")
    near = b.elementwise("Less", size, b.like(0.5, x), dtype="bool")
    middle = b.elementwise("Sub", b.like(1, x), b.elementwise("Erf", x))
    return choose(b, near, middle, choose(b, above, tail, mirrored))


def _is_scaled_negation(b: GraphBuilder, x: TensorValue) -> bool:
    product = b.producer(x.name)
    if product is None or not product.is_onnx("Mul"):
        return False
    numbers = [b.constants[name] for name in product.inputs if name in b.constants]
    negated: list[Node | None] = [b.producer(name) for name in product.inputs]
    scale = float(numbers[0].reshape(-1)[0]) if len(numbers) == 1 and numbers[0].size == 1 else 0.0
    has_minus = any(node is not None and node.is_onnx("Neg") for node in negated)
    return bool(np.isclose(abs(scale), np.sqrt(0.5))) and (has_minus or scale < 0)


def _polynomial(b: GraphBuilder, x: TensorValue, coefficients: tuple[float, ...]) -> TensorValue:
    """By Horner's rule, the highest power first."""
    result = b.like(coefficients[0], x)
    for coefficient in coefficients[1:]:
        result = b.elementwise("Add", b.elementwise("Mul", result, x), b.like(coefficient, x))
    return result


@formula("chlo.erf_inv")
def inverse_error(b: GraphBuilder, x: TensorValue) -> TensorValue:
    one = b.like(1, x)
    inside = b.elementwise("Mul", b.elementwise("Sub", one, x), b.elementwise("Add", one, x))
    w = b.elementwise("Neg", b.elementwise("Log", inside))
    centre = _polynomial(b, b.elementwise("Sub", w, b.like(2.5, x)), _ERF_INVERSE[0])
    root = b.elementwise("Sub", b.elementwise("Sqrt", w), b.like(3, x))
    tail = _polynomial(b, root, _ERF_INVERSE[1])
    central = b.elementwise("Less", w, b.like(5, x), dtype="bool")
    result = b.elementwise("Mul", choose(b, central, centre, tail), x)
    edge = b.elementwise("Equal", b.elementwise("Abs", x), one, dtype="bool")
    return choose(b, edge, b.elementwise("Mul", x, b.like(np.inf, x)), result)
