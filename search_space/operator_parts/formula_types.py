"""Element types in formulas: which operands a function takes together, and what comes of them.

    greater(x0, x1)              bool, of two operands of one type
    where(x0, x1, x2)            the type of x1 and x2, chosen by a bool (or by what is not zero)
    to_int64(x0)                 int64, of any type
    add(x0, 3)                   the type of x0

A number has the type of what stands beside it. `NUMBER` is the type of what consists of numbers,
flags as 1.0 or 0.0, and `to_float32` alone: any floating one (so that a kernel in a lower precision
is the same formula). Invariant: what has a type here is what code
generators and the interpreter compute in it.
"""

from collections.abc import Iterable, Sequence

from tilesmith.search_space.expressions.dtypes import is_floating, widened
from tilesmith.search_space.expressions.scalar import (
    CONVERSIONS,
    FLAGS,
    Call,
    Const,
    Load,
    Scalar,
    call,
)
from tilesmith.search_space.support.errors import WorkloadError

_LOGIC = frozenset({"and", "or", "xor", "not"})

NUMBER = ""
"""The type of numbers: that of what they stand beside, float32 among themselves."""

WHOLE_ONLY = frozenset(
    {"modulo", "bit_and", "bit_or", "bit_xor", "bit_not", "shift_left", "shift_right"}
)
"""Arithmetic of whole numbers alone."""

INTEGER_FUNCTIONS = frozenset(
    {"add", "subtract", "multiply", "maximum", "minimum", "negate", "absolute", "divide"}
    | WHOLE_ONLY
)
"""Arithmetic that whole numbers have, too; `divide` cuts towards zero there."""


def type_of(formula: Scalar, dtypes: Sequence[str]) -> str:
    """The element type of a formula over operands of `dtypes`; `NUMBER` for numbers alone.

    Raises:
        WorkloadError: a function is not for what it is given.
    """
    match formula:
        case Load(name):
            return dtypes[int(name[1:])]
        case Call(name, arguments):
            return _of_call(name, arguments, dtypes)
        case _:
            return NUMBER


def _of_call(name: str, arguments: Sequence[Scalar], dtypes: Sequence[str]) -> str:
    types = [type_of(argument, dtypes) for argument in arguments]
    if name in CONVERSIONS:
        return NUMBER if name == "to_float32" else CONVERSIONS[name]
    if name == "ordinal":
        return _of_ordinal(types[0])
    if name in _LOGIC:
        if wrong := [dtype for dtype in types if dtype not in ("bool", NUMBER)]:
            raise WorkloadError(f"'{name}' is not for dtype={wrong[0]}; it takes bool")
        return "bool"
    if name == "where":
        return _one(name, arguments[1:], types[1:])
    if name in FLAGS:
        _one(name, arguments, types)
        return "bool"
    numbers = [_as_number(name, *pair) for pair in zip(arguments, types, strict=True)]
    dtype = _one(name, arguments, numbers)
    whole = dtype not in ("", "bool") and not is_floating(dtype)
    if whole and name not in INTEGER_FUNCTIONS:
        raise WorkloadError(
            f"'{name}' is not for dtype={dtype}; {', '.join(sorted(INTEGER_FUNCTIONS))} are"
        )
    if name in WHOLE_ONLY and not whole:
        raise WorkloadError(f"'{name}' is for whole numbers only")
    return dtype


def _of_ordinal(dtype: str) -> str:
    known = (NUMBER, "float32", "int32", "int16", "int8", "uint16", "uint8")
    if widened(dtype) not in known:
        raise WorkloadError(f"'ordinal' is not for dtype={dtype}; it takes numbers of 32 bits")
    return "int32"


def _as_number(name: str, argument: Scalar, dtype: str) -> str:
    """A flag that arithmetic takes is 1.0 or 0.0; elements of bool are no numbers."""
    if dtype == "bool" and not is_flag(argument):
        raise WorkloadError(f"'{name}' is not for dtype=bool; convert it, e.g. to_float32(...)")
    return NUMBER if dtype == "bool" else dtype


def is_flag(formula: Scalar) -> bool:
    return isinstance(formula, Call) and formula.function in FLAGS


def _one(name: str, arguments: Iterable[Scalar], dtypes: Sequence[str]) -> str:
    """The one type of operands."""
    known = list(dict.fromkeys(dtype for dtype in dtypes if dtype != NUMBER))
    if len(known) > 1:
        raise WorkloadError(
            f"'{name}' takes operands of one dtype, not {' and '.join(known)}; convert one, e.g. "
            f"to_{known[0]}(...)"
        )
    if known and not is_floating(known[0]):
        for argument, dtype in zip(arguments, dtypes, strict=True):
            whole = isinstance(argument, Const) and float(argument.value).is_integer()
            if dtype == NUMBER and not whole:
                raise WorkloadError(
                    f"'{name}' takes {argument} beside dtype={known[0]}; a whole number is expected"
                )
    return known[0] if known else NUMBER


def settled(formula: Scalar, dtype: str) -> Scalar:
    """A formula of type `NUMBER`, its numbers converted to `dtype` where that is not computed in
    float32."""
    if widened(dtype) == "float32":
        return formula
    match formula:
        case Const():
            return call(f"to_{dtype}", formula)
        case Call("where", (flag, then, otherwise)):
            return call("where", flag, settled(then, dtype), settled(otherwise, dtype))
        case Call(name, arguments) if name not in FLAGS:
            return call(name, *(settled(argument, dtype) for argument in arguments))
        case _:
            return formula
