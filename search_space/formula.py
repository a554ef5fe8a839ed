"""Formulas: pointwise expressions as text, `relu(add(x0,x1))`, read into scalars and into numpy.

    formula  = number | operand | name '(' formula {',' formula} ')'
    operand  = 'x' digits

A formula is part of a workload's key, so it holds no blanks. Names are the functions of
`scalar.FUNCTIONS` and the epilogue steps that need no operand (`relu`, `clip(x,0,6)`, `gelu`, ...).
The numpy side is written independently of the compiled one: it is the reference.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.epilogue import STEPS
from tilesmith.search_space.errors import WorkloadError
from tilesmith.search_space.ir.scalar import FUNCTIONS, Const, Scalar, call
from tilesmith.search_space.scheduling.fusion import pointwise

_TOKEN = re.compile(r"x\d+(?![\w.])|[A-Za-z_]\w*|[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[(),]")

_erf = np.vectorize(math.erf, otypes=[np.float64])

_NUMPY: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "maximum": np.maximum, "minimum": np.minimum, "power": np.power, "negate": np.negative,
    "absolute": np.abs, "exp": np.exp, "log": np.log, "sqrt": np.sqrt,
    "reciprocal": lambda x: 1.0 / x, "tanh": np.tanh, "erf": _erf,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)), "floor": np.floor, "ceil": np.ceil,
    "round": np.round,
    "greater_equal": lambda a, b: np.where(a >= b, 1.0, 0.0),
    "where": lambda flag, a, b: np.where(flag != 0, a, b),
}  # fmt: skip


@dataclass(frozen=True)
class Number:
    """A literal."""

    value: float


@dataclass(frozen=True)
class OperandName:
    """Operand number `index`, written `x0`, `x1`, ..."""

    index: int


@dataclass(frozen=True)
class Function:
    """A function and its arguments."""

    name: str
    arguments: tuple[Formula, ...]


Formula = Number | OperandName | Function


def function_names() -> tuple[str, ...]:
    """Every name a formula may call."""
    return (*FUNCTIONS, *_steps())


def _steps() -> dict[str, int]:
    """Epilogue steps without operand: name -> how many numbers they take."""
    return {
        name: len(kind.arguments)
        for name, kind in STEPS.items()
        if kind.operand == "none" and name not in FUNCTIONS
    }


@lru_cache(maxsize=1024)
def parse_formula(text: str) -> Formula:
    """Read a formula.

    Raises:
        WorkloadError: a syntax error, an unknown function, or a wrong number of arguments.
    """
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text or not tokens:
        raise WorkloadError(f"formula '{text}' holds something that is no name, number, ( ) or ,")
    formula, rest = _read(text, tokens)
    if rest:
        raise WorkloadError(f"formula '{text}' goes on after its end, at '{''.join(rest)}'")
    return formula


def _read(text: str, tokens: Sequence[str]) -> tuple[Formula, Sequence[str]]:
    if not tokens or tokens[0] in "(),":
        raise WorkloadError(
            f"formula '{text}' lacks a value before '{''.join(tokens) or 'its end'}'"
        )
    head, rest = tokens[0], tokens[1:]
    if not head[0].isalpha() and head[0] != "_":
        return Number(float(head)), rest
    if re.fullmatch(r"x\d+", head):
        return OperandName(int(head[1:])), rest
    arguments: list[Formula] = []
    if not rest or rest[0] != "(":
        raise WorkloadError(f"formula '{text}': '{head}' is a function and needs (arguments)")
    while rest and rest[0] != ")":
        argument, rest = _read(text, rest[1:])
        arguments.append(argument)
        if not rest or rest[0] not in ",)":
            raise WorkloadError(f"formula '{text}' lacks a ')' or ','")
    return _function(text, head, tuple(arguments)), rest[1:]


def _function(text: str, name: str, arguments: tuple[Formula, ...]) -> Function:
    """Check name and arity; numbers of an epilogue step may be left out."""
    steps = _steps()
    if name in FUNCTIONS:
        if len(arguments) != FUNCTIONS[name]:
            raise WorkloadError(f"formula '{text}': '{name}' takes {FUNCTIONS[name]} arguments")
        return Function(name, arguments)
    if name not in steps:
        raise WorkloadError(
            f"formula '{text}': unknown function '{name}'; one of {', '.join(function_names())}"
        )
    if len(arguments) == 1:
        defaults = tuple(Number(value) for value in STEPS[name].arguments)
        return Function(name, (*arguments, *defaults))
    if len(arguments) != 1 + steps[name] or not all(isinstance(a, Number) for a in arguments[1:]):
        raise WorkloadError(f"formula '{text}': '{name}' takes a value and {steps[name]} numbers")
    return Function(name, arguments)


def operand_count(formula: Formula) -> int:
    """One more than the highest operand number in it."""
    match formula:
        case OperandName(index):
            return index + 1
        case Function(_, arguments):
            return max(operand_count(argument) for argument in arguments)
        case _:
            return 0


def functions(formula: Formula) -> frozenset[str]:
    """Names of the functions it calls."""
    if not isinstance(formula, Function):
        return frozenset()
    return frozenset((formula.name,)).union(*(functions(a) for a in formula.arguments))


def to_scalar(formula: Formula, operands: Sequence[Scalar]) -> Scalar:
    """The formula over loads, for a compute stage."""
    match formula:
        case Number(value):
            return Const(value)
        case OperandName(index):
            return operands[index]
        case Function(name, arguments):
            if name in FUNCTIONS:
                return call(name, *(to_scalar(a, operands) for a in arguments))
            numbers = [a.value for a in arguments[1:] if isinstance(a, Number)]
            return pointwise(name, to_scalar(arguments[0], operands), *numbers)


def evaluate(formula: Formula, operands: Sequence[NDArray[Any]]) -> Any:
    """The formula over (broadcast) arrays, in numpy."""
    match formula:
        case Number(value):
            return value
        case OperandName(index):
            return operands[index]
        case Function(name, arguments):
            if name in FUNCTIONS:
                return _NUMPY[name](*(evaluate(a, operands) for a in arguments))
            numbers = [a.value for a in arguments[1:] if isinstance(a, Number)]
            return STEPS[name].formula(evaluate(arguments[0], operands), None, *numbers)
