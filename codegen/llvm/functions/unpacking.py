"""Codes of few bits, unpacked where they stand: a formula of bytes, for all bytes of a vector.

    bit_and(shift_right(w[.., j, p], 4), 15)        the upper halves of a vector of bytes

What is written is exactly `flags.whole` of every element: whole numbers of the elements' own type.
"""

from collections.abc import Callable

from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.flags import whole
from tilesmith.codegen.llvm.text.ir import Value, literal
from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import CONVERSIONS, Call, Const, Index, Load, Scalar
from tilesmith.search_space.operator_parts.formula_types import INTEGER_FUNCTIONS

Number = Callable[[Expr], object]
"""The number an index is at this point of emission; anything else where it is none."""


def source(value: Scalar | None) -> Load | None:
    """The one load that a formula unpacks (the load itself, too); None for any other formula."""
    match value:
        case Load():
            return value
        case Call(function, arguments) if function in INTEGER_FUNCTIONS:
            formulas = [a for a in arguments if not _is_number(a)]
            return source(formulas[0]) if len(formulas) == 1 else None
        case _:
            return None


def _is_number(value: Scalar) -> bool:
    match value:
        case Const():
            return True
        case Call(function, (Index(),)):
            return function in CONVERSIONS
        case _:
            return False


def numbers(value: Scalar, number: Number) -> tuple[int, ...] | None:
    """The numbers of a formula in order, from left to right; None where one is not known."""
    match value:
        case Call(function, (Index(expression),)) if function in CONVERSIONS:
            constant = number(expression)
            return (constant,) if isinstance(constant, int) and 0 <= constant < 128 else None
        case Const(known):
            return (int(known),)
        case Call(_, arguments):
            parts = [numbers(argument, number) for argument in arguments]
            kept = [part for part in parts if part is not None]
            return tuple(n for part in kept for n in part) if len(kept) == len(parts) else None
        case _:
            return ()


def unpacked(builder: Builder, value: Scalar, elements: Value, known: list[int]) -> Value:
    """The formula of every element.

    Args:
        value: one that `source` takes.
        elements: a vector of what its load reads.
        known: its `numbers`, which are taken from the front.
    """
    if isinstance(value, Load):
        return elements
    if _is_number(value):
        return literal(elements.type, known.pop(0))
    assert isinstance(value, Call), value
    arguments = [unpacked(builder, argument, elements, known) for argument in value.arguments]
    return whole(builder, value.function, arguments)
