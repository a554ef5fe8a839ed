"""Formulas of operators whose operands and results have element types of their own.

Comparisons, logic, choices, casts and tests, as kernels read them: a bool is a flag, `Cast` is a
conversion by name, the operands of everything else are of one type. Semantics are those of the
operators' newest versions in the ONNX standard; casts of numbers that do not fit are undefined
there.
"""

from collections.abc import Callable

import numpy as np
import onnx

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.graph.operator_traits import having
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.expressions.scalar import CONVERSIONS, Const, Scalar, call
from tilesmith.search_space.operator_parts.formula import number

Writer = Callable[[Rewriter, Node, list[Scalar]], "Scalar | None"]

_WHOLE = (
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
)  # fmt: skip

DTYPES = ("float32", "float64", *_WHOLE)
"""Element types that elementwise kernels are made for."""

IN_DOUBLE = having("double")
"""Operators whose formulas float64 has, too."""


def whole_number(rewriter: Rewriter, name: str) -> Const | None:
    """The one value of a constant of whole numbers or flags, else None."""
    array = rewriter.constant(name)
    if array is None or array.size == 0 or array.dtype.name not in _WHOLE:
        return None
    first = array.reshape(-1)[0]
    return Const(int(first)) if bool(np.all(array == first)) else None


def cast(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar | None:
    """`Cast` and `CastLike` among the types that kernels have."""
    result = rewriter.info(node.writes[0]).dtype
    source = rewriter.info(node.inputs[0]).dtype
    if node.is_onnx("Cast") and node.attribute("to") == onnx.TensorProto.STRING:
        return None
    if f"to_{result}" not in CONVERSIONS or source not in DTYPES:
        return None
    return terms[0] if source == result else call(f"to_{result}", terms[0])


def is_inf(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar | None:
    infinite = call("is_inf", terms[0])
    above, below = (node.attribute(f"detect_{sign}", 1) for sign in ("positive", "negative"))
    if above and below:
        return infinite
    if not above and not below:
        return None
    return call("and", infinite, call("greater" if above else "less", terms[0], 0))


def modulo(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar | None:
    """Of whole numbers, with the sign of the divisor, or with `fmod` of what is divided."""
    if not node.attribute("fmod", 0):
        return call("modulo", *terms)
    if rewriter.info(node.writes[0]).dtype == "float32":
        return None  # a quotient may have more digits than any number here
    x, y = terms
    return call("subtract", x, call("multiply", call("divide", x, y), y))


def shift(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar:
    return call(f"shift_{str(node.attribute('direction')).lower()}", *terms)


def clip_by_tensors(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar | None:
    """`Clip` to bounds that are tensors: of whole numbers, which no float32 holds, or not known."""
    x, *bounds = terms
    names = ("maximum", "minimum")
    given = [function for function, name in zip(names, node.inputs[1:], strict=False) if name]
    if not bounds or len(given) != len(bounds):
        return None
    for function, bound in zip(given, bounds, strict=True):
        x = call(function, x, bound)
    return x


def shrink(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar | None:
    if rewriter.info(node.writes[0]).dtype != "float32":
        return None
    x, bias = terms[0], number(node.attribute("bias", 0.0))
    limit = float(node.attribute("lambd", 0.5))
    above = call("where", call("greater", x, number(limit)), call("subtract", x, bias), 0)
    return call("where", call("less", x, number(-limit)), call("add", x, bias), above)


def swiglu(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar:
    gate, value = terms
    alpha = float(node.attribute("alpha", 1.0))
    inner = gate if alpha == 1.0 else call("multiply", gate, number(alpha))
    return call("multiply", call("multiply", gate, call("sigmoid", inner)), value)
