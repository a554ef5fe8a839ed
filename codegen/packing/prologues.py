"""Prologues that only copy, as boxes: no code is generated and loaded for what is done once.

Most prologues are loops around one element that is copied into a prepared buffer. Their iterations
are cut into boxes in which both places are sums of what each variable adds.
"""

from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np

from tilesmith.codegen.packing.boxes import CopiedBox
from tilesmith.codegen.packing.pieces import pieces, tables
from tilesmith.search_space.expressions.expression import Expr, total
from tilesmith.search_space.expressions.scalar import Load
from tilesmith.search_space.ir import program as ir

MOST = 64
"""Boxes of a prologue; what falls into more is compiled."""


def boxes_of(program: ir.Program) -> tuple[CopiedBox, ...]:
    """What a bound prologue copies; none if it does anything else, or in too many boxes."""
    buffers = {buffer.name: buffer for buffer in program.parameters}
    boxes: list[CopiedBox] = []
    for loops, block in _nests(program.body, ()):
        value = block.value if block and not block.reducer and not block.guard else None
        if block is None or not isinstance(value, Load) or value.buffer not in buffers:
            return ()
        target, source = buffers[block.buffer], buffers[value.buffer]
        if target.dtype != source.dtype:
            return ()
        places = _place(target, block.indices), _place(source, value.indices)
        for ranges in _ranges(loops, {}):
            parts = [pieces(table) for table in tables(places, ranges)]
            if not all(parts):
                return ()
            for part in product(*parts):
                first, second = np.sum([start for start, _ in part], axis=0)
                dimensions = tuple(dimension for _, inner in part for dimension in inner)
                names = target.name, source.name
                boxes.append(CopiedBox(names, (int(first), int(second)), dimensions))
            if len(boxes) > MOST:
                return ()
    return tuple(boxes)


def _nests(
    statement: ir.Statement, loops: tuple[ir.Loop, ...]
) -> Iterator[tuple[tuple[ir.Loop, ...], ir.Block | None]]:
    """Every block with the loops around it; None for a statement of another kind."""
    match statement:
        case ir.Loop(body=body):
            yield from _nests(body, (*loops, statement))
        case ir.Sequence(statements):
            for inner in statements:
                yield from _nests(inner, loops)
        case _:
            yield loops, statement if isinstance(statement, ir.Block) else None


def _place(buffer: ir.Buffer, indices: tuple[Expr, ...]) -> Expr:
    """The number of an element in its buffer."""
    strides = [1]
    for extent in reversed(buffer.shape[1:]):
        strides.append(strides[-1] * (extent.constant or 0))
    return total(index * stride for index, stride in zip(indices, reversed(strides), strict=True))


def _ranges(loops: tuple[ir.Loop, ...], values: Mapping[str, int]) -> list[dict[str, range]]:
    """The iterations of a nest as boxes: extents may depend on the loops around."""
    if not loops:
        return [{}]
    name, extent = loops[0].variable, int(loops[0].extent.evaluate(values))
    rest = loops[1:]
    if all(name not in loop.extent.variables() for loop in rest):
        return [{name: range(extent), **box} for box in _ranges(rest, values)] if extent > 0 else []
    runs: list[tuple[range, list[dict[str, range]]]] = []
    for value in range(extent):
        inner = _ranges(rest, {**values, name: value})
        start = runs.pop()[0].start if runs and runs[-1][1] == inner else value
        runs.append((range(start, value + 1), inner))
    return [{name: points, **box} for points, inner in runs for box in inner]
