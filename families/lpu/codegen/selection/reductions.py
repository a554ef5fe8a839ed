"""Reductions: along the lanes by rotations (`lanes`), over rows by VXM alone.

What is reduced over rows is combined in pairs, pairs of pairs, and so on. Lanes that do not count
hold what changes nothing.

The largest of lanes, sixteen rows at a time: SXM's transposers turn sixteen rows into sixteen
vectors, of which VXM takes the largest lane by lane:

    rows 16 g + i, lanes 16 s + j  ──►  vectors j, lanes 16 s + i  ──►  vector g, lane 16 s + i:
                                                          the largest of superlane s of row i

so that what is left, the superlanes, is combined in a sixteenth of the vectors, by two steps of a
few rotations. In the end lane i of every superlane holds the result of row 16 g + i, and SXM's
distributors bring it to all lanes (`spreading`). A float16 takes both transposers of a hemisphere.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilesmith.families.lpu.codegen.dataflow import (
    LANES,
    SUPERLANE,
    ChainBuilder,
    Ints,
    Operation,
    Rows,
)
from tilesmith.families.lpu.codegen.selection.graphs.chains import MOST_ROWS
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
    Move,
    all_lanes,
    combined,
    moved_onto,
    rotated,
    summed,
)
from tilesmith.families.lpu.codegen.selection.layout import accesses
from tilesmith.families.lpu.codegen.selection.layout.nests import VectorNest, lane_loop
from tilesmith.families.lpu.codegen.selection.pointwise import LanePiece, section
from tilesmith.families.lpu.codegen.selection.state import Flow, State
from tilesmith.families.lpu.schedules.building_blocks.machine import WIDE
from tilesmith.search_space.expressions.scalar import REDUCERS, loads
from tilesmith.search_space.ir.program import Loop
from tilesmith.search_space.support.errors import CodegenError

FEW = 9
"""Superlanes that two steps of two moves among themselves bring together."""

OUTPUTS = 8
"""Of sixteen vectors of a transpose that one chain takes: with all, no stream would be left for
what VXM makes of them."""

STEPS = ((80, 160, 240), (16, 32, 48, 64))
"""Rotations that bring 20 superlanes together: four times five."""

HOMES = 4
"""Of the results: so many chains that spread them run side by side."""


FEWEST_ROWS = 64
"""Rows of float16 from which on they are reduced here."""


def fits(reducer: str, count: int) -> bool:
    """Whether so many rows of float16 are reduced here."""
    return reducer in ("max", "min") and count >= FEWEST_ROWS


def largest(state: State, name: str, reducer: str, parts: Sequence[Vectors], lanes: Sequence[int],
            count: int) -> SpreadNumber:  # fmt: skip
    """The largest (or least) of all lanes of rows of float16.

    Args:
        parts: rows side by side, whose lanes that do not count hold what changes nothing; but for
            whole superlanes.
        lanes: of each part that count.
    """
    groups = -(-count // SUPERLANE)
    superlanes = [
        _of_superlanes(state, name, reducer, _striped(state, name, part, count), groups)
        for part in parts
    ]
    used = [-(-many // SUPERLANE) for many in lanes]
    if len(parts) == 1 and used[0] <= FEW:
        value = superlanes[0]
        for step in (1, 3):
            moves = [_among(used[0], step), _among(used[0], 2 * step)]
            value = moved_onto(state, name, reducer, value, groups, moves)
    else:
        masked = (
            _masked(state, reducer, v, u, groups) for v, u in zip(superlanes, used, strict=True)
        )
        value = combined(state, reducer, list(masked))
        for rotations in STEPS:
            value = rotated(state, name, reducer, value, groups, rotations)
    value = state.algebra.converted(value, "float16")
    held = state.chains.stored(name, value, groups)
    tensor = state.chains.tensors[held.tensor]
    state.chains.tensors[held.tensor] = replace(tensor, copies=HOMES, block=groups)
    return SpreadNumber(held.tensor, count)


def _striped(state: State, name: str, value: Vectors, count: int) -> Stored:
    """Rows of which sixteen neighbours are read at once."""
    tensors = state.chains.tensors
    numbers = np.arange(-(-count // SUPERLANE) * SUPERLANE, dtype=np.int64)
    numbers[count:] -= SUPERLANE  # the last sixteen are filled up with rows of those before
    if isinstance(value, Stored) and not value.frame:
        tensor, first = tensors[value.tensor], int(value.numbers[0])
        inner = tensor.role == "temporary" and tensor.rows <= MOST_ROWS * SUPERLANE
        if inner and tensor.stripes in (1, SUPERLANE) and (np.diff(value.numbers) == 1).all():
            tensors[tensor.name] = replace(tensor, stripes=SUPERLANE, block=tensor.rows)
            return Stored(value.tensor, first + numbers, value.dtype)
    rows = state.chains.temporary(f"{name}.rows", count, "float16")
    tensors[rows.name] = replace(rows, stripes=SUPERLANE, block=count)
    state.chains.write(f"{name}.rows", value, Rows.of(rows.name, 0, (count, 1)))
    return Stored(rows.name, numbers, "float16")


def _among(used: int, step: int) -> Move:
    """The first superlanes moved in a ring among themselves."""
    ring = used * SUPERLANE
    lanes = np.arange(LANES)
    lanes[:ring] = (lanes[:ring] + step * SUPERLANE) % ring
    return "permute", tuple(lanes.tolist())


def _masked(state: State, reducer: str, value: Vectors, used: int, count: int) -> Vectors:
    """Vectors whose superlanes behind the first hold what changes nothing."""
    if used * SUPERLANE == LANES:
        return value
    mask = np.zeros((1, LANES), bool)
    mask[0, : used * SUPERLANE] = True
    flags = Stored(
        state.chains.literal("position", mask, "bool"), np.zeros(count, np.int64), "bool"
    )
    return state.algebra.select(flags, value, state.algebra.number(REDUCERS[reducer], value.dtype))


def _of_superlanes(state: State, name: str, reducer: str, rows: Stored, groups: int) -> Vectors:
    """Vectors whose lane 16 s + i is the largest of superlane s of row i of their sixteen."""
    halves = []
    for first in range(0, SUPERLANE, OUTPUTS):
        builder = ChainBuilder(f"{name}.turned", groups)
        turned = builder.transpose([
            builder.read(Rows(rows.tensor, np.ascontiguousarray(rows.numbers[turn::SUPERLANE])))
            for turn in range(SUPERLANE)
        ])  # fmt: skip
        front, operations = list(range(OUTPUTS)), list[Operation]()
        while len(front) > 1:
            pairs, front = list(zip(front[::2], front[1::2], strict=True)), []
            for pair in pairs:
                operations.append(Operation(FUNCTIONS[reducer], pair, WIDE))
                front.append(OUTPUTS + len(operations) - 1)
        tensor = state.chains.temporary(f"{name}.superlanes", groups, WIDE)
        value = builder.compute(turned[first : first + OUTPUTS], *operations)
        builder.write(value, Rows.of(tensor.name, 0, (groups, 1)))
        state.chains.chains.append(builder.chain())
        halves.append(Stored(tensor.name, np.arange(groups, dtype=np.int64), WIDE))
    return combined(state, reducer, halves)


def reduce(state: State, nest: VectorNest, around: accesses.Environment) -> None:
    """Chains of a nest that reduces; what it reduces into holds nothing yet, or partial results."""
    block = nest.block
    assert block.reducer is not None
    if block.reducer not in FUNCTIONS:
        raise CodegenError(f"stage '{block.stage}': VXM does not reduce by '{block.reducer}'")
    write = block.write
    outside = lane_loop(nest, write)
    over = [loop for loop in nest.loops if not _moves(write, loop)]
    inside = {lane_loop(nest, access) for access in loads(block.value)} - {""}
    along = next((loop for loop in over if loop.variable in inside), None)
    rows = [loop for loop in nest.loops if _moves(write, loop) and loop.variable != outside]
    grid = accesses.LoopGrid.of(rows, around)
    if not grid.count:
        return
    others = accesses.LoopGrid.of([loop for loop in over if loop is not along], around)
    parts: list[Vectors] = []
    tall: list[Vectors] = []
    counts: list[int] = []
    if along is None:
        _over_rows(state, nest, around, (rows, outside), others)
        return
    plain: list[tuple[Stored, int]] = []
    for number in range(others.count):
        here = {**around, **{n: int(v[number]) for n, v in others.values.items()}}
        for row, count in _along(state, nest, accesses.LoopGrid.of(rows, here), along):
            if isinstance(row, Stored) and row.dtype == "float16" and not row.frame:
                plain.append((row, count))
            counts.append(count)
            parts.append(_counting(state, block.reducer, row, count, grid.count))
            tall.append(parts[-1] if count % SUPERLANE else row)
    name, narrow = f"{block.stage}.lanes", len(plain) == len(parts) and grid.count > FEW_ROWS
    if block.reducer == "sum" and narrow:
        value = summed(state, name, plain, grid.count)
    elif narrow and fits(block.reducer, grid.count):
        value = largest(state, name, block.reducer, tall, counts, grid.count)
    else:
        value = combined(state, block.reducer, parts)
        value = state.algebra.converted(value, "float16") if narrow else value
        value = all_lanes(state, name, block.reducer, value, grid.count)
    buffer = state.buffers[block.buffer]
    target = accesses.place(write, buffer, grid, outside)
    if outside == "" and buffer.shape and (target.lane != 0).any():
        raise CodegenError(
            f"stage '{block.stage}' puts one result a row into lanes; give it a row for each"
        )
    for chunk in range(accesses.chunks_of(buffer)):
        put(state, nest, target.lead + chunk * accesses.places_of(buffer), value)


def _moves(access: object, loop: Loop) -> bool:
    indices = getattr(access, "indices", ())
    return any(loop.variable in index.variables() for index in indices)


def _along(
    state: State, nest: VectorNest, grid: accesses.LoopGrid, along: Loop
) -> list[tuple[Vectors, int]]:
    """What is reduced along the lanes, a part for each row of them, and how many lanes count."""
    extent = int(accesses.LoopGrid(grid.around).evaluate(along.extent))
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
    around: accesses.Environment,
    kept: tuple[list[Loop], str],
    others: accesses.LoopGrid,
) -> None:
    """A reduction over rows, for every row of lanes of the result."""
    rows, lanes = kept
    block, buffer = nest.block, state.buffers[nest.block.buffer]
    grid = accesses.LoopGrid.of(rows, around)
    target = accesses.place(block.write, buffer, grid, lanes)
    if (target.lane % LANES).any():
        raise CodegenError(f"{block.write} begins within a row")
    extent = int(accesses.LoopGrid(around).evaluate(nest.loop(lanes).extent)) if lanes else 1
    for first in range(0, extent, LANES):
        parts = []
        for number in range(others.count):
            here = {**around, **{n: int(v[number]) for n, v in others.values.items()}}
            inner = accesses.LoopGrid.of(rows, here)
            count = min(LANES, extent - first)
            cut = section(nest, lanes, first, count)
            piece = LanePiece(state, cut, inner, lanes, count, 0)
            parts.append(piece.value(cut.block.value))
        value = combined(state, block.reducer or "sum", parts)
        put(state, nest, target.rows + first // LANES * accesses.places_of(buffer), value)


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
