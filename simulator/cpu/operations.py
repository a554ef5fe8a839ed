"""What the arithmetic of a block costs: vector operations by kind, counted from its scalar tree.

Counts are per point (per vector of points inside a vector loop), in operations of the
floating-point pipes. Functions that code generation emits as polynomials count their straight-line
operations; a division or square root of a 512-bit vector holds a pipe for several cycles, which is
expressed in equivalent operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tilesmith.search_space.expressions.scalar import Call, Const, Index, Load, Scalar, Select
from tilesmith.search_space.ir.program import Block

FUNCTION_OPERATIONS: dict[str, float] = {
    "divide": 12, "reciprocal": 12, "sqrt": 16, "exp": 14, "log": 24, "tanh": 26, "erf": 28,
    "sigmoid": 28, "power": 40, "negate": 1, "absolute": 1, "floor": 1, "ceil": 1, "round": 1,
    "greater_equal": 2, "where": 2, "sin": 30, "cos": 30,
    "sinh": 52, "cosh": 44, "asin": 32, "acos": 34, "atan": 48, "asinh": 56, "acosh": 58,
    "atanh": 52, "shift_left": 3, "shift_right": 3,
}  # fmt: skip
"""Operations of a function beyond one: counted off `codegen.llvm.vector_math`; divisions by
throughput."""

WIDENING: dict[str, float] = {"bfloat16": 2, "float16": 2, "float8_e5m2": 9, "float8_e4m3": 9}
"""Operations that make a float32 of a narrow element read, a vector at a time: counted off
`codegen.llvm.narrow` (float16 by the instruction: a shuffle and a conversion)."""


@dataclass(frozen=True)
class Arithmetic:
    """Floating-point operations of one point.

    Attributes:
        operations: on the value's pipes, a fused multiply-add counting one.
        horizontal: whether lanes are reduced into one element at the end.
        latency: operations in a row from the old value of a reduction to the new one.
        copies: whether it only moves data (no arithmetic at all).
        unit: of the processor that does it, "" for its vectors of float32.
    """

    operations: float
    horizontal: bool
    latency: int
    copies: bool
    unit: str = ""


def arithmetic(block: Block, lane: str | None) -> Arithmetic:
    """Count a block's arithmetic; `lane` is the variable of its vector loop."""
    count = _operations(block.value)
    reduced = 0
    if block.reducer is not None:
        fused = isinstance(block.value, Call) and block.value.function == "multiply"
        reduced = 0 if fused and block.reducer == "sum" else 1
    along = lane is not None and any(lane in index.variables() for index in block.indices)
    return Arithmetic(
        count + reduced,
        block.reducer is not None and lane is not None and not along,
        1 if block.reducer is not None else 0,
        count + reduced == 0,
    )


@lru_cache(maxsize=4096)
def _operations(value: Scalar) -> float:
    match value:
        case Const() | Load() | Index():
            return 0.0
        case Select(then=then, otherwise=otherwise):
            return max(_operations(then), _operations(otherwise))
        case Call(function, arguments):
            inner = sum(_operations(a) for a in dict.fromkeys(arguments))
            own = FUNCTION_OPERATIONS.get(function, 1.0)
            if function in ("add", "subtract") and any(_is_product(a) for a in arguments):
                own = 0.0  # contracted with the product into one fused multiply-add
            return inner + own


def _is_product(value: Scalar) -> bool:
    return isinstance(value, Call) and value.function == "multiply"


def selects(value: Scalar, running: frozenset[str]) -> int:
    """How many conditions over `running` variables a value evaluates."""
    match value:
        case Call(arguments=arguments):
            return sum(selects(a, running) for a in arguments)
        case Select(condition, then, otherwise):
            own = sum(not running.isdisjoint(e.variables()) for e in condition)
            return own + selects(then, running) + selects(otherwise, running)
        case _:
            return 0
