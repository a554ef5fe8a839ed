"""Numbers of elements that are known at run time only, as values to compute with."""

from __future__ import annotations

from tilesmith.search_space.expressions.expression import ExprLike, as_expr
from tilesmith.search_space.expressions.scalar import Const, Index, Scalar, call


def share_of(count: ExprLike) -> Scalar:
    """1 / count, which a mean is multiplied by: folded into the code unless it varies."""
    number = as_expr(count).constant
    if number is not None:
        return Const(1.0 / number)
    return call("reciprocal", call("to_float32", Index(as_expr(count))))
