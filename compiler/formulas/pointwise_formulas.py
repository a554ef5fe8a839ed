"""Formulas of elementwise operators: what a node computes of one element of each operand.

A constant of one value becomes a number in the formula, so that kernels read tensors only where
values differ. Operators with element types of their own are in `typed_formulas`. Invariant: a
formula reads each of the tensors named beside it, and no other.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilesmith.compiler.formulas.typed_formulas import (
    cast,
    clip_by_tensors,
    is_inf,
    modulo,
    shift,
    shrink,
    swiglu,
    whole_number,
)
from tilesmith.compiler.graph.access import clip_bounds, uniform
from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Node
from tilesmith.compiler.host.nodes import activation_step
from tilesmith.compiler.numerics.quantised import DEQUANTISE, QUANTISE, coding_of
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.expressions.scalar import Scalar, call
from tilesmith.search_space.operator_parts.formula import (
    number,
    operand,
    operand_count,
    parse_formula,
    substituted,
    uses,
)
from tilesmith.search_space.workloads.epilogue import STEPS

Formula = tuple[Scalar, tuple[str, ...]]
"""A formula over x0, x1, ... and the tensors these are."""


def formula_of(rewriter: Rewriter, node: Node) -> Formula | None:
    """The formula of an elementwise node; None if it is none, or not expressible."""
    if node.domain == INTERNAL_DOMAIN and node.operator in STEPS:
        step = activation_step(node)
        return call(step.name, operand(0), *map(number, step.arguments)), node.inputs
    if node.domain not in ("", INTERNAL_DOMAIN) or node.operator not in _FORMULAS:
        return None
    terms: list[Scalar] = []
    operands: list[str] = []
    for position, name in enumerate(node.inputs):
        value = uniform(rewriter.constant, name) if name else None
        known = whole_number(rewriter, name) if name else None
        if known is not None and not (position == 0 and node.is_onnx("Cast", "CastLike")):
            terms.append(known)
        elif value is not None and math.isfinite(value):
            terms.append(number(value))
        elif name:
            if name not in operands:
                operands.append(name)
            terms.append(operand(operands.index(name)))
    writer = _FORMULAS[node.operator]
    formula = _written(writer, terms) if isinstance(writer, str) else writer(rewriter, node, terms)
    if formula is None:
        return None
    used = tuple(name for i, name in enumerate(operands) if uses(formula, i))
    return substituted(formula, numbered(operands, used)), used


def is_map(node: Node) -> bool:
    """Whether it is an operator on one element each of operands that broadcast."""
    internal = node.domain == INTERNAL_DOMAIN and node.operator in STEPS
    return node.workload is None and (internal or node.is_onnx(*_FORMULAS))


def numbered(names: Sequence[str], operands: Sequence[str]) -> dict[int, Scalar]:
    """Tensors by their number among `names`, as operands numbered among `operands`."""
    return {i: operand(operands.index(n)) for i, n in enumerate(names) if n in operands}


def _written(text: str, terms: list[Scalar]) -> Scalar | None:
    """A formula of some operands; None where it has another number of them."""
    formula = parse_formula(text)
    if operand_count(formula) != len(terms):
        return None
    return substituted(formula, dict(enumerate(terms)))


_Writer = Callable[[Rewriter, Node, list[Scalar]], "Scalar | None"]


def _power(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar | None:
    exponent = uniform(rewriter.constant, node.inputs[1])
    x, kinds = terms[0], [rewriter.info(name).dtype for name in node.inputs]
    if exponent is None and kinds[0] == "float32":
        return call("power", x, terms[1] if kinds[1] == "float32" else to_float(terms[1]))
    if exponent is None or exponent == 0:
        return None
    if abs(exponent) == 0.5:
        power = _root(x)
    elif abs(exponent) == 1.0:
        power = call("add", x, 0) if exponent > 0 else x
    elif exponent.is_integer() and abs(exponent) <= _LONGEST_PRODUCT:
        power = _repeated(x, int(abs(exponent)))
    else:  # through a logarithm, which a negative base with an even exponent does not have
        return None if exponent.is_integer() else call("power", x, number(exponent))
    return power if exponent > 0 else call("reciprocal", power)


def _root(x: Scalar) -> Scalar:
    """The square root as C's `pow` has it: of -0 it is 0, and of -infinity infinity."""
    least = float(np.finfo(np.float32).min)
    size = call("where", call("less", x, number(least)), call("negate", x), x)
    return call("absolute", call("sqrt", size))


