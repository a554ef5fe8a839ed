"""Functions that Trainium-like cores have no instruction for, by those they have.

Engines compute in fp32, so a flag is 1.0 or 0.0:

    is_nan(x)       1 - (x == x)            and(a, b)    a * b
    is_inf(x)       |x| > the greatest      or(a, b)     max(a, b)
    to_bool(x)      1 - (x == 0)            xor(a, b)    1 - (a == b)
    to_float32(x)   x                       not(a)       1 - a

Engines compute in fp32, so adding and taking away a number beside which nothing but whole ones fit
rounds to even; larger ones have no fraction:

    round(x)        |x| < 2^23 ? sign of x ((|x| + 2^23) - 2^23) : x
    floor(x)        round(x) - (round(x) > x)       ceil(x)       round(x) + (round(x) < x)

What is clipped afterwards needs no second case, and no sign: (x + 1.5 2^23) - 1.5 2^23.

The activation `sin` is meant for -pi to pi; what lies farther is brought there by whole turns:

    sin(x)          sin(x - 2 pi round(x / 2 pi))
    cos(x)          sin(x - 2 pi round(x / 2 pi + 1/4) + pi/2)

Invariant: flags stay exactly 1.0 or 0.0; elements of bool are.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from tilesmith.search_space.expressions.dtypes import is_floating
from tilesmith.search_space.expressions.scalar import (
    CONVERSIONS,
    FLAGS,
    Call,
    Const,
    Scalar,
    call,
    functions,
    loads,
)
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.formula_types import WHOLE_ONLY
from tilesmith.search_space.scheduling.compute import ComputeDefinition

_GREATEST = float(np.finfo(np.float32).max)

_WHOLE = 2.0**23
"""From here on numbers of fp32 are whole."""


def _not(flag: Scalar) -> Scalar:
    return call("subtract", 1.0, flag)


_TURN = (6.28125, 0.00193500518798828125, 3.0199159795074593e-07)
"""2 pi in parts, the first two of so few bits that whole multiples below 2^12 are exact: Cody and
Waite, "Software Manual for the Elementary Functions" (1980)."""


def _within_a_turn(x: Scalar, ahead: float) -> Scalar:
    """`x` less whole turns: within pi of zero once a share `ahead` of a turn is added."""
    turns = call("multiply", x, 1 / (2 * math.pi))
    turns = call("add", turns, ahead) if ahead else turns
    turns = call("round", turns)
    for part in _TURN:
        x = call("subtract", x, call("multiply", turns, part))
    return x


def _round(x: Scalar) -> Scalar:
    """To the nearest whole number, the even one of two; `x` where it has no fraction."""
    size = call("absolute", x)
    whole = call("subtract", call("add", size, _WHOLE), _WHOLE)
    signed = call("where", call("less", x, 0.0), call("multiply", whole, -1.0), whole)
    return call("where", call("less", size, _WHOLE), signed, x)


def _floor(x: Scalar) -> Scalar:
    return call("subtract", _round(x), call("greater", _round(x), x))


def _ceil(x: Scalar) -> Scalar:
    return call("add", _round(x), call("less", _round(x), x))


_ARITHMETIC: Mapping[str, Callable[..., Scalar]] = {
    "is_nan": lambda x: _not(call("equal", x, x)),
    "is_inf": lambda x: call("greater", call("absolute", x), _GREATEST),
    "to_bool": lambda x: _not(call("equal", x, 0.0)),
    "and": lambda a, b: call("multiply", a, b),
    "or": lambda a, b: call("maximum", a, b),
    "xor": lambda a, b: _not(call("equal", a, b)),
    "not": _not,
    "to_float32": lambda x: x,
    "round": _round,
    "floor": _floor,
    "ceil": _ceil,
    "sin": lambda x: call("sin", _within_a_turn(x, 0.0)),
    "cos": lambda x: call("sin", call("add", _within_a_turn(x, 0.25), math.pi / 2)),
}

_COMPARISONS = frozenset({"equal", "greater", "greater_equal", "less", "less_equal"})
_ADDED = (
    FLAGS | frozenset(CONVERSIONS) | WHOLE_ONLY
    | {"round", "sin", "cos", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh"}
)  # fmt: skip
_MISSING = _ADDED - _COMPARISONS - frozenset(_ARITHMETIC)
"""Functions that no instruction computes."""


def arithmetic(value: Scalar) -> Scalar:
    """A value whose flags are made by functions that engines have."""
    match value:
        case Call(last, (Call(first, (x, Const() as a)), Const() as b)) if _clips(
            first, a, last, b
        ):
            return call(last, call(first, _nearly_rounded(x), a), b)
        case Call("where", (Call("is_nan", (x,)), a, b)):
            x, a, b = (arithmetic(part) for part in (x, a, b))
            return call("where", call("equal", x, x), b, a)
        case Call("where", (Call("not", (flag,)), a, b)):
            flag, a, b = (arithmetic(part) for part in (flag, a, b))
            return call("where", flag, b, a)
        case Call(name, arguments):
            inner = tuple(arithmetic(argument) for argument in arguments)
            return _ARITHMETIC[name](*inner) if name in _ARITHMETIC else call(name, *inner)
        case _:
            return value


def _clips(first: str, a: Const, last: str, b: Const) -> bool:
    """Whether two functions leave a value between two numbers that round as any does."""
    return {first, last} == {"minimum", "maximum"} and _is_small(a) and _is_small(b)


def _is_small(number: Const) -> bool:
    """Whether it is far below the numbers without fractions."""
    return abs(number.value) < _WHOLE / 8


def _nearly_rounded(value: Scalar) -> Scalar:
    """A value about to be clipped: numbers without fractions may be a little off."""
    match value:
        case Call("round", (x,)):
            return call("round", arithmetic(x))
        case Call("add" | "subtract" as name, (x, Const() as number)) if _is_small(number):
            return call(name, _nearly_rounded(x), number)
        case _:
            return arithmetic(value)


def not_computed(compute: ComputeDefinition, target: Target) -> str | None:
    """Why engines cannot compute something: they do so in fp32, by the functions they have."""
    for stage in compute.stages:
        named = functions(stage.value)
        if unknown := sorted(named & _MISSING):
            return (
                f"'{unknown[0]}' of operator '{compute.name}' has no instruction on target "
                f"'{target.name}'"
            )
        dtypes = {stage.dtype, *(compute.dtype(load.buffer) for load in loads(stage.value))}
        whole = sorted(d for d in dtypes if not is_floating(d) and d != "bool")
        if named and whole:
            return (
                f"operator '{compute.name}' has no arithmetic for dtype '{whole[0]}' on target "
                f"'{target.name}': engines compute in fp32"
            )
        if isinstance(arithmetic(stage.value), Const):
            return f"operator '{compute.name}' computes a number on target '{target.name}'"
    return None
