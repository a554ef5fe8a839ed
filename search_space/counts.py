"""Numbers of elements that are known at run time only, as values to compute with.

A mean divides by how many elements it is of. Where that is a number it is folded into the code;
where it varies with sizes, a stage counts.
"""

from __future__ import annotations

from tilesmith.search_space.ir.expression import ExprLike, as_expr
from tilesmith.search_space.ir.scalar import Const, Scalar, call, load
from tilesmith.search_space.scheduling.compute import Stage, axis

COUNT, SHARE = "elements", "share"
"""Names of the stages that count, and divide one by the count."""


def share_of(count: ExprLike) -> tuple[tuple[Stage, ...], Scalar]:
    """Stages to put before others (none where the count is a number), and the value 1 / count."""
    number = as_expr(count).constant
    if number is not None:
        return (), Const(1.0 / number)
    one, k = axis("one", 1), axis("counted", count)
    counted = Stage(COUNT, (one,), Const(1.0), (k,), "sum")
    share = Stage(SHARE, (one,), call("reciprocal", load(COUNT, one.var)))
    return (counted, share), load(SHARE, 0)