_LONGEST_PRODUCT = 8
"""Exponent up to which a power is written as a product."""


def _repeated(x: Scalar, times: int) -> Scalar:
    """x to an integer power, by the fewest products of halves."""
    if times == 1:
        return x
    half = times // 2
    return call("multiply", _repeated(x, half), _repeated(x, times - half))


def to_float(x: Scalar) -> Scalar:
    """A number as float32."""
    return call("to_float32", x)


def _relu(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar:
    floating = rewriter.info(node.writes[0]).dtype == "float32"
    return call("relu", terms[0]) if floating else call("maximum", terms[0], 0)


def _clip(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar | None:
    if rewriter.info(node.writes[0]).dtype != "float32":
        return clip_by_tensors(rewriter, node, terms)
    bounds = clip_bounds(node, rewriter.constant)
    if bounds is None:
        return clip_by_tensors(rewriter, node, terms)
    low, high = bounds
    if math.isinf(high):
        return call("maximum", terms[0], number(low)) if math.isfinite(low) else None
    if math.isinf(low):
        return call("minimum", terms[0], number(high))
    return call("clip", terms[0], number(low), number(high))


def _leaky_relu(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar:
    return call("leaky_relu", terms[0], number(node.attribute("alpha", 0.01)))


def _hard_sigmoid(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar:
    slope, shift = node.attribute("alpha", 0.2), node.attribute("beta", 0.5)
    return call("hard_sigmoid", terms[0], number(slope), number(shift))


def _where_positive(x: Scalar, then: Scalar, otherwise: Scalar) -> Scalar:
    return call("where", call("greater_equal", x, 0), then, otherwise)


def _exp_minus_one(x: Scalar) -> Scalar:
    """exp(x) - 1 of x <= 0: near 0, where the difference cancels, the first seven terms of
    Taylor's series, which leave out less than 2^-25 of the result."""
    near: Scalar = call("multiply", x, number(1 / 7))
    for place in range(6, 0, -1):
        near = call("multiply", call("add", near, 1), call("multiply", x, number(1 / place)))
    far = call("subtract", call("exp", x), 1)
    return call("where", call("greater_equal", x, number(-0.35)), near, far)


def _elu(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar:
    x, alpha = terms[0], number(node.attribute("alpha", 1.0))
    return _where_positive(x, x, call("multiply", _exp_minus_one(x), alpha))


def _selu(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar:
    x = terms[0]
    alpha = node.attribute("alpha", 1.6732632423543772)
    gamma = node.attribute("gamma", 1.0507009873554805)
    low = call("multiply", _exp_minus_one(x), number(alpha * gamma))
    return _where_positive(x, call("multiply", x, number(gamma)), low)


def _celu(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar | None:
    x, alpha = terms[0], node.attribute("alpha", 1.0)
    if abs(alpha) < 1e-37:  # one through it is no number
        return None
    low = _exp_minus_one(call("multiply", x, number(1 / alpha)))
    return _where_positive(x, x, call("multiply", low, number(alpha)))


def _softplus(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar:
    """log(1 + exp(x)), in a form that does not overflow.

    What 1 + s rounds off is added to the logarithm, whose slope is 1 where that tells.
    """
    x = terms[0]
    small = call("exp", call("negate", call("absolute", x)))
    above = call("add", small, 1)
    lost = call("subtract", small, call("subtract", above, 1))
    return call("add", call("maximum", x, 0), call("add", call("log", above), lost))


def _mish(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar:
    return call("multiply", terms[0], call("tanh", _softplus(rewriter, node, terms)))


def _thresholded_relu(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar:
    """x where x > alpha, else 0, NaN too: above a number is from the next one on."""
    above = np.nextafter(np.float32(node.attribute("alpha", 1.0)), np.float32(np.inf))
    return call("where", call("greater_equal", terms[0], number(above)), terms[0], 0)


def _quantise(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar:
    """saturate(round(x / scale) + zero)."""
    coding = coding_of(rewriter, node)
    steps = call("round", call("divide", terms[0], number(coding.scale)))
    moved = call("add", steps, number(coding.zero)) if coding.zero else steps
    return call(f"to_{coding.dtype}", moved)


def _dequantise(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar:
    coding = coding_of(rewriter, node)
    wide = to_float(terms[0])
    moved = call("subtract", wide, number(coding.zero)) if coding.zero else wide
    return call("multiply", moved, number(coding.scale))


_FORMULAS: Mapping[str, str | _Writer] = {
    "Add": "add(x0,x1)", "Sub": "subtract(x0,x1)", "Mul": "multiply(x0,x1)", "Pow": _power,
    "Div": "divide(x0,x1)", "Mod": modulo, "Max": "maximum(x0,x1)", "Min": "minimum(x0,x1)",
    "Neg": "negate(x0)", "Abs": "absolute(x0)", "Exp": "exp(x0)", "Log": "log(x0)",
    "Sqrt": "sqrt(x0)", "Reciprocal": "reciprocal(x0)", "Erf": "erf(x0)", "Tanh": "tanh(x0)",
    "Floor": "floor(x0)", "Ceil": "ceil(x0)", "Round": "round(x0)", "Clip": _clip, "Relu": _relu,
    "Sign": "where(greater(x0,0),1,where(less(x0,0),-1,x0))",
    "Sigmoid": "sigmoid(x0)", "HardSwish": "hard_swish(x0)", "LeakyRelu": _leaky_relu,
    "HardSigmoid": _hard_sigmoid, "Softsign": "divide(x0,add(absolute(x0),1))",
    "PRelu": "where(greater_equal(x0,0),x0,multiply(x0,x1))",
    "Elu": _elu, "Selu": _selu, "Celu": _celu, "Softplus": _softplus, "Mish": _mish,
    "ThresholdedRelu": _thresholded_relu, "Shrink": shrink, "SwiGLU": swiglu,
    "Sin": "sin(x0)", "Cos": "cos(x0)", "Tan": "divide(sin(x0),cos(x0))", "Sinh": "sinh(x0)",
    "Cosh": "cosh(x0)", "Asin": "asin(x0)", "Acos": "acos(x0)", "Atan": "atan(x0)",
    "Asinh": "asinh(x0)", "Acosh": "acosh(x0)", "Atanh": "atanh(x0)",
    "Equal": "equal(x0,x1)", "Less": "less(x0,x1)", "LessOrEqual": "less_equal(x0,x1)",
    "Greater": "greater(x0,x1)", "GreaterOrEqual": "greater_equal(x0,x1)",
    "IsNaN": "is_nan(x0)", "IsInf": is_inf, "Where": "where(x0,x1,x2)", "Not": "not(x0)",
    "And": "and(x0,x1)", "Or": "or(x0,x1)", "Xor": "xor(x0,x1)", "BitwiseNot": "bit_not(x0)",
    "BitwiseAnd": "bit_and(x0,x1)", "BitwiseOr": "bit_or(x0,x1)", "BitwiseXor": "bit_xor(x0,x1)",
    "BitShift": shift, "Cast": cast, "CastLike": cast,
    QUANTISE: _quantise, DEQUANTISE: _dequantise,
}  # fmt: skip
"""By operator, its formula of the operands x0, x1, ... or what writes one; a formula with fewer or
more operands than a node has is not its own."""
