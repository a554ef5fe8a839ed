"""Formulas: pointwise expressions of numbered operands, such as `relu(add(x0,x1))`.

    formula  = number | operand | name '(' formula {',' formula} ')'
    operand  = 'x' digits

A formula is a `Scalar`: constants, operands (loads `x0`, `x1`, ... without indices) and calls of
`scalar.FUNCTIONS` and `scalar.COMPOSITES`. It is composed, substituted and merged as that, and is
text only where it enters a workload's key, which holds no blanks. The numpy side is written
independently of the compiled one: it is the reference.

Invariants: `parse_formula(formula_text(f)) == f`; a number written without a point or exponent is
an `int`, so that printing what was read gives the same text, and keys stay what they are.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, to_numpy
from tilesmith.search_space.expressions.scalar import (
    COMPOSITES,
    CONVERSIONS,
    FLAGS,
    FUNCTIONS,
    Call,
    Const,
    Index,
    Load,
    Scalar,
    Select,
    call,
    loads,
    rewrite,
)
from tilesmith.search_space.operator_parts.fusion import pointwise
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.epilogue import STEPS
from tilesmith.search_space.workloads.error_function import erf

_TOKEN = re.compile(r"x\d+(?![\w.])|[A-Za-z_]\w*|[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[(),]")

DEEPEST = 128
"""Functions inside each other: what walks over a formula calls itself for each, and every merge of
two writes one anew. Chains of thousands, as of unrolled solvers, are kernels of this depth."""

_EXACT = 2**53
"""Up to here every whole number is a floating one."""


def _converted(kind: np.dtype[Any], value: Any) -> Array:
    """Values in another dtype; numbers that do not fit become the nearest, not-a-number 0."""
    array = np.asarray(value)
    if kind.kind not in "iu" or array.dtype.kind != "f":
        return array.astype(kind)
    limits = np.iinfo(kind)
    fits = (array > limits.min - 1.0) & (array < limits.max + 1.0)
    beyond = np.where(array > 0, limits.max, limits.min)
    whole = np.where(fits, array, 0).astype(kind)
    return np.where(fits, whole, np.where(np.isnan(array), 0, beyond)).astype(kind)


def _quotient(a: Any, b: Any) -> Any:
    """Of whole numbers, cut towards zero, 0 where the divisor is 0."""
    if np.result_type(a, b).kind not in "iu":
        return np.divide(a, b)
    with np.errstate(divide="ignore", over="ignore"):
        down = np.floor_divide(a, b)
    up = np.not_equal(np.multiply(down, b), a) & (np.less(a, 0) != np.less(b, 0))
    return down + (up & np.not_equal(b, 0))


def _ordinal(value: Any) -> Any:
    """A number's place among its like, as an int32; see `scalar.FUNCTIONS`."""
    array = np.asarray(value)
    if array.dtype.kind != "f":
        return array.astype(np.int32)
    bits = (array.astype(np.float32) + np.float32(0)).view(np.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _shifted(function: Callable[..., Any], a: Any, b: Any) -> Any:
    """Moved by bits; what is moved further than there are bits leaves its sign to the right."""
    bits = 8 * np.result_type(a, b).itemsize
    beyond = np.less(b, 0) | np.greater_equal(b, bits)
    left = np.less(a, 0) * np.asarray(-1) if function is np.right_shift else np.asarray(0)
    moved = function(a, np.where(beyond, 0, b).astype(np.result_type(a, b)))
    return np.where(beyond, left, moved).astype(np.result_type(a, b))


def _numbers_of(name: str, values: Sequence[Any]) -> Sequence[Any]:
    """Flags that arithmetic takes are 1.0 or 0.0."""
    if name in FLAGS or name in CONVERSIONS or name == "where":
        return values
    return [v.astype(np.float32) if np.result_type(v).kind == "b" else v for v in values]


_NUMPY: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": _quotient,
    "maximum": np.maximum, "minimum": np.minimum, "power": np.power, "negate": np.negative,
    "absolute": np.abs, "exp": np.exp, "log": np.log, "sqrt": np.sqrt,
    "reciprocal": lambda x: 1.0 / x, "tanh": np.tanh, "erf": erf, "sin": np.sin,
    "cos": np.cos, "sinh": np.sinh, "cosh": np.cosh, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor,
    "bit_not": np.bitwise_not, "shift_left": partial(_shifted, np.left_shift),
    "shift_right": partial(_shifted, np.right_shift),
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)), "floor": np.floor, "ceil": np.ceil,
    "round": np.round,
    "greater_equal": np.greater_equal, "greater": np.greater, "equal": np.equal,
    "less": np.less, "less_equal": np.less_equal, "is_nan": np.isnan, "is_inf": np.isinf,
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not,
    "where": lambda flag, a, b: np.where(np.not_equal(flag, 0), a, b), "modulo": np.mod,
    "ordinal": _ordinal,
    **{name: partial(_converted, to_numpy(dtype)) for name, dtype in CONVERSIONS.items()},
}  # fmt: skip


def operand(index: int) -> Load:
    """Operand number `index`."""
    return Load(f"x{index}", ())


def number(value: float) -> Const:
    """A number as keys write it: the shortest that single precision tells from others."""
    return Const(float(str(np.float32(value))))


def formula_text(formula: Scalar) -> str:
    """The formula as a workload's key holds it."""
    match formula:
        case Const(value):
            return _number_text(value)
        case Call(name, arguments):
            return f"{name}({','.join(map(formula_text, arguments))})"
        case Load(name):
            return name
        case Select() | Index():
            raise AssertionError("a formula chooses by where(), not by conditions on indices")


