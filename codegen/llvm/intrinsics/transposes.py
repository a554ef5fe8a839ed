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

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tilesmith.codegen.llvm.expressions.loads import Lane
from tilesmith.codegen.llvm.expressions.values import ValueEmitter
from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import INDEX, INT32, Value, lanes, undefined, vector
from tilesmith.codegen.llvm.text.types import element_type
from tilesmith.search_space.expressions.scalar import loads
from tilesmith.search_space.ir.program import Block, Intrinsic, Loop

Store = Callable[[str, Value, Value, Lane], None]
"""(buffer, address, vector, lane): store the lanes in use."""


@dataclass(frozen=True)
class _Tile:
    """A recognised transpose: values run along `columns`, stores along `rows`."""

    block: Block
    rows: Lane
    columns: Lane


def recognise(
    statement: Intrinsic, values: ValueEmitter, width: int, lane: Callable[[Loop], Lane]
) -> _Tile | None:
    """The tile of a transpose intrinsic, or None where its body has another form.

    Args:
        lane: the lanes that a loop stands for.
    """
    outer = statement.body
    if not isinstance(outer, Loop) or not isinstance(outer.body, Loop):
        return None
    block = outer.body.body
    if not isinstance(block, Block) or block.reducer is not None or block.guard:
        return None
    if width & (width - 1) or block.buffer in values.registers:
        return None
    pair = [replace(lane(loop), width=width) for loop in (outer, outer.body)]
    if not all(0 < lanes.active <= width for lanes in pair):
        return None
    for across, along in (pair, pair[::-1]):
        steps = {values.compiled(load, along).stride for load in loads(block.value)}
        if values.compiled(block.write, across).stride == 1 and 1 in steps and steps <= {0, 1}:
            return _Tile(block, across, along)
    return None


def emit_tile(tile: _Tile, values: ValueEmitter, width: int, store: Store) -> None:
    """Load, transpose, store."""
    environment = values.index.environment
    block = tile.block
    kind = vector(element_type(values.memory.buffers[block.buffer].dtype), width)
    along, across = tile.columns, tile.rows
    rows: list[Value] = []
    for position in range(across.active):
        environment[across.variable] = _in_use(values, across, position)
        values.enter_lane(along)
        row = values.stored(values.emit(block.value, along, along.bits), block.buffer)
        rows.append(values.splat(row, width))
    rows += [undefined(kind)] * (width - len(rows))
    columns = transpose(values.builder, rows)
    target = values.compiled(block.write, across)
    for position in range(along.active):
        environment[along.variable] = position
        values.enter_lane(across)
        with _where_used(values, along, position):
            number, runtime = values.place(target)
            address = values.pointer(block.buffer, number, runtime)
            store(block.buffer, address, columns[position], across)
    for lane in (along, across):
        environment.pop(lane.variable, None)


def _in_use(values: ValueEmitter, lane: Lane, position: int) -> int | Value:
    """A position, or the last one where there are fewer: what it gives is not stored."""
    if lane.count is None or not position:
        return position
    builder, count = values.builder, lane.count
    beyond = builder.icmp_signed("<=", count, INDEX(position))
    return builder.select(beyond, builder.add(count, INDEX(-1)), INDEX(position))


@contextmanager
def _where_used(values: ValueEmitter, lane: Lane, position: int) -> Iterator[None]:
    """Inside, the position is in use; the first always is."""
    if lane.count is None or not position:
        yield
        return
    with values.builder.if_then(values.builder.icmp_signed(">", lane.count, INDEX(position))):
        values.index.push()
        yield
        values.index.pop()


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
    exchanged = list(rows)
    for i in range(width):
        if i & step:
            continue
        first, second = rows[i], rows[i + step]
        exchanged[i] = builder.shuffle_vector(first, second, lanes(integers, low))
        exchanged[i + step] = builder.shuffle_vector(first, second, lanes(integers, high))
    return exchanged
