"""The intrinsic `transpose`: a small tile turned from rows to columns inside vector registers.

    intrinsic transpose:
      unroll i in m:
        vector j in n:
          y[.., i, ..] = f(x[.., j, ..])        x contiguous along one of i and j, y along the other

Element by element that is m*n scalar moves. Here: a vector of values for each row of x, log2 of the
width rounds of two-input shuffles (rows `step` apart exchange the blocks off their diagonal, as in
Eklundh, "A fast computer method for matrix transposing", 1972), a vector store for each row of y.
Short tiles load and store under masks. A body of any other form is emitted as the loops it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilesmith.codegen.llvm.builder import Builder
from tilesmith.codegen.llvm.ir import INT32, Value, lanes, undefined, vector
from tilesmith.codegen.llvm.loads import Lane
from tilesmith.codegen.llvm.types import element_type
from tilesmith.codegen.llvm.values import ValueEmitter
from tilesmith.search_space.ir.program import Block, Intrinsic, Loop
from tilesmith.search_space.ir.scalar import loads

Store = Callable[[str, Value, Value, Lane], None]
"""(buffer, address, vector, lane): store the lanes in use."""


@dataclass(frozen=True)
class Tile:
    """A recognised transpose: values run along `columns`, stores along `rows`."""

    block: Block
    rows: tuple[str, int]
    columns: tuple[str, int]


def recognise(statement: Intrinsic, values: ValueEmitter, width: int) -> Tile | None:
    """The tile of a transpose intrinsic, or None where its body has another form."""
    outer = statement.body
    if not isinstance(outer, Loop) or not isinstance(outer.body, Loop):
        return None
    block = outer.body.body
    if not isinstance(block, Block) or block.reducer is not None or block.guard:
        return None
    if width & (width - 1) or block.buffer in values.registers:
        return None
    pair = [(loop.variable, loop.extent.constant or 0) for loop in (outer, outer.body)]
    if not all(0 < extent <= width for _, extent in pair):
        return None
    for rows, columns in (pair, pair[::-1]):
        along, across = Lane(columns[0], width, columns[1]), Lane(rows[0], width, rows[1])
        steps = {values.compiled(found, along).stride for found in loads(block.value)}
        if values.compiled(block.write, across).stride == 1 and 1 in steps and steps <= {0, 1}:
            return Tile(block, rows, columns)
    return None


def emit_tile(tile: Tile, values: ValueEmitter, width: int, store: Store) -> None:
    """Load, transpose, store."""
    environment = values.index.environment
    block = tile.block
    kind = vector(element_type(values.memory.buffers[block.buffer].dtype), width)
    along = Lane(tile.columns[0], width, tile.columns[1])
    across = Lane(tile.rows[0], width, tile.rows[1])
    rows: list[Value] = []
    for position in range(across.active):
        environment[across.variable] = position
        values.enter_lane(along)
        rows.append(values.splat(values.emit(block.value, along), width))
    rows += [undefined(kind)] * (width - len(rows))
    columns = transpose(values.builder, rows)
    target = values.compiled(block.write, across)
    for position in range(along.active):
        environment[along.variable] = position
        values.enter_lane(across)
        number, runtime = values.place(target)
        address = values.pointer(block.buffer, number, runtime)
        store(block.buffer, address, columns[position], across)
    for lane in (along, across):
        environment.pop(lane.variable, None)


def transpose(builder: Builder, rows: list[Value]) -> list[Value]:
    """`width` vectors of `width` lanes, a power of two: row i, lane j becomes row j, lane i."""
    step = len(rows) // 2
    while step:
        rows = _exchange(builder, rows, step)
        step //= 2
    return rows


def _exchange(builder: Builder, rows: list[Value], step: int) -> list[Value]:
    """Rows `step` apart swap the blocks of `step` lanes that lie off the diagonal."""
    width = len(rows)
    integers = vector(INT32, width)
    low = [width + k - step if k & step else k for k in range(width)]
    high = [width + k if k & step else k + step for k in range(width)]
    found = list(rows)
    for i in range(width):
        if i & step:
            continue
        first, second = rows[i], rows[i + step]
        found[i] = builder.shuffle_vector(first, second, lanes(integers, low))
        found[i + step] = builder.shuffle_vector(first, second, lanes(integers, high))
    return found
