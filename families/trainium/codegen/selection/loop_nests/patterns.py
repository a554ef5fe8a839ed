"""Which parts of an expression one instruction computes.

    f(x * scale + bias)              ACTIVATION: scale and bias numbers or columns
    (x op s) op t                    TENSOR_SCALAR (t a number or column), SCALAR_TENSOR_TENSOR
    sum (x - m)^2                    ACTIVATION with row sums

A *column* is a value that no free loop of a piece changes. Shared by the generator and the
analytical model, which counts what the generator will write.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilesmith.families.trainium.schedules.building_blocks.activations import UNARY, simplify
from tilesmith.search_space.expressions.scalar import Call, Const, Scalar

BINARY = {
    "add": "add", "subtract": "subtract", "multiply": "multiply", "divide": "divide",
    "maximum": "max", "minimum": "min", "power": "pow", "greater_equal": "is_ge",
    "greater": "is_gt", "less": "is_lt", "less_equal": "is_le", "equal": "is_equal",
}  # fmt: skip
REVERSED = {
    "add": "add",
    "multiply": "multiply",
    "max": "max",
    "min": "min",
    "subtract": "reverse_subtract",
    "divide": "reverse_divide",
}
MIRRORED = {
    "is_ge": "is_le", "is_le": "is_ge", "is_gt": "is_lt", "is_lt": "is_gt", "is_equal": "is_equal",
}  # fmt: skip


def affine_argument(
    value: Scalar, is_column: Callable[[Scalar], bool], occurrences: Mapping[Scalar, int]
) -> tuple[str, Scalar, Scalar, Scalar] | None:
    """(function, argument, scale, bias) of `f(argument * scale + bias)`, which is one activation.

    Scale and bias are numbers or columns; a part that occurs again is not taken apart.
    """
    simple = simplify(value)
    inner = simple[1][0] if simple is not None and simple[0] in UNARY else None
    if simple is None or not isinstance(inner, Call) or occurrences[inner] > 1:
        return None
    if inner.function not in ("add", "subtract", "multiply") or len(inner.arguments) != 2:
        return None
    a, b = inner.arguments
    if is_column(a) == is_column(b):
        return None
    argument, other = (b, a) if is_column(a) else (a, b)
    function, one, zero = UNARY[simple[0]], Const(1.0), Const(0.0)
    if inner.function == "multiply":
        return function, argument, other, zero
    if inner.function == "add":
        scaled = _scaled(argument, is_column, occurrences)
        return (function, *(scaled or (argument, one)), other)
    if argument is b:
        return function, argument, Const(-1.0), other
    minus = Const(-other.value) if isinstance(other, Const) else Call("negate", (other,))
    return function, argument, one, minus


def _scaled(
    value: Scalar, is_column: Callable[[Scalar], bool], occurrences: Mapping[Scalar, int]
) -> tuple[Scalar, Scalar] | None:
    """(argument, scale) of a product with a number or column."""
    if not isinstance(value, Call) or value.function != "multiply" or occurrences[value] > 1:
        return None
    a, b = value.arguments
    if is_column(a) == is_column(b):
        return None
    return (b, a) if is_column(a) else (a, b)


@dataclass(frozen=True)
class Combination:
    """`(tile first scalar) second other`; `inner` is the call that is taken up in it."""

    tile: Scalar
    first: str
    scalar: Scalar
    second: str
    other: Scalar
    inner: Call


def combination(
    value: Scalar,
    is_column: Callable[[Scalar], bool],
    is_full: Callable[[Scalar], bool],
    occurrences: Mapping[Scalar, int],
) -> Combination | None:
    """Two operations of a value that are one instruction; None where there are no such.

    Args:
        is_full: whether a value changes along free loops.
    """
    outer = _operation(value)
    if outer is None:
        return None
    second, (a, b) = outer
    for inner, other, name in ((a, b, second), (b, a, REVERSED[second])):
        operation = _operation(inner)
        if operation is None or occurrences[inner] > 1 or not (is_column(other) or is_full(other)):
            continue
        first, (x, y) = operation
        if is_column(x) != is_column(y):
            tile, scalar, first = (x, y, first) if is_column(y) else (y, x, REVERSED[first])
            if is_full(tile):
                assert isinstance(inner, Call)
                return Combination(tile, first, scalar, name, other, inner)
    return None


def _operation(value: Scalar) -> tuple[str, tuple[Scalar, ...]] | None:
    """(operation, operands) of a call that has one and may have its operands exchanged."""
    simple = simplify(value)
    if simple is None or BINARY.get(simple[0], "") not in REVERSED:
        return None
    return BINARY[simple[0]], simple[1]


def absorbed(
    is_column: Callable[[Scalar], bool],
    is_full: Callable[[Scalar], bool],
    occurrences: Mapping[Scalar, int],
) -> set[Scalar]:
    """Calls within an expression that instructions of the calls around them take up."""
    gone: set[Scalar] = set()
    for part in occurrences:
        if part in gone:
            continue
        simple = simplify(part)
        affine = affine_argument(part, is_column, occurrences)
        joined = combination(part, is_column, is_full, occurrences)
        if affine is not None and simple is not None:
            (inner,) = simple[1]
            gone.add(inner)
            assert isinstance(inner, Call)
            between = (a for a in inner.arguments if isinstance(a, Call) and a != affine[1])
            gone |= {a for a in between if affine[1] in a.arguments}
        elif joined is not None:
            gone.add(joined.inner)
    return gone


def squared(value: Scalar) -> Scalar | None:
    """The factor of a product with itself."""
    if isinstance(value, Call) and value.function == "multiply":
        a, b = value.arguments
        return a if a == b else None
    return None


def calls(value: Scalar) -> Counter[Scalar]:
    """How often each call occurs in an expression whose repeated parts are computed once."""
    counts: Counter[Scalar] = Counter()

    def visit(part: Scalar) -> None:
        simple = simplify(part)
        if simple is None:
            return
        counts[part] += 1
        if counts[part] == 1:
            for argument in simple[1]:
                visit(argument)

    visit(value)
    return counts
