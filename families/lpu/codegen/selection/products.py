"""Products: nests that multiply and add up, as passes of MXM.

    sums[m.., n] += moving[.., k] * weights[.., k]     m over rows, k and n over lanes of one vector

The moving operand is the one that no loop over n moves. Longer k and n are dealt out to several
passes, `LANES` each.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tilesmith.families.lpu.codegen.dataflow import LANES, Rows
from tilesmith.families.lpu.codegen.selection.graphs.vectors import MxmPass, Number, Total, sum_type
from tilesmith.families.lpu.codegen.selection.layout import accesses
from tilesmith.families.lpu.codegen.selection.layout.nests import VectorNest, lane_loop
from tilesmith.families.lpu.codegen.selection.pointwise import LanePiece, section
from tilesmith.families.lpu.codegen.selection.state import Flow, State
from tilesmith.search_space.expressions.scalar import Call, Load, Scalar, loads
from tilesmith.search_space.ir.program import Loop
from tilesmith.search_space.support.errors import CodegenError


@dataclass(frozen=True)
class _Roles:
    """Which part of a product is which.

    Attributes:
        moving: 0 or 1, the factor that moves; weights: the other.
        columns, depth: variables of the loops along the lanes of the result, and of both factors.
    """

    moving: int
    weights: Load
    columns: str
    depth: str

    @classmethod
    def of(cls, nest: VectorNest, around: accesses.Environment) -> "_Roles":
        block = nest.block
        columns = lane_loop(nest, block.write)
        factors = [_operand(part) for part in _factors(block.value)]
        moving = 1 if columns in _variables(factors[0]) else 0
        weights = factors[1 - moving]
        if not isinstance(weights, Load) or columns in _variables(factors[moving]):
            raise CodegenError(f"stage '{block.stage}' has no operand that all columns share")
        depth = lane_loop(nest, weights)
        if depth in _variables(block.write) or depth not in _variables(factors[moving]):
            raise CodegenError(
                f"stage '{block.stage}': {factors[moving]} and {weights} have to be summed along "
                "their lanes"
            )
        return cls(moving, weights, columns, depth)


def add_passes(state: State, nest: VectorNest, around: accesses.Environment) -> None:
    """Add a nest's passes to the sums that flow in what it writes."""
    series = max((loop.stages for loop in nest.loops), default=1)
    state.series, before = max(series, state.series), state.series
    roles = _Roles.of(nest, around)
    kept = _variables(nest.block.write)
    others = nest.without(roles.columns, roles.depth)
    rows = [loop for loop in others if loop.variable in kept]
    outer = accesses.LoopGrid.of([loop for loop in others if loop.variable not in kept], around)
    for at in range(outer.count):
        here = {**around, **{name: int(v[at]) for name, v in outer.values.items()}}
        _passes(state, nest, here, rows, roles)
    state.series = before


def _passes(
    state: State, nest: VectorNest, around: accesses.Environment, rows: list[Loop], roles: _Roles
) -> None:
    """The passes of one point of the loops that are summed over but for the lanes."""
    columns, depth, weights = roles.columns, roles.depth, roles.weights
    grid = accesses.LoopGrid.of(rows, around)
    if not grid.count:
        return
    n, k = (_extent(nest, name, grid) for name in (columns, depth))
    rows_held, lane_held = _weights(state, nest, roles, around, n)
    held = accesses.places_of(state.buffers[weights.buffer])
    target = accesses.place(nest.block.write, state.buffers[nest.block.buffer], grid, columns)
    chunk = _one(target.lane, nest.block.write)
    if chunk % LANES:
        raise CodegenError(
            f"stage '{nest.block.stage}': a product's sums begin at a row's first lane, and these "
            f"at {chunk}"
        )
    for first, lane, count in _sections(lane_held % LANES, k):
        cut = section(nest, depth, first, count)
        part = _operand(_factors(cut.block.value)[roles.moving])
        vectors = LanePiece(state, cut, grid, depth, count, lane).leaf(part)
        if isinstance(vectors, Number) and vectors.source is None:
            continue  # all rows are beside the image
        if isinstance(vectors, Number):
            vectors = state.chains.spread(vectors, grid.count)
        for column in range(0, n, LANES):
            numbers = rows_held[column : column + LANES] + (lane_held + first) // LANES * held
            tensor = state.weights(state.buffers[weights.buffer], numbers)
            done = MxmPass(vectors, Rows(tensor, numbers), lane + count, lane)
            key = (nest.block.buffer, (chunk + column) // LANES)
            at = target.lead + key[1] * accesses.places_of(state.buffers[nest.block.buffer])
            state.flowing[key] = Flow(_with_pass(state, nest, key, done, at), at)


def _sections(lane: int, k: int) -> Iterator[tuple[int, int, int]]:
    """(first of k, its lane, count) of every pass, where weights begin at a lane."""
    first = 0
    while first < k:
        count = min(LANES - lane, k - first)
        yield first, lane, count
        first, lane = first + count, 0


def _with_pass(
    state: State, nest: VectorNest, key: tuple[str, int], done: MxmPass, numbers: np.ndarray
) -> Total:
    """The sums that flow, and one pass more."""
    before = state.flowing.get(key)
    if before is None or isinstance(before.value, Number):
        return Total((done,), sum_type(done.moving.dtype), state.series)
    same = np.array_equal(before.numbers, numbers)
    if not isinstance(before.value, Total) or not same:
        raise CodegenError(
            f"stage '{nest.block.stage}' adds to sums that are not those of the same rows"
        )
    return replace(before.value, passes=(*before.value.passes, done))


def _weights(
    state: State, nest: VectorNest, roles: _Roles, around: accesses.Environment, n: int
) -> tuple[np.ndarray, int]:
    """(row numbers of the weights of every column, their first lane)."""
    columns, depth, weights = roles.columns, roles.depth, roles.weights
    loop = nest.loop(columns) if columns else None
    grid = accesses.LoopGrid.of([loop] if loop else [], around)
    where = accesses.place(weights, state.buffers[weights.buffer], grid, depth)
    return where.lead[:n], _one(where.lane, weights)


def _one(lane: np.ndarray, access: Load) -> int:
    """The lane that all rows begin at."""
    if (lane != lane[0]).any():
        raise CodegenError(f"{access} begins at another lane on every row")
    return int(lane[0])


def _extent(nest: VectorNest, name: str, grid: accesses.LoopGrid) -> int:
    """How far a loop along lanes goes, which has to be as far on all rows."""
    extents = np.unique(grid.evaluate(nest.loop(name).extent)) if name else np.ones(1, np.int64)
    if len(extents) > 1:
        raise CodegenError(f"stage '{nest.block.stage}': loop '{name}' is of several lengths")
    return int(extents[0])


def _factors(value: Scalar) -> tuple[Scalar, Scalar]:
    assert isinstance(value, Call) and len(value.arguments) == 2, "its specification says so"
    first, second = value.arguments
    return first, second


def _operand(value: Scalar) -> Scalar:
    """An operand as it stands in memory: MXM widens by itself."""
    return value.arguments[0] if isinstance(value, Call) else value


def _variables(value: Scalar) -> frozenset[str]:
    return frozenset(
        name for access in loads(value) for index in access.indices for name in index.variables()
    )
