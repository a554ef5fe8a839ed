"""What a block costs the core: its arithmetic, and instructions as the loops that they stand for.

Arithmetic is counted from the block's scalar tree, per point (per vector of points inside a vector
loop), in operations of the floating-point pipes. Functions that code generation emits as
polynomials count their straight-line operations; a division or square root of a 512-bit vector
holds a pipe for several cycles, which is expressed in equivalent operations.

Instructions that multiply and add neighbours are costed as loops:

    dot_product     one operation on a vector; a group of neighbours is one wider element
    interleave      rows put together: one vector stored, a few operations for each row
    tile_multiply   a row of sums at a time: a row of a, a row of b, operations of the matrix unit
    tile_zero, tile_store
                    a row at a time

What the loops over neighbours move is one access, of the bytes that they move over; they are no
loops of the program that is costed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tilesmith.search_space.expressions import scalar
from tilesmith.search_space.expressions.expression import ExprLike, var
from tilesmith.search_space.ir.lanes import most_of
from tilesmith.search_space.ir.program import Block, Intrinsic, Loop, Statement

FUNCTION_OPERATIONS: dict[str, float] = {
    "divide": 12, "reciprocal": 12, "sqrt": 16, "exp": 14, "log": 24, "tanh": 26, "erf": 28,
    "erfc": 41, "sigmoid": 28, "power": 40, "negate": 1, "absolute": 1, "floor": 1, "ceil": 1,
    "round": 1, "greater_equal": 2, "where": 2, "sin": 30, "cos": 30,
    "sinh": 52, "cosh": 44, "asin": 32, "acos": 34, "atan": 48, "asinh": 56, "acosh": 58,
    "atanh": 52, "shift_left": 3, "shift_right": 3,
}  # fmt: skip
"""Operations of a function beyond one: counted off `codegen.llvm.vector_math`; divisions by
throughput. Code generation calls erfc, for 1 + erf(x)."""

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
        share: of points that are computed at all: no code is made for products with a zero.
    """

    operations: float
    horizontal: bool
    latency: int
    copies: bool
    unit: str = ""
    share: float = 1.0


def arithmetic(block: Block, lane: str | None) -> Arithmetic:
    """Count a block's arithmetic; `lane` is the variable of its vector loop."""
    count = _operations(block.value)
    reduced = 0
    if block.reducer is not None:
        fused = scalar.is_product(block.value)
        reduced = 0 if fused and block.reducer == "sum" else 1
    along = lane is not None and any(lane in index.variables() for index in block.indices)
    return Arithmetic(
        count + reduced,
        block.reducer is not None and lane is not None and not along,
        1 if block.reducer is not None else 0,
        count + reduced == 0,
    )


@lru_cache(maxsize=4096)
def _operations(value: scalar.Scalar) -> float:
    match value:
        case scalar.Const() | scalar.Load() | scalar.Index():
            return 0.0
        case scalar.Select(then=then, otherwise=otherwise):
            return max(_operations(then), _operations(otherwise))
        case scalar.Call(function, arguments):
            if (argument := scalar.erfc_argument(value)) is not None:
                return _operations(argument) + FUNCTION_OPERATIONS["erfc"]
            inner = sum(_operations(a) for a in dict.fromkeys(arguments))
            own = FUNCTION_OPERATIONS.get(function, 1.0)
            if function in ("add", "subtract") and any(scalar.is_product(a) for a in arguments):
                own = 0.0  # contracted with the product into one fused multiply-add
            return inner + own


def selects(value: scalar.Scalar, running: frozenset[str]) -> int:
    """How many conditions over `running` variables a value evaluates."""
    match value:
        case scalar.Call(arguments=arguments):
            return sum(selects(a, running) for a in arguments)
        case scalar.Select(condition, then, otherwise):
            own = sum(not running.isdisjoint(e.variables()) for e in condition)
            return own + selects(then, running) + selects(otherwise, running)
        case _:
            return 0


TILE_OPERATIONS = 1.0
"""Of a matrix unit, for a row of sums (a product of two whole AMX registers takes 16 cycles)."""
ROW_OPERATIONS = 3.0
"""Operations that put a row in its place among others."""


@dataclass(frozen=True)
class Costed:
    """What an instruction is costed as.

    Attributes:
        body: loops around one block.
        operations: of each point of the block; None as they are counted elsewhere.
        neighbours: elements that an access to each buffer covers, 1 if it is not named.
        unit: of the processor that does them, "" for its vectors of float32.
    """

    body: Statement
    operations: float | None = None
    neighbours: Mapping[str, int] = field(default_factory=dict)
    unit: str = ""


def costed(statement: Intrinsic) -> Costed:
    """The loops that an instruction stands for; any other one's are its own."""
    loops, block = _nest(statement)
    if block is None:
        return Costed(statement.body)
    match statement.name:
        case "dot_product" | "interleave" if len(loops) == 2:
            return _neighbours(statement.name, loops, block)
        case "tile_multiply" | "tile_multiply_whole":
            return _product(loops, block)
        case "tile_zero" | "tile_store":
            return Costed(_rows(loops, block))
        case _:
            return Costed(statement.body)


def _nest(statement: Intrinsic) -> tuple[list[Loop], Block | None]:
    loops: list[Loop] = []
    inner: Statement = statement.body
    while isinstance(inner, Loop):
        loops.append(inner)
        inner = inner.body
    return loops, inner if isinstance(inner, Block) else None


def _most(loop: Loop) -> int:
    return loop.extent.constant or most_of(loop.extent) or 1


def _neighbours(name: str, loops: list[Loop], block: Block) -> Costed:
    """The loop over neighbours goes; accesses that it moved are as wide."""
    outer, inner = loops
    count = _most(outer)
    accesses = (block.write, *scalar.loads(block.value))
    moved = {
        access.buffer: count
        for access in accesses
        if any(outer.variable in index.variables() for index in access.indices)
    }
    first: dict[str, ExprLike] = {outer.variable: 0}
    body = replace(
        inner,
        body=replace(
            block,
            indices=tuple(index.substitute(first) for index in block.indices),
            value=scalar.substitute(block.value, first),
        ),
    )
    if name == "interleave":
        return Costed(body, ROW_OPERATIONS * count, {block.buffer: count})
    return Costed(body, 1.0, moved, "dot")


def _product(loops: list[Loop], block: Block) -> Costed:
    """Rows of sums: the row of b that stands at the place of the row of a."""
    *outer, row, column, group, neighbour = loops
    left, right = scalar.loads(block.value)
    first: dict[str, ExprLike] = {neighbour.variable: 0}
    along = {**first, group.variable: 0}
    across = {**first, group.variable: var(row.variable)}

    def access(load: scalar.Load) -> scalar.Load:
        values = across if load.buffer == right.buffer else along
        return scalar.Load(load.buffer, tuple(index.substitute(values) for index in load.indices))

    value = scalar.rewrite(block.value, lambda index: index, access)
    count = _most(neighbour)
    wide = {left.buffer: count * _most(group), right.buffer: count}
    return Costed(
        _rows([*outer, row, column], replace(block, value=value)), TILE_OPERATIONS, wide, "tiles"
    )


def _rows(loops: list[Loop], block: Block) -> Statement:
    """Vectors of columns, everything else unrolled."""
    body: Statement = block
    for place, loop in enumerate(reversed(loops)):
        body = replace(loop, kind="unroll" if place else "vector", body=body)
    return body
