"""Reductions: along the lanes by rotations (`lanes`), over rows by VXM alone.

What is reduced over rows is combined in pairs, pairs of pairs, and so on. Lanes that do not count
hold what changes nothing.
"""

from __future__ import annotations

import numpy as np

from tilesmith.families.lpu.codegen.dataflow import LANES, SUPERLANE, Ints
from tilesmith.families.lpu.codegen.selection import largest
from tilesmith.families.lpu.codegen.selection.graphs.spreading import spread_rows
from tilesmith.families.lpu.codegen.selection.graphs.vectors import (
    Number,
    SpreadNumber,
    Stored,
    Vectors,
)
from tilesmith.families.lpu.codegen.selection.lanes import (
    FEW_ROWS,
    FUNCTIONS,
    all_lanes,
    combined,
    summed,
)
from tilesmith.families.lpu.codegen.selection.layout.accesses import (
    Environment,
    LoopGrid,
    chunks_of,
    place,
    places_of,
)
from tilesmith.families.lpu.codegen.selection.layout.nests import VectorNest, lane_loop
from tilesmith.families.lpu.codegen.selection.pointwise import LanePiece, section
from tilesmith.families.lpu.codegen.selection.state import Flow, State
from tilesmith.search_space.expressions.scalar import REDUCERS, loads
from tilesmith.search_space.ir.program import Loop
from tilesmith.search_space.support.errors import CodegenError


def reduce(state: State, nest: VectorNest, around: Environment) -> None:
    """Chains of a nest that reduces; what it reduces into holds nothing yet, or partial results."""
    block = nest.block
    assert block.reducer is not None
    if block.reducer not in FUNCTIONS:
        raise CodegenError(f"stage '{block.stage}': VXM does not reduce by '{block.reducer}'")
    write = block.write
    outside = lane_loop(nest, write, around)
    over = [loop for loop in nest.loops if not _moves(write, loop)]
    inside = {lane_loop(nest, access, around) for access in loads(block.value)} - {""}
    along = next((loop for loop in over if loop.variable in inside), None)
    rows = [loop for loop in nest.loops if _moves(write, loop) and loop.variable != outside]
    grid = LoopGrid.of(rows, around)
    if not grid.count:
        return
    others = LoopGrid.of([loop for loop in over if loop is not along], around)
    parts: list[Vectors] = []
    tall: list[Vectors] = []
    counts: list[int] = []
    if along is None:
        _over_rows(state, nest, around, (rows, outside), others)
        return
    plain: list[tuple[Stored, int]] = []
    for number in range(others.count):
        here = {**around, **{n: int(v[number]) for n, v in others.values.items()}}
        for row, count in _along(state, nest, LoopGrid.of(rows, here), along):
            if isinstance(row, Stored) and row.dtype == "float16" and not row.frame:
                plain.append((row, count))
            counts.append(count)
            parts.append(_counting(state, block.reducer, row, count, grid.count))
            tall.append(parts[-1] if count % SUPERLANE else row)
    name, narrow = f"{block.stage}.lanes", len(plain) == len(parts) and grid.count > FEW_ROWS
    if block.reducer == "sum" and narrow:
        value = summed(state, name, plain, grid.count)
    elif narrow and largest.fits(block.reducer, grid.count):
        value = largest.largest(state, name, block.reducer, tall, counts, grid.count)
    else:
        value = combined(state, block.reducer, parts)
        value = state.algebra.converted(value, "float16") if narrow else value
        value = all_lanes(state, name, block.reducer, value, grid.count)
    buffer = state.buffers[block.buffer]
    target = place(write, buffer, grid, outside)
    if outside == "" and buffer.shape and (target.lane != 0).any():
        raise CodegenError(
            f"stage '{block.stage}' puts one result a row into lanes; give it a row for each"
        )
    for chunk in range(chunks_of(buffer)):
        put(state, nest, target.lead + chunk * places_of(buffer), value)


def _moves(access: object, loop: Loop) -> bool:
    indices = getattr(access, "indices", ())
    return any(loop.variable in index.variables() for index in indices)


def _along(
    state: State, nest: VectorNest, grid: LoopGrid, along: Loop
) -> list[tuple[Vectors, int]]:
    """What is reduced along the lanes, a part for each row of them, and how many lanes count."""
    extent = int(LoopGrid(grid.around).evaluate(along.extent))
    parts: list[tuple[Vectors, int]] = []
    for first in range(0, extent, LANES):
        count = min(LANES, extent - first)
        cut = section(nest, along.variable, first, count)
        piece = LanePiece(state, cut, grid, along.variable, count, 0)
        parts.append((piece.value(cut.block.value), count))
    return parts


def _counting(state: State, reducer: str, value: Vectors, lanes: int, count: int) -> Vectors:
    """Vectors whose lanes that do not count hold what changes nothing."""
    if lanes == LANES:
        return value
    mask = np.zeros((1, LANES), bool)
    mask[0, :lanes] = True
    flags = Stored(
        state.chains.literal("position", mask, "bool"), np.zeros(count, np.int64), "bool"
    )
    nothing = state.algebra.number(REDUCERS[reducer], value.dtype)
    return state.algebra.select(flags, value, nothing)


def _over_rows(
    state: State,
    nest: VectorNest,
    around: Environment,
    kept: tuple[list[Loop], str],
    others: LoopGrid,
) -> None:
    """A reduction over rows, for every row of lanes of the result."""
    rows, lanes = kept
    block, buffer = nest.block, state.buffers[nest.block.buffer]
    grid = LoopGrid.of(rows, around)
    target = place(block.write, buffer, grid, lanes)
    if (target.lane % LANES).any():
        raise CodegenError(f"{block.write} begins within a row")
    extent = int(LoopGrid(around).evaluate(nest.loop(lanes).extent)) if lanes else 1
    for first in range(0, extent, LANES):
        parts = []
        for number in range(others.count):
            here = {**around, **{n: int(v[number]) for n, v in others.values.items()}}
            inner = LoopGrid.of(rows, here)
            count = min(LANES, extent - first)
            cut = section(nest, lanes, first, count)
            piece = LanePiece(state, cut, inner, lanes, count, 0)
            parts.append(piece.value(cut.block.value))
        value = combined(state, block.reducer or "sum", parts)
        put(state, nest, target.rows + first // LANES * places_of(buffer), value)


def put(state: State, nest: VectorNest, numbers: Ints, value: Vectors) -> None:
    """A result into its rows, combined with what they hold unless that is the identity."""
    block, buffer = nest.block, state.buffers[nest.block.buffer]
    function = FUNCTIONS[block.reducer or "sum"]
    key = state.key(buffer, numbers)
    before = state.flowing.get(key)
    first = before is None or isinstance(before.value, Number)
    if first and isinstance(value, SpreadNumber):
        state.flowing[key] = Flow(value, numbers)
        return
    if before is not None and not first:
        if isinstance(value, SpreadNumber):
            value = spread_rows(state.chains, block.stage, value)
        value = state.algebra.binary(function, before.value, value)
    state.flowing[key] = Flow(state.algebra.converted(value, buffer.dtype), numbers)
