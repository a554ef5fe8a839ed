"""Formulas of operators whose operands and results have element types of their own.

Comparisons, logic, choices, casts and tests, as kernels read them: a bool is a flag, `Cast` is a
conversion by name, the operands of everything else are of one type. Semantics are those of the
operators' newest versions in the ONNX standard; casts of numbers that do not fit are undefined
there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from tilesmith.compiler.graph import Node
from tilesmith.compiler.rewrite import Rewriter
from tilesmith.search_space.ir.scalar import CONVERSIONS, Call, Const, Scalar, call

Writer = Callable[[Rewriter, Node, list[Scalar]], "Scalar | None"]

_WHOLE = ("int64", "int32", "int16", "int8", "uint16", "uint8", "bool")

DTYPES = ("float32", *_WHOLE)
"""Element types that elementwise kernels are made for."""


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


def _function(name: str, count: int) -> Writer:
    return lambda rewriter, node, terms: call(name, *terms) if len(terms) == count else None


def _is_inf(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar | None:
    found = call("is_inf", terms[0])
    above, below = (node.attribute(f"detect_{sign}", 1) for sign in ("positive", "negative"))
    if above and below:
        return found
    if not above and not below:
        return None
    return call("and", found, call("greater" if above else "less", terms[0], 0))


def _where(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar | None:
    return call("where", *terms)


def _modulo(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar | None:
    """Of whole numbers, with the sign of the divisor."""
    return None if node.attribute("fmod", 0) else call("modulo", *terms)


def clip_whole(rewriter: Rewriter, node: Node, x: Scalar) -> Scalar | None:
    """`Clip` of whole numbers, whose bounds no float32 holds."""
    for function, name in (("maximum", node.input(1)), ("minimum", node.input(2))):
        bound = whole_number(rewriter, name) if name else None
        if name and bound is None:
            return None
        x = call(function, x, bound) if bound is not None else x
    return x if isinstance(x, Call) else None


def _tan(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar:
    return call("divide", call("sin", terms[0]), call("cos", terms[0]))


def _sign(rewriter: Rewriter, node: Node, terms: list[Scalar]) -> Scalar | None:
    """Not-a-number stays."""
    x = terms[0]
    return call("where", call("greater", x, 0), 1, call("where", call("less", x, 0), -1, x))


TYPED: dict[str, Writer] = {
    "Where": _where, "Cast": cast, "CastLike": cast, "IsNaN": _function("is_nan", 1),
    "IsInf": _is_inf, "Equal": _function("equal", 2), "Less": _function("less", 2),
    "LessOrEqual": _function("less_equal", 2), "Greater": _function("greater", 2),
    "GreaterOrEqual": _function("greater_equal", 2), "And": _function("and", 2),
    "Or": _function("or", 2), "Xor": _function("xor", 2), "Not": _function("not", 1),
    "Mod": _modulo, "Sign": _sign, "Sin": _function("sin", 1), "Cos": _function("cos", 1),
    "Tan": _tan,
}  # fmt: skip
"""Writers by ONNX operator."""
