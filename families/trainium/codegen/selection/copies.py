"""Copies whose indices are not affine: padding, mirrored edges, nearest-neighbour resizing.

An instruction walks memory in constant strides. A copy whose indices divide, clamp or choose by
position still is a few boxes of constant stride: each loop's range is cut where the step of any
index changes or a condition turns (interleaved pieces, as of a resize by a whole factor, are
separated first), and every combination of pieces is one box:

    inside all conditions     LOAD, STORE or COPY of the box
    outside                   the other value: MEMSET, or a copy with its own strides

Invariants: a loop moves any index, condition or address by itself (what two loops move together
has one of them run outside); on chip, partitions are walked in order.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from tilesmith.families.kit.programs.strides import StridedRange, cut, runs
from tilesmith.families.trainium.codegen.isa.instructions import DIMENSIONS
from tilesmith.families.trainium.codegen.isa.memory import HbmView, Tile, from_reachable
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.codegen.selection.loop_nests.nests import (
    Environment,
    Evaluate,
    bounds_of,
    compile_expression,
    integer,
)
from tilesmith.families.trainium.codegen.selection.pointwise import pieces
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import ZERO, Expr
from tilesmith.search_space.expressions.ranges import within
from tilesmith.search_space.expressions.scalar import Const, Load, Select, rewrite
from tilesmith.search_space.ir.program import Block, Buffer, Loop
from tilesmith.search_space.support.errors import CodegenError

DMA_BYTES = 1 << 20
"""A DMA transfer is cut into pieces no larger than this."""


@dataclass(frozen=True)
class CopyAccess:
    """Where an access of a copy is: partition (on chip) and element offset of the rest."""

    buffer: Buffer
    row: Expr
    offset: Expr

    @property
    def on_chip(self) -> bool:
        return self.buffer.scope in ("sbuf", "psum")


Source = CopyAccess | float


@dataclass(frozen=True)
class CopyNest:
    """A planned copy.

    Attributes:
        fixed: variables of loops that stay outside an instruction.
        condition: all >= 0 where `source` is taken, else `otherwise`.
    """

    loops: tuple[Loop, ...]
    block: Block
    extents: tuple[Evaluate, ...]
    fixed: frozenset[str]
    write: CopyAccess
    source: Source
    otherwise: Source
    condition: tuple[Expr, ...]

    @property
    def accesses(self) -> tuple[CopyAccess, ...]:
        """Everything that is read or written, the result first."""
        accesses = (self.write, self.source, self.otherwise)
        return tuple(access for access in accesses if isinstance(access, CopyAccess))


def plan_copy(
    loops: tuple[Loop, ...], block: Block, buffers: Mapping[str, Buffer]
) -> CopyNest | None:
    """Plan a nest that copies along indices which one instruction cannot follow, else None.

    A frame of a constant around what DMA loads is left to the generator's own way, which fills
    frames once.
    """
    if block.reducer is not None or block.guard:
        return None
    value = block.value
    then = value.then if isinstance(value, Select) else value
    otherwise = value.otherwise if isinstance(value, Select) else Const(0.0)
    if not isinstance(then, Load) or not isinstance(otherwise, Load | Const):
        return None
    if not any(buffers[n].scope in ("sbuf", "psum") for n in (block.buffer, then.buffer)):
        return None
    if not isinstance(value, Select) and _affine(then, loops):
        return None
    if _framed(loops, block, then, otherwise, buffers) and _affine(then, loops):
        return None
    bounds = bounds_of(loops)
    single = {loop.variable: 0 for loop in loops if loop.extent.constant == 1}
    condition = value.condition if isinstance(value, Select) else ()
    inner = frozenset(loop.variable for loop in loops)
    accesses = [
        _access(access, buffers, bounds, single)
        for access in (block.write, then, otherwise)
        if isinstance(access, Load)
    ]
    source: Source = accesses[1]
    other: Source = accesses[2] if len(accesses) > 2 else _number(otherwise)
    condition = tuple(e.substitute(single) for e in condition)
    fixed = {name for loop in loops for name in loop.extent.variables() if name in inner}
    extents = {loop.variable: loop.extent.constant or 1 << 30 for loop in loops}
    offsets = (offset for access in accesses for offset in (access.row, access.offset))
    terms = (Expr(((monomial, 1),)) for offset in offsets for monomial, _ in offset.terms)
    fixed |= _apart((*terms, *condition), extents)
    return CopyNest(
        loops,
        block,
        tuple(compile_expression(loop.extent) for loop in loops),
        frozenset(fixed),
        accesses[0],
        source,
        other,
        condition,
    )


def _number(value: Load | Const) -> float:
    assert isinstance(value, Const)
    return float(value.value)


def _affine(load: Load, loops: tuple[Loop, ...]) -> bool:
    free = [loop.variable for loop in loops if loop.extent.constant != 1]
    bounds = bounds_of(loops)
    for index in load.indices:
        tidied = within(index, bounds)
        for name in free:
            factor = tidied.coefficient(name)
            if factor is None or factor.constant is None:
                return False
    return True


def _framed(
    loops: tuple[Loop, ...],
    block: Block,
    then: Load,
    otherwise: Load | Const,
    buffers: Mapping[str, Buffer],
) -> bool:
    """Whether it is a load into a frame of a constant, all partitions of a transfer alike."""
    conditions = block.value.condition if isinstance(block.value, Select) else ()
    inside = {loop.variable for loop in loops if loop.kind != "unroll"}
    partitions = block.indices[0].variables() & inside
    tested = [e.variables() & inside for e in conditions]
    return (
        isinstance(otherwise, Const)
        and not any(len(names) == 1 and names <= partitions for names in tested)
        and buffers[block.buffer].scope == "sbuf"
        and buffers[then.buffer].scope not in ("sbuf", "psum")
    )


def _access(
    load: Load,
    buffers: Mapping[str, Buffer],
    bounds: Mapping[str, Expr],
    single: Mapping[str, int],
) -> CopyAccess:
    buffer = buffers[load.buffer]
    value = rewrite(load, lambda index: within(index, bounds).substitute(single))
    assert isinstance(value, Load)
    chip = buffer.scope in ("sbuf", "psum")
    step, offset = 1, ZERO
    for index, extent in reversed(list(zip(value.indices, buffer.shape, strict=True))[chip:]):
        offset = offset + index * step
        step *= integer(extent, f"the shape of '{buffer.name}'")
    return CopyAccess(buffer, value.indices[0] if chip else ZERO, offset)


def _apart(parts: Iterable[Expr], extents: Mapping[str, int]) -> set[str]:
    """Loops to run outside, so that no part depends on two loops: the shorter ones."""
    loops: set[str] = set()
    for part in parts:
        names = [name for name in part.variables() if name in extents and name not in loops]
        names.sort(key=lambda name: (extents[name], name))
        loops.update(names[:-1])
    return loops


# -- emission -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Box:
    """One combination of pieces: strides by loop of each access, addresses of the first element."""

    dims: tuple[tuple[str, int], ...]
    env: Environment
    steps: Mapping[str, int]


class Copies:
    """Emits planned copies into a kernel.

    Args:
        tiles: the tile each buffer has at present.
        views: tensors in HBM by name.
    """

    def __init__(
        self, kernel: Kernel, tiles: Mapping[str, Tile], views: Mapping[str, HbmView]
    ) -> None:
        self.kernel, self.tiles, self.views = kernel, tiles, views

    def emit(self, nest: CopyNest, env: Environment, sizes: dict[str, int]) -> None:
        """A nest at one point of its outer loops; `sizes` are its free loops."""
        partition = self._partition(nest, sizes)
        cuts = [self._pieces(nest, env, sizes, name, name == partition) for name in sizes]
        boxes = list(self._boxes(nest, env, sizes, cuts))
        for fills in (True, False):  # fills may reach above their rows, which come afterwards
            for source, box in boxes:
                if isinstance(source, float) == fills:
                    self._box(nest, source, box, partition)

    def _boxes(
        self,
        nest: CopyNest,
        env: Environment,
        sizes: dict[str, int],
        cuts: list[tuple[StridedRange, ...]],
    ) -> Iterator[tuple[Source, _Box]]:
        """Every combination of pieces, and what it copies."""
        for combination in product(*cuts):
            chosen = dict(zip(sizes, combination, strict=True))
            inner = {**env, **{name: piece.first for name, piece in chosen.items()}}
            inside = all(compile_expression(e)(inner) >= 0 for e in nest.condition)
            dims = tuple((name, p.count) for name, p in chosen.items() if p.count > 1)
            steps = {name: p.step for name, p in chosen.items()}
            source = nest.source if inside else nest.otherwise
            yield source, _Box(dims, inner, steps)

    def _partition(self, nest: CopyNest, sizes: dict[str, int]) -> str:
        """The loop along partitions: of the tile written, or of the tile stored."""
        chip = [access for access in nest.accesses if access.on_chip]
        names = {n for a in chip for n in a.row.variables() if sizes.get(n, 1) > 1}
        if len(names) > 1:
            raise CodegenError(f"stage '{nest.block.stage}' moves elements between partitions")
        return names.pop() if names else ""

    def _pieces(
        self, nest: CopyNest, env: Environment, sizes: dict[str, int], name: str, partition: bool
    ) -> tuple[StridedRange, ...]:
        """The pieces of one loop, every other one at its start."""
        size = sizes[name]
        places = {**env, **dict.fromkeys(sizes, 0), name: np.arange(size)}
        flags = [e for e in nest.condition if name in e.variables()]
        offsets = [e for a in nest.accesses for e in (a.offset, a.row)]
        tables = [compile_expression(e, True)(places) for e in (*flags, *offsets)]
        rows = np.stack([np.broadcast_to(t, (size,)) for t in tables]).astype(np.int64)
        rows[: len(flags)] = rows[: len(flags)] >= 0
        pieces = cut(rows, len(flags))
        if partition and any(p.count > 1 and p.step > 1 for p in pieces):
            pieces = tuple(runs(rows, len(flags)))
        return pieces

    def _box(self, nest: CopyNest, source: Source, box: _Box, partition: str) -> None:
        """One box, cut to what one instruction takes."""
        rows = next((count for name, count in box.dims if name == partition), 1)
        free = [(name, count) for name, count in box.dims if name != partition]
        dma = not nest.write.on_chip or (isinstance(source, CopyAccess) and not source.on_chip)
        size = rows * size_of(nest.write.buffer.dtype)
        cuts = self._dma_pieces(size, free) if dma else pieces(free)
        for start, part in cuts:
            env = dict(box.env)
            for name, place in start.items():
                env[name] += place * box.steps[name]
            self._instruction(nest, source, box, env, (partition, rows), part)

    @staticmethod
    def _dma_pieces(
        size: int, free: list[tuple[str, int]]
    ) -> Iterator[tuple[dict[str, int], list[tuple[str, int]]]]:
        """Outer loops run while a transfer of `size` bytes a step of `free` would be too large or
        have too many axes."""
        outer = 0
        for _, count in free:
            size *= count
        while len(free) - outer > DIMENSIONS - 1 or (size > DMA_BYTES and len(free) - outer > 1):
            size //= free[outer][1]
            outer += 1
        for values in product(*(range(count) for _, count in free[:outer])):
            names = (name for name, _ in free[:outer])
            yield dict(zip(names, values, strict=True)), free[outer:]

    @staticmethod
    def _stride(expression: Expr, name: str, box: _Box, env: Environment) -> int:
        """Elements that one step of a loop moves an address."""
        evaluate = compile_expression(expression)
        moved = {**env, name: env.get(name, 0) + box.steps.get(name, 1)}
        return int(evaluate(moved) - evaluate(env))

    def _instruction(
        self,
        nest: CopyNest,
        source: Source,
        box: _Box,
        env: Environment,
        lead: tuple[str, int],
        free: list[tuple[str, int]],
    ) -> None:
        out = self._operand(nest.write, box, env, lead, free)
        if isinstance(source, float):
            if isinstance(out, HbmView):
                raise CodegenError(f"stage '{nest.block.stage}' fills HBM with a number")
            rows = compile_expression(nest.write.row)({**env, lead[0]: 0})
            first = self.tiles[nest.write.buffer.name].partition + int(rows)
            self.kernel.memset(from_reachable(out, first), source)
            return
        operand = self._operand(source, box, env, lead, free)
        if isinstance(out, HbmView):
            assert isinstance(operand, Tile)
            self.kernel.store(out, operand)
        elif isinstance(operand, HbmView):
            self.kernel.load(out, operand)
        else:
            self.kernel.copy(out, operand, engine=nest.block.engine or "vector")

    def _operand(
        self,
        access: CopyAccess,
        box: _Box,
        env: Environment,
        lead: tuple[str, int],
        free: list[tuple[str, int]],
    ) -> Tile | HbmView:
        """The part of a tile or tensor that one instruction touches."""

        def stride(expression: Expr, name: str) -> int:
            return self._stride(expression, name, box, env)

        offset = int(compile_expression(access.offset)(env))
        dims = tuple((count, stride(access.offset, name)) for name, count in free)
        partition, rows = lead
        if not access.on_chip:
            view = self.views[access.buffer.name]
            first = (rows, stride(access.offset, partition) if partition else 0)
            return HbmView(view.name, view.tensor, view.dtype, offset, (first, *dims))
        whole = self.tiles[access.buffer.name]
        row = int(compile_expression(access.row)(env))
        if rows > 1 and stride(access.row, partition) != 1:
            raise CodegenError(
                f"stage '{access.buffer.name}' must have one unit-stride loop on its partitions"
            )
        return Tile(
            whole.name, whole.space, whole.allocation, whole.dtype, whole.partition + row, rows,
            whole.offset + offset * size_of(whole.dtype), dims or ((1, 1),),
        )  # fmt: skip
