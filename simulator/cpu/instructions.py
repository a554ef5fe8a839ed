"""Instructions that multiply and add neighbours, as the loops that an execution of them stands for.

    dot_product     one operation on a vector; a group of neighbours is one wider element
    interleave      rows put together: one vector stored, a few operations for each row
    tile_multiply   a row of sums at a time: a row of a, a row of b, operations of the matrix unit
    tile_zero, tile_store
                    a row at a time

What the loops over neighbours move is one access, of the bytes that they move over; they are no
loops of the program that is costed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilesmith.search_space.expressions.expression import ExprLike, var
from tilesmith.search_space.expressions.scalar import Load, loads, rewrite, substitute
from tilesmith.search_space.ir.lanes import most_of
from tilesmith.search_space.ir.program import Block, Intrinsic, Loop, Statement

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
    accesses = (block.write, *loads(block.value))
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
            value=substitute(block.value, first),
        ),
    )
    if name == "interleave":
        return Costed(body, ROW_OPERATIONS * count, {block.buffer: count})
    return Costed(body, 1.0, moved, "dot")


def _product(loops: list[Loop], block: Block) -> Costed:
    """Rows of sums: the row of b that stands at the place of the row of a."""
    *outer, row, column, group, neighbour = loops
    left, right = loads(block.value)
    first: dict[str, ExprLike] = {neighbour.variable: 0}
    along = {**first, group.variable: 0}
    across = {**first, group.variable: var(row.variable)}

    def access(load: Load) -> Load:
        values = across if load.buffer == right.buffer else along
        return Load(load.buffer, tuple(index.substitute(values) for index in load.indices))

    value = rewrite(block.value, lambda index: index, access)
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
