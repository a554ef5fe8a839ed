"""Pointwise nests: any expression of rows, lane by lane.

The lanes are cut where a row of the result ends. What an operand has elsewhere in its rows is
shifted there; what is chosen by position is chosen by rows where the position is one of rows (a
border of an image is a row of its own), and by a mask of lanes where it is one of lanes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilesmith.families.lpu.codegen.dataflow import LANES, Ints
from tilesmith.families.lpu.codegen.selection.graphs.expressions import build
from tilesmith.families.lpu.codegen.selection.graphs.vectors import Moved, Stored, Vectors
from tilesmith.families.lpu.codegen.selection.lanes import one_lane
from tilesmith.families.lpu.codegen.selection.layout import accesses
from tilesmith.families.lpu.codegen.selection.layout.nests import VectorNest, lane_loop
from tilesmith.families.lpu.codegen.selection.parts import alike, plain, turns
from tilesmith.families.lpu.codegen.selection.state import State
from tilesmith.families.lpu.codegen.selection.turning import Turned, turned
from tilesmith.families.lpu.schedules.building_blocks.machine import FLOWING
from tilesmith.search_space.expressions import scalar
from tilesmith.search_space.expressions.expression import Expr, const, var
from tilesmith.search_space.expressions.ranges import within
from tilesmith.search_space.support.errors import CodegenError


@dataclass
class LanePiece:
    """A part of a nest whose lanes stand in one row of the result.

    Attributes:
        nest: with the loop along the lanes from 0 on (`section`).
        lanes: variable of that loop ("" if there is none); count: how far it goes.
        at: lane of the result that its first value stands on.
    """

    state: State
    nest: VectorNest
    grid: accesses.LoopGrid
    lanes: str
    count: int
    at: int
    loaded: dict[tuple[scalar.Load, str], Vectors] = field(default_factory=dict)

    # -- operands -----------------------------------------------------------------------------
    def leaf(self, value: scalar.Scalar) -> Vectors:
        """What is no function: an operand, a choice by position, a position."""
        match value:
            case scalar.Load():
                return self.load(value)
            case scalar.Select():
                return self.select(value)
            case scalar.Index(expression):
                return self.pattern(self._spread(expression), "int32")
            case _:
                raise CodegenError(f"stage '{self.nest.block.stage}' has no vectors for {value}")

    def load(self, access: scalar.Load, frame: str = "", inside: Any = None) -> Vectors:
        """An operand on the lanes of the result.

        Args:
            inside: rows where it is read; elsewhere it is row 0 of `frame`, or zeros.
        """
        key = (access, frame)
        if inside is None and key in self.loaded:
            return self.loaded[key]
        vectors = self._load(access, frame, inside)
        if inside is None:
            self.loaded[key] = vectors
        return vectors

    def _load(self, access: scalar.Load, frame: str, inside: Any) -> Vectors:
        buffer = self.state.buffers[access.buffer]
        if not plain(access, self.lanes):
            return self._collected(access, frame, inside)
        where = accesses.place(access, buffer, self.grid, self.lanes)
        if not where.moves and self.lanes and self.count > 1:
            return self._one_lane(where)
        lane = where.lane
        if where.moves and _beside(where, self.count, inside):
            return self._collected(access, frame, inside)
        held = accesses.in_bounds(where, self.count if where.moves else 1)
        inside = held if inside is None else inside & held
        shifts = np.unique((lane % LANES)[np.broadcast_to(inside, lane.shape)])
        if len(shifts) > 1:
            raise CodegenError(f"rows of {access} begin at different lanes")
        start = int(shifts[0]) if len(shifts) else 0
        numbers = np.where(inside, where.rows, -1)
        known = self.state.number(buffer, numbers)
        if known is not None:
            return known
        if start == self.at:
            return self.state.read(buffer, numbers, frame)
        value = self.state.read(buffer, numbers, frame)
        if start + self.count <= LANES:
            return self._moved(value, start - self.at)
        behind = self.state.read(
            buffer, np.where(numbers < 0, -1, numbers + accesses.places_of(buffer)), frame
        )
        before = self.at + np.arange(LANES - start)
        first = self._moved(value, start - self.at)
        second = self._moved(behind, start - self.at - LANES)
        return self.state.algebra.select(self.mask(before), first, second)

    def _collected(self, access: scalar.Load, frame: str, inside: Any) -> Vectors:
        """An operand whose lanes come from anywhere, but from the same lanes for all rows."""
        buffer = self.state.buffers[access.buffer]
        rows, lane = self.sources(access)
        apart = rows - rows[:, :1]
        if (apart != apart[0]).any() or (lane != lane[0]).any():
            raise CodegenError(f"{access} takes other lanes on every row")
        vectors: Vectors | None = None
        for part in _without_repetition(apart[0], lane[0]):
            numbers = rows[:, part[0]]
            numbers = numbers if inside is None else np.where(inside, numbers, -1)
            value = self.state.read(buffer, np.ascontiguousarray(numbers), frame)
            lanes = np.full(LANES, -1)
            lanes[self.at + part] = lane[0][part]
            if (lanes[self.at + part] != self.at + part).any():
                by = np.unique(lane[0][part] - self.at - part)
                value = Moved("shift" if len(by) == 1 else "permute", value, tuple(lanes.tolist()))
            mask = self.mask(self.at + part)
            vectors = value if vectors is None else self.state.algebra.select(mask, value, vectors)
        assert vectors is not None, "a piece has lanes"
        return vectors

    def sources(self, access: scalar.Load) -> tuple[Ints, Ints]:
        """Where every row and lane of the piece comes from: rows and lanes, (rows, lanes) each."""
        buffer = self.state.buffers[access.buffer]
        shape = accesses.shape_of(buffer)
        rows: Any = np.int64(0)
        for index, extent in zip(access.indices[:-1], shape, strict=False):
            rows = rows * extent + np.clip(self._spread(index), 0, extent - 1)
        last = np.clip(self._spread(access.indices[-1]), 0, shape[-1] - 1)
        size = (self.grid.count, self.count)
        rows = np.broadcast_to(rows + last // LANES * accesses.places_of(buffer), size)
        return rows, np.broadcast_to(last % LANES, size)

    def mask(self, lanes: Any, count: int | None = None) -> Vectors:
        """True on some lanes of every row, or of `count` rows."""
        mask = np.zeros((1, LANES), bool)
        mask[0, lanes] = True
        return self.pattern(mask, "bool", count)

    def _one_lane(self, where: accesses.AccessPlace) -> Vectors:
        """An element of a row on all lanes."""
        name = f"{self.nest.block.stage}.spread"
        held = self.state.read(where.buffer, where.rows)
        source = self.state.chains.stored(name, held, self.grid.count)
        return one_lane(self.state, name, source, where.lane % LANES)

    def _moved(self, value: Vectors, by: int) -> Vectors:
        """Lane l is lane l + by."""
        lanes = tuple(lane + by if 0 <= lane + by < LANES else -1 for lane in range(LANES))
        return Moved("shift", value, lanes)

    # -- positions ----------------------------------------------------------------------------
    def _positions(self) -> dict[str, Any]:
        """Values of the loop along the lanes, an axis behind the rows."""
        if not self.lanes:
            return {}
        return {self.lanes: np.arange(self.count)[None, :]}

    def _spread(self, expression: Any) -> Any:
        """Values of an index expression, (rows or 1, lanes or 1) of the piece."""
        around = {name: numbers[:, None] for name, numbers in self.grid.values.items()}
        wide = accesses.LoopGrid(self.grid.around, around, self.grid.count)
        return wide.evaluate(expression, self._positions())

    def pattern(self, values: Any, dtype: str, count: int | None = None) -> Vectors:
        """Numbers that depend on the position alone, as rows of constants."""
        values = np.atleast_2d(np.asarray(values))
        whole = np.zeros((len(values), LANES), values.dtype)
        width = LANES if values.shape[1] == LANES else self.count
        at = 0 if values.shape[1] == LANES else self.at
        whole[:, at : at + width] = np.broadcast_to(values, (len(values), width))
        distinct, places = np.unique(whole, axis=0, return_inverse=True)
        name = self.state.chains.literal("position", distinct, dtype)
        numbers = np.broadcast_to(places.reshape(-1), (count or self.grid.count,))
        return Stored(name, np.ascontiguousarray(numbers, np.int64), dtype)

    def select(self, value: scalar.Select) -> Vectors:
        """A choice by position: of rows where it can be, else by a mask."""
        holds = self._holds(value.condition)
        rows = holds.shape[1] == 1
        everywhere = np.broadcast_to(holds[:, 0], (self.grid.count,)) if rows else None
        if everywhere is not None and everywhere.all():
            return self.value(value.then)
        if everywhere is not None and not everywhere.any():
            return self.value(value.otherwise)
        if everywhere is not None and isinstance(value.then, scalar.Load):
            frame = self._frame(value.then, value.otherwise)
            if frame is not None:
                return self.load(value.then, frame, everywhere)
        mask = self.pattern(holds, "bool")
        return self.state.algebra.select(mask, self.value(value.then), self.value(value.otherwise))

    def _holds(self, condition: tuple[Any, ...]) -> Any:
        mask = np.ones((1, 1), bool)
        for expression in condition:
            mask = mask & np.atleast_2d(self._spread(expression) >= 0)
        return mask

    def _frame(self, inner: scalar.Load, outside: scalar.Scalar) -> str | None:
        """A tensor of one row that holds what is outside, "" for zeros; None if there is none."""
        buffer = self.state.buffers[inner.buffer]
        if buffer.scope in FLOWING:
            return None
        if isinstance(outside, scalar.Const):
            if outside.value == 0:
                return ""
            return self.state.chains.number(outside.value, buffer.dtype)
        if isinstance(outside, scalar.Load):
            frame = self.state.buffers[outside.buffer]
            where = accesses.place(outside, frame, self.grid, self.lanes)
            one = len(set(where.rows.tolist())) == 1
            whole = frame.dtype == buffer.dtype and accesses.shape_of(frame)[-1] <= LANES
            whole &= self.state.chains.tensors[self.state.names[frame.name]].role == "constant"
            if one and whole and where.moves and not where.lead.any():
                return self.state.names[frame.name]
        return None

    def value(self, value: scalar.Scalar) -> Vectors:
        return build(self.state.algebra, value, self.leaf)


def _beside(where: accesses.AccessPlace, count: int, inside: Any) -> bool:
    """Whether lanes of an access lie beside its rows: what is chosen by lane leaves them out."""
    outside = (where.lane < 0) | (where.lane + count > accesses.shape_of(where.buffer)[-1])
    return bool((outside if inside is None else outside & inside).any())


def _without_repetition(apart: Any, lane: Any) -> Iterator[Any]:
    """Places whose lanes come from one row, none of them twice."""
    for row in dict.fromkeys(apart.tolist()):
        places = np.flatnonzero(apart == row)
        while len(places):
            _, first = np.unique(lane[places], return_index=True)
            first.sort()
            yield places[first]
            places = np.delete(places, first)


def section(nest: VectorNest, lanes: str, first: int, count: int) -> VectorNest:
    """A nest whose loop along the lanes goes over `count` values from `first` on; its indices
    simplified as that allows."""
    if not lanes:
        return nest
    bounds = {
        loop.variable: const(loop.extent.constant - 1)
        for loop in nest.loops
        if loop.extent.constant
    }
    bounds[lanes] = const(count - 1)
    moved = {lanes: var(lanes) + first}

    def index(expression: Expr) -> Expr:
        return within(expression.substitute(moved), bounds)

    block = replace(
        nest.block,
        indices=tuple(index(i) for i in nest.block.indices),
        value=scalar.rewrite(nest.block.value, index),
    )
    loops = tuple(
        replace(loop, extent=const(count)) if loop.variable == lanes else loop
        for loop in nest.loops
    )
    return replace(nest, loops=loops, block=block)


def compute(state: State, nest: VectorNest, around: accesses.Environment) -> None:
    """Chains of a pointwise nest."""
    lanes = lane_loop(nest, nest.block.write)
    grid = accesses.LoopGrid.of(nest.without(lanes), around)
    if nest.block.guard:
        raise CodegenError(f"stage '{nest.block.stage}' is guarded; instructions have no guards")
    if not grid.count:
        return
    along = nest.loop(lanes).extent if lanes else const(1)
    for extent, rows in grid.by_extent(along):
        _compute_equal(state, nest, rows, lanes, extent)


def _compute_equal(
    state: State, nest: VectorNest, grid: accesses.LoopGrid, lanes: str, extent: int
) -> None:
    """The chains of rows whose lanes are equally many."""
    for part in alike(state, nest, grid, lanes, (nest.block.write,)):
        where = accesses.place(nest.block.write, state.buffers[nest.block.buffer], part, lanes)
        first, lane = 0, int(where.lane[0] % LANES)
        while first < extent:
            count = min(extent - first, LANES - lane)
            cut = section(nest, lanes, first, count)
            for rows in alike(state, cut, part, lanes, tuple(scalar.loads(cut.block.value))):
                for turn in turns(state, cut, rows, lanes):
                    _compute(LanePiece(state, cut, turn, lanes, count, lane))
            first, lane = first + count, 0


def _compute(piece: LanePiece) -> None:
    """The chains of rows that begin at the same lanes."""
    target = accesses.place(
        piece.nest.block.write,
        piece.state.buffers[piece.nest.block.buffer],
        piece.grid,
        piece.lanes,
    )
    access = piece.nest.block.value
    if isinstance(access, scalar.Load) and not plain(access, piece.lanes):
        rows, lanes = piece.sources(access)
        apart = rows - rows[:, :1]
        if (apart != apart[0]).any() or (lanes != lanes[0]).any():
            source = piece.state.buffers[access.buffer]
            where = Turned(piece.state, piece.nest.block.stage, piece.at, piece.mask)
            for mine, value in turned(where, source, rows, lanes):
                _write(piece, target, target.rows[mine], value)
            return
    _write(piece, target, target.rows, piece.value(access))


def _write(piece: LanePiece, target: accesses.AccessPlace, numbers: Ints, value: Vectors) -> None:
    """Vectors of a piece into rows of its result."""
    state, block = piece.state, piece.nest.block
    buffer = state.buffers[block.buffer]
    short = buffer.scope in FLOWING or _ends(target, piece.count)
    if piece.at or not (piece.count == LANES or short):
        value = _merged(piece, numbers, value)
    state.write(block.stage, buffer, numbers, value)


def _ends(target: accesses.AccessPlace, reached: int) -> bool:
    """Whether lanes up to there are all that a row has."""
    return bool((target.lane + reached == accesses.shape_of(target.buffer)[-1]).all())


def _merged(piece: LanePiece, numbers: Ints, value: Vectors) -> Vectors:
    """A part of the lanes of rows, beside what they hold already."""
    state, block = piece.state, piece.nest.block
    buffer = state.buffers[block.buffer]
    if buffer.scope in FLOWING:
        raise CodegenError(f"stage '{block.stage}' makes a part of the lanes that flow")
    tensor = state.names[buffer.name]
    known = state.written.get(tensor, set())
    held = np.array([number in known for number in numbers.tolist()])
    if not held.any():
        return value
    old = Stored(tensor, np.where(held, numbers, -1), buffer.dtype)
    copied = state.algebra.apply("copy", old, dtype=buffer.dtype)
    kept = state.chains.stored(block.stage, copied, len(numbers))
    lanes = piece.at + np.arange(piece.count)
    return state.algebra.select(piece.mask(lanes), value, kept)
