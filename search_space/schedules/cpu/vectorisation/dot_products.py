"""Dot products in schedules: how many neighbours are multiplied at once, and how they are packed.

A reduction is split by `group_of` products; its innermost loops are those products and the lanes,
tensorized as `dot_product` (`machine.DOT_PRODUCT`). What is read lane by lane is packed in groups:
b[k, j] -> [panel, k/P, j%panel, k%P].

Floating elements can be widened and multiplied one by one, too: spaces have both ways, and
`prefers_dot` says which is the first choice.
"""

from tilesmith.search_space.expressions.dtypes import is_floating, size_of
from tilesmith.search_space.expressions.expression import Expr, as_expr
from tilesmith.search_space.hardware.instruction_set import dot_product
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension

WIDENING = 2
"""Operations that widen a vector of elements: neighbours put apart, and shifted."""
MANY = 12
"""How often a register tile uses a vector, as schedules have it by default."""


def group_of(target: Target, left: str, right: str) -> int:
    """Products that one instruction of a CPU target adds up; 1 where it has none for these dtypes.

    Bytes that have no instruction of their own are widened to pairs of 16 bits, if those have.
    """
    own = dot_product(target, left, right)
    if own is not None:
        return own.products
    if "int" in left and "int" in right and size_of(left) == size_of(right) == 1:
        wide = dot_product(target, "int16", "int16")
        return wide.products if wide is not None else 1
    return 1


def prefers_dot(target: Target, left: str, right: str, uses: int = MANY) -> bool:
    """Whether dot products take less time than multiply-adds of what is widened before.

    That they do is assumed where nobody has measured (`dot.bfloat16.ports`, ...). Processors
    differ: one begins two `vdpbf16ps` a cycle, another one in two cycles, half of what its FMAs
    do. Whole numbers leave no choice: products of 32 bits are slower than any dot product.

    Args:
        uses: how often a vector is multiplied once it is widened.
    """
    ports = f"dot.{left}.ports"
    if not is_floating(left) or ports not in target:
        return True
    begun = target.number("fma.rate" if "fma.rate" in target else "fma.ports")
    widened = (uses + WIDENING) / uses / begun
    return 1 / (group_of(target, left, right) * target.number(ports)) <= widened


def grouped(rank: int, column: int, row: int, panel: Expr, products: int) -> Layout:
    """A matrix (the last two of `rank` axes) in panels of columns and groups of rows:
    [.., column/panel, row/products, column%panel, row%products]."""
    group = as_expr(products)
    return Layout(
        (
            *(LayoutDimension(axis) for axis in range(rank - 2)),
            LayoutDimension(column, "outer", panel),
            LayoutDimension(row, "outer", group),
            LayoutDimension(column, "inner", panel),
            LayoutDimension(row, "inner", group),
        )
    )
