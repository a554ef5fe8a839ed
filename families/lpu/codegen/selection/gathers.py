"""Rows picked by numbers in memory: Gather of MEM.

    y[o, i, l] = x[o, indices[i], l]

The numbers stand lane beside lane; each comes to all lanes of a row of its own first (`lanes`), and
one below zero counts from the end.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tilesmith.families.lpu.codegen.dataflow import LANES
from tilesmith.families.lpu.codegen.selection.graphs.vectors import Picked, Stored, Vectors
from tilesmith.families.lpu.codegen.selection.lanes import one_lane
from tilesmith.families.lpu.codegen.selection.layout import accesses
from tilesmith.families.lpu.codegen.selection.layout.nests import VectorNest, lane_loop
from tilesmith.families.lpu.codegen.selection.state import State
from tilesmith.search_space.expressions.expression import ZERO, Atom, Expr
from tilesmith.search_space.expressions.scalar import Load
from tilesmith.search_space.support.errors import CodegenError

TABLE_ROWS = 3584
"""Of a block of a table at most: a bank has some more words, so that it need not be empty."""


def gather(state: State, nest: VectorNest, around: accesses.Environment) -> None:
    """Chains of a nest that picks rows of a table, for every place before the one picked."""
    block = nest.block
    assert isinstance(block.value, Load), "its specification says so"
    position, atom = _picked(block.value)
    lanes = lane_loop(nest, block.write)
    numbers = frozenset(v for e in atom.operands for v in e.variables())
    picked = [loop for loop in nest.loops if loop.variable in numbers]
    if lanes in numbers or position == len(block.value.indices) - 1:
        raise CodegenError(f"stage '{block.stage}' picks lanes; whole rows can be picked only")
    outer = accesses.LoopGrid.of(
        [loop for loop in nest.loops if loop not in picked and loop.variable != lanes], around
    )
    extent = int(accesses.LoopGrid(around).evaluate(nest.loop(lanes).extent)) if lanes else 1
    index = _numbers(state, nest, accesses.LoopGrid.of(picked, around), atom)
    table = state.buffers[block.value.buffer]
    rows = accesses.shape_of(table)[position]
    tensor = state.names[table.name]
    together = min(rows, TABLE_ROWS)
    state.chains.tensors[tensor] = replace(state.chains.tensors[tensor], block=together)
    if rows > TABLE_ROWS:
        index = state.chains.stored(
            f"{nest.block.stage}.rows", index, accesses.LoopGrid.of(picked, around).count
        )
    target = state.buffers[block.buffer]
    first_of = Load(table.name, tuple(
        ZERO if i == position else e for i, e in enumerate(block.value.indices)
    ))  # fmt: skip
    for at in range(outer.count):
        here = {**around, **{n: int(v[at]) for n, v in outer.values.items()}}
        grid = accesses.LoopGrid.of(picked, here)
        base = accesses.place(first_of, table, grid, lanes)
        where = accesses.place(block.write, target, grid, lanes)
        for first in range(0, extent, LANES):
            chunk = first // LANES
            start = int(base.rows[0]) + chunk * accesses.places_of(table)
            value = _rows_of(state, table.dtype, (tensor, start, rows), index)
            state.write(block.stage, target, where.rows + chunk * accesses.places_of(target), value)


def _rows_of(state: State, dtype: str, table: tuple[str, int, int], index: Vectors) -> Vectors:
    """Rows of a table: (tensor, its first row there, rows), of each block that it lies in."""
    tensor, start, rows = table
    if rows <= TABLE_ROWS:
        return Picked(tensor, index, rows, dtype, start)
    algebra, picked = state.algebra, None
    for first, end in _blocks(start, start + rows):
        below = algebra.number(float(first - start), "int32")
        own = algebra.binary("subtract", index, below) if first > start else index
        for function, limit in (("maximum", 0), ("minimum", end - first - 1)):
            own = algebra.binary(function, own, algebra.number(float(limit), "int32"))
        part: Vectors = Picked(tensor, own, end - first, dtype, first)
        if picked is not None:
            before = algebra.compare("greater", below, index)
            part = algebra.select(before, picked, part)
        picked = part
    assert picked is not None, "a table has rows"
    return picked


def _blocks(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Rows of a tensor, cut where its blocks end."""
    while start < end:
        reached = min((start // TABLE_ROWS + 1) * TABLE_ROWS, end)
        yield start, reached
        start = reached


def _picked(access: Load) -> tuple[int, Atom]:
    """Which index of an access is read from memory, and the atom that it is."""
    for position, index in enumerate(access.indices):
        for atom in index.atoms():
            if atom.kind == "element":
                return position, atom
    raise AssertionError("its specification says so")


def _numbers(state: State, nest: VectorNest, grid: accesses.LoopGrid, atom: Atom) -> Vectors:
    """The row number of every vector, in all lanes, from 0 on."""
    table = state.buffers[atom.name]
    if table.dtype != "int32":
        raise CodegenError(f"row numbers are of int32, not the {table.dtype} of '{table.name}'")
    at, extent = atom.operands
    lane = grid.numbers(at)
    rows = np.ascontiguousarray(lane // LANES)
    source = state.read(table, rows)
    assert isinstance(source, Stored), "indices are in memory"
    number = one_lane(state, f"{nest.block.stage}.index", source, lane % LANES)
    zero, most = (state.algebra.number(float(n), "int32") for n in (0, _constant(extent)))
    below = state.algebra.compare("greater", zero, number)
    return state.algebra.select(below, state.algebra.binary("add", number, most), number)


def _constant(extent: Expr) -> int:
    if extent.constant is None:
        raise CodegenError(f"{extent} rows to pick from are no number")
    return extent.constant
