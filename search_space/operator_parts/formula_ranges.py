"""Between which whole numbers the values of a formula lie: what makes sure of computed indices.

    range_of(minimum(maximum(x0,0),199), [int64]'s limits)      (0, 199)

Invariants: what is said holds of every value, whatever the operands are within their ranges; of
floating numbers, which may be none, nothing is said. Where whole numbers might wrap around, all
numbers of their type are possible.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilesmith.search_space.expressions.dtypes import is_floating, to_numpy
from tilesmith.search_space.expressions.ranges import WholeRange
from tilesmith.search_space.expressions.scalar import CONVERSIONS, FLAGS, Call, Const, Load, Scalar
from tilesmith.search_space.operator_parts.formula_types import NUMBER, type_of

FLAG = (0, 1)


def limits(dtype: str) -> WholeRange | None:
    """All numbers of an element type; None of a floating one."""
    if dtype == "bool":
        return FLAG
    if dtype == NUMBER or is_floating(dtype):
        return None
    info = np.iinfo(to_numpy(dtype))
    return int(info.min), int(info.max)


def hull(ranges: Sequence[WholeRange | None]) -> WholeRange | None:
    """What holds of any of several; None where nothing is known of one."""
    known = [one for one in ranges if one is not None]
    if len(known) < len(ranges) or not known:
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def range_of(
    formula: Scalar, operands: Sequence[WholeRange | None], dtypes: Sequence[str]
) -> WholeRange | None:
    """The range of a formula; None of one that gives floating numbers.

    Args:
        operands: of x0, x1, ...; None where nothing is known.
        dtypes: their element types.
    """
    match formula:
        case Const(value):
            return (int(value), int(value)) if float(value).is_integer() else None
        case Load(name):
            position = int(name[1:])
            return operands[position] or limits(dtypes[position])
        case Call(name) if name in FLAGS:
            return FLAG
        case Call(name, arguments):
            whole = limits(type_of(formula, dtypes))
            ranges = [range_of(argument, operands, dtypes) for argument in arguments]
            endless = _of_call(name, ranges)
            if endless is None or whole is None or not _within(endless, whole):
                return whole
            return endless
        case _:
            return None


def _within(inner: WholeRange, outer: WholeRange) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _of_call(name: str, ranges: Sequence[WholeRange | None]) -> WholeRange | None:
    """What a function makes of ranges, had its numbers no end; None where that is not known."""
    if name == "where":
        return hull(ranges[1:])
    if None in ranges:
        return None
    known = [one for one in ranges if one is not None]
    if name in CONVERSIONS:
        return known[0]
    rule = _RULES.get(name)
    return rule(*known) if rule is not None else None


def _ends(function: Callable[[int, int], int]) -> Callable[[WholeRange, WholeRange], WholeRange]:
    """Of a function that is extreme where both of its arguments are."""

    def rule(a: WholeRange, b: WholeRange) -> WholeRange:
        values = [function(x, y) for x in a for y in b]
        return min(values), max(values)

    return rule


def _absolute(a: WholeRange) -> WholeRange:
    return (0 if a[0] <= 0 <= a[1] else min(map(abs, a))), max(map(abs, a))


def _divide(a: WholeRange, b: WholeRange) -> WholeRange | None:
    """Cut towards zero."""
    if b[0] <= 0:
        return None
    return _ends(lambda x, y: x // y if x >= 0 else -(-x // y))(a, b)


def _modulo(a: WholeRange, b: WholeRange) -> WholeRange | None:
    """With the sign of the divisor, which is positive here."""
    if b[0] <= 0:
        return None
    return a if a[0] >= 0 and a[1] < b[0] else (0, b[1] - 1)


_RULES: Mapping[str, Callable[..., WholeRange | None]] = {
    "add": _ends(lambda x, y: x + y), "subtract": _ends(lambda x, y: x - y),
    "multiply": _ends(lambda x, y: x * y), "maximum": _ends(max), "minimum": _ends(min),
    "negate": lambda a: (-a[1], -a[0]), "absolute": _absolute, "divide": _divide,
    "modulo": _modulo,
}  # fmt: skip