def _number_text(value: float) -> str:
    """An `int` without a point; a number of single precision as numpy writes it (1e-04, not
    0.0001), which is how keys always had it."""
    if isinstance(value, int):
        return str(value)
    with np.errstate(over="ignore"):
        single = str(np.float32(value))
    return single if float(single) == value else repr(value)


@lru_cache(maxsize=1024)
def parse_formula(text: str) -> Scalar:
    """Read a formula.

    Raises:
        WorkloadError: a syntax error, an unknown function, a wrong number of arguments, or more
            than `DEEPEST` functions inside each other.
    """
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text or not tokens:
        raise WorkloadError(f"formula '{text}' holds something that is no name, number, ( ) or ,")
    formula, rest = _read(text, tokens, DEEPEST)
    if rest:
        raise WorkloadError(f"formula '{text}' goes on after its end, at '{''.join(rest)}'")
    return formula


def _read(text: str, tokens: Sequence[str], levels: int) -> tuple[Scalar, Sequence[str]]:
    """A formula at the start of `tokens`, `levels` functions deep at most, and what follows it."""
    if not tokens or tokens[0] in "(),":
        raise WorkloadError(
            f"formula '{text}' lacks a value before '{''.join(tokens) or 'its end'}'"
        )
    head, rest = tokens[0], tokens[1:]
    if not head[0].isalpha() and head[0] != "_":
        return Const(int(head) if head.lstrip("+-").isdigit() else float(head)), rest
    if re.fullmatch(r"x\d+", head):
        return operand(int(head[1:])), rest
    arguments: list[Scalar] = []
    if not rest or rest[0] != "(":
        raise WorkloadError(f"formula '{text}': '{head}' is a function and needs (arguments)")
    if not levels:
        raise WorkloadError(f"formula '{text[:60]}...' nests more than {DEEPEST} functions")
    while rest and rest[0] != ")":
        argument, rest = _read(text, rest[1:], levels - 1)
        arguments.append(argument)
        if not rest or rest[0] not in ",)":
            raise WorkloadError(f"formula '{text}' lacks a ')' or ','")
    return _call(text, head, arguments), rest[1:]


def _call(text: str, name: str, arguments: Sequence[Scalar]) -> Call:
    """Check name and arity; numbers of a composite may be left out."""
    if name in FUNCTIONS:
        if len(arguments) != FUNCTIONS[name]:
            raise WorkloadError(f"formula '{text}': '{name}' takes {FUNCTIONS[name]} arguments")
        return call(name, *arguments)
    if name not in COMPOSITES:
        known = ", ".join((*FUNCTIONS, *COMPOSITES))
        raise WorkloadError(f"formula '{text}': unknown function '{name}'; one of {known}")
    if len(arguments) == 1:
        return call(name, *arguments, *STEPS[name].arguments)
    numbers = COMPOSITES[name] - 1
    if len(arguments) != 1 + numbers or not all(isinstance(a, Const) for a in arguments[1:]):
        raise WorkloadError(f"formula '{text}': '{name}' takes a value and {numbers} numbers")
    return call(name, *arguments)


def uses(formula: Scalar, index: int) -> int:
    """How often operand number `index` stands in it."""
    return sum(access == operand(index) for access in loads(formula))


def operand_count(formula: Scalar) -> int:
    """One more than the highest operand number in it."""
    return max((_index(access) + 1 for access in loads(formula)), default=0)


def _index(access: Load) -> int:
    return int(access.buffer[1:])


def substituted(formula: Scalar, operands: Mapping[int, Scalar]) -> Scalar:
    """The formula with formulas in the places of operands, by number; the others stay."""
    return rewrite(
        formula,
        lambda index: index,
        lambda access: operands.get(_index(access), access),
    )


def expanded(formula: Scalar, operands: Sequence[Scalar]) -> Scalar:
    """The formula over loads and without composites, for a compute stage."""
    match formula:
        case Const(value):
            exact = isinstance(value, int) and abs(value) > _EXACT
            return formula if exact else Const(float(value))
        case Load():
            return operands[_index(formula)]
        case Call(name, arguments) if name in COMPOSITES:
            return pointwise(name, expanded(arguments[0], operands), *_numbers(formula))
        case Call(name, arguments):
            return call(name, *(expanded(argument, operands) for argument in arguments))
        case Select() | Index():
            raise AssertionError("a formula chooses by where(), not by conditions on indices")


def _numbers(composite: Call) -> list[float]:
    return [float(a.value) for a in composite.arguments[1:] if isinstance(a, Const)]


def evaluate(formula: Scalar, operands: Sequence[Array]) -> Any:
    """The formula over (broadcast) arrays, in numpy."""
    match formula:
        case Const(value):
            return value
        case Load():
            return operands[_index(formula)]
        case Call(name, arguments) if name in COMPOSITES:
            (value,) = _numbers_of(name, [evaluate(arguments[0], operands)])
            return STEPS[name].formula(value, None, *_numbers(formula))
        case Call(name, arguments):
            values = [evaluate(argument, operands) for argument in arguments]
            return _NUMPY[name](*_numbers_of(name, values))
        case Select() | Index():
            raise AssertionError("a formula chooses by where(), not by conditions on indices")


def apply(name: str, values: Sequence[Any]) -> Any:
    """A function of `FUNCTIONS` on (broadcast) arrays, in numpy."""
    return _NUMPY[name](*_numbers_of(name, values))
