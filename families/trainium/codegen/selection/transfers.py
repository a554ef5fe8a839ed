"""Copies between HBM and SBUF: plain ones, those into a frame of a constant (padding), and stacks.

A stack has the same rows again on further partitions, shifted. Where the schedule assigns an engine
to it, only the first of them is loaded; the engine copies the others from it, on chip.
"""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import product

from tilesmith.families.trainium.codegen.isa.instructions import DIMENSIONS
from tilesmith.families.trainium.codegen.isa.memory import Tile, from_reachable
from tilesmith.families.trainium.codegen.selection.loop_nests.nests import (
    Environment,
    PlannedNest,
    compile_expression,
    narrow,
)
from tilesmith.families.trainium.codegen.selection.loop_nests.operands import Operands
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import ZERO
from tilesmith.search_space.expressions.scalar import Const, Load, Select
from tilesmith.search_space.support.errors import CodegenError

DMA_BYTES = 1 << 20
"""A DMA transfer is cut into pieces no larger than this, so that work can begin on the first."""

COPY_ELEMENTS = 128
"""Elements a partition of one copy of a stack: few, so that work can begin on the first."""


@dataclass
class TransferEmitter:
    """Emits LOAD and STORE.

    Attributes:
        framed: for each place in SBUF (offset, partition), the box inside the frame it has.
    """

    operands: Operands
    framed: dict[tuple[int, int], tuple[tuple[str, int, int, int], ...]] = field(
        default_factory=dict
    )

    def begun(self, nest: PlannedNest, env: Environment, sizes: dict[str, int]) -> Tile:
        """The part of a tile that a nest of numbers fills, nothing of which counts as written."""
        partition = self.operands.partition(nest.write, sizes)
        dims = [(n, s) for n, s in sizes.items() if n != partition]
        view = self.operands.tile_view(nest.write, env, partition, dims, sizes.get(partition, 1))
        self.operands.restart(view)
        return view

    def move(self, nest: PlannedNest, env: Environment, sizes: dict[str, int]) -> None:
        """A load or store of a rectangular nest, framed or not; copies of a stack on its engine."""
        repeat = self.repeat(nest, env)
        if repeat and nest.block.engine:
            if self.stacked(nest, env, sizes, repeat):
                return
            nest = replace(nest, block=replace(nest.block, engine=""))  # loaded, frame and all
        if isinstance(nest.block.value, Select):
            self.padded(nest, env, sizes)
        else:
            self.dma(nest, env, sizes)

    def repeat(self, nest: PlannedNest, env: Environment) -> str:
        """The loop that skips partitions, where it is not at its beginning; else ""."""
        steps = nest.write.row_strides
        names = [n for n, step in steps.items() if step != 1 and env.get(n, 0) > 0]
        return names[0] if len(names) == 1 else ""

    def stacked(
        self, nest: PlannedNest, env: Environment, sizes: dict[str, int], repeat: str
    ) -> bool:
        """Copy rows that the first of the stack has; load what it lacks. False if rows differ.

        Element (repeat=r, row=y) of the source must be element (0, y + r*shift), which its address
        and the frame's conditions tell.
        """
        (source,) = nest.reads.values()
        write = nest.write
        shifted = self.shift(nest, source.strides, sizes, repeat)
        if shifted is None:
            return False
        row, shift = shifted
        back = shift * env[repeat]
        (axis,) = (i for i, e in enumerate(nest.block.indices) if row in e.variables())
        index = nest.block.indices[axis]
        first = compile_expression(index)({**env, row: 0})
        start, stop = max(0, back - first), sizes[row]
        partition = self.operands.partition(write, sizes)
        inner = [(n, c) for n, c in sizes.items() if n not in (partition, row) and c > 1]
        step = max(1, COPY_ELEMENTS // max(1, math.prod(c for _, c in inner)))
        for y in range(start, stop, step):
            dims = [(row, min(step, stop - y)), *inner]
            above, here = (
                self.operands.tile_view(write, {**env, **at}, partition, dims, sizes[partition])
                for at in ({row: y - back}, {row: y, repeat: 0})
            )
            self.operands.kernel.copy(above, here, engine=nest.block.engine)
        if self.last(nest, env, index.variables() - {row}):
            rest = {**sizes, row: min(back, first + stop)}
            inside = {**env, row: stop - rest[row]}
            self.move(replace(nest, block=replace(nest.block, engine="")), inside, rest)
        return True

    def last(self, nest: PlannedNest, env: Environment, names: Set[str]) -> bool:
        """Whether the nest's loops among `names` are in their last iteration."""
        return all(
            env[loop.variable] == extent(env) - 1
            for loop, extent in zip(nest.loops, nest.extents, strict=True)
            if loop.variable in names
        )

    def shift(
        self, nest: PlannedNest, strides: Mapping[str, int], sizes: dict[str, int], repeat: str
    ) -> tuple[str, int] | None:
        """(the loop over rows, rows that one repetition moves by), or None."""
        rows = [n for n in sizes if n in nest.write.strides and strides.get(n, 0) > 1]
        if not rows or strides.get(repeat, 0) % strides[rows[-1]]:
            return None
        row, shift = rows[-1], strides[repeat] // strides[rows[-1]]
        value = nest.block.value
        for expression in value.condition if isinstance(value, Select) else ():
            one, other = (expression.coefficient(n) or ZERO for n in (repeat, row))
            if one.constant != (other.constant or 0) * shift:
                return None
        return row, shift

    def dma(self, nest: PlannedNest, env: Environment, sizes: dict[str, int]) -> None:
        """LOAD or STORE, outer free loops run while a transfer would be too large, the innermost of
        them in steps as long as one may be."""
        (source,) = nest.reads.values()
        load = nest.write.buffer.scope == "sbuf"
        chip, hbm = (nest.write, source) if load else (source, nest.write)
        partition = self.operands.partition(chip, sizes)
        rows = sizes.get(partition, 1)
        free = [(n, s) for n, s in sizes.items() if n != partition and s > 1]
        free.sort(key=lambda item: -hbm.strides.get(item[0], 0))
        size = size_of(chip.buffer.dtype) * rows
        for _, count in free:
            size *= count
        cut = 0
        while len(free) - cut > 4 or (size > DMA_BYTES and len(free) - cut > 1):
            size //= free[cut][1]
            cut += 1
        steps = [1] * cut
        if cut and len(free) - cut < 4:
            count = free[cut - 1][1]
            steps[-1] = -(-count // -(-count // max(1, DMA_BYTES // size)))
        ranges = [range(0, c, step) for (_, c), step in zip(free, steps, strict=False)]
        for values in product(*ranges):
            run = {name: env.get(name, 0) + v for (name, _), v in zip(free, values, strict=False)}
            inner, dims = {**env, **run}, free[cut:]
            if cut and steps[-1] > 1:
                name, count = free[cut - 1]
                dims = [(name, min(steps[-1], count - values[-1])), *dims]
            tile = self.operands.tile_view(chip, inner, partition, dims, rows)
            view = self.operands.hbm_view(hbm, inner, [(partition, rows), *dims])
            if load:
                self.operands.kernel.load(tile, view)
            else:
                self.operands.kernel.store(view, tile)

    def padded(self, nest: PlannedNest, env: Environment, sizes: dict[str, int]) -> None:
        """A transfer into a frame of a constant: the frame is filled, the inside loaded."""
        self.frame(nest, env, sizes)
        low, high = self.inside(nest, env, sizes)
        if all(high[name] > low[name] for name in sizes):
            moved = {name: env.get(name, 0) + first for name, first in low.items() if first}
            inside = {name: high[name] - low[name] for name in sizes}
            self.dma(nest, {**env, **moved}, inside)

    def inside(
        self, nest: PlannedNest, env: Environment, sizes: dict[str, int]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """First and one past the last iteration of each loop inside the frame."""
        value = nest.block.value
        assert isinstance(value, Select)
        if not isinstance(value.then, Load) or not isinstance(value.otherwise, Const):
            raise CodegenError(f"stage '{nest.block.stage}' pads with more than a number")
        low = dict.fromkeys(sizes, 0)
        high = dict(sizes)
        for expression in value.condition:
            narrow(expression, env, low, high)
        return low, high

    def frame(self, nest: PlannedNest, env: Environment, sizes: dict[str, int]) -> None:
        """Fill the frame, if this is one whose rows are loaded and not copied.

        A place that rotates keeps its frame: it is filled once for each box.
        """
        value = nest.block.value
        if not isinstance(value, Select) or (nest.block.engine and self.repeat(nest, env)):
            return
        low, high = self.inside(nest, env, sizes)
        box = tuple((name, low[name], high[name], sizes[name]) for name in sizes)
        partition = self.operands.partition(nest.write, sizes)
        view = self.operands.tile_view(nest.write, env, partition, [], sizes.get(partition, 1))
        place = (view.offset, view.partition)
        if self.framed.get(place) == box:
            return
        self.framed[place] = box
        assert isinstance(value.otherwise, Const)
        for name, size in reversed(sizes.items()):  # the innermost crosses all rows: it goes first
            first = min(low[name], size)  # a block may lie wholly before the inside
            sides = [(0, first), (max(high[name], first), size)]
            self.sides(nest, env, sizes, name, [s for s in sides if s[1] > s[0]])

    def sides(
        self,
        nest: PlannedNest,
        env: Environment,
        sizes: dict[str, int],
        name: str,
        sides: list[tuple[int, int]],
    ) -> None:
        """Fill ranges of one loop with the frame's number, two of one width at once."""
        value = nest.block.value
        assert isinstance(value, Select) and isinstance(value.otherwise, Const)
        number = value.otherwise.value
        widths = {stop - start for start, stop in sides}
        free = [n for n in sizes if sizes[n] > 1 and n not in nest.write.row_strides]
        if len(sides) == 2 and len(widths) == 1 and name in free and len(free) < DIMENSIONS - 1:
            pair = {**sizes, name: widths.pop(), "(side)": 2}
            strides = {**nest.write.strides, "(side)": nest.write.strides[name] * sides[1][0]}
            write = replace(nest.write, strides=strides)
            self.fill(replace(nest, write=write), env, pair, number)
            return
        for start, stop in sides:
            at = {**env, name: env.get(name, 0) + start}
            self.fill(nest, at, {**sizes, name: stop - start}, number)

    def fill(
        self, nest: PlannedNest, env: Environment, sizes: dict[str, int], number: float
    ) -> None:
        """One side of a frame, from a partition that engines begin at: frames of a nest come before
        its loads, so what lies below may be filled, too, as far as the nest goes."""
        view = self.begun(nest, env, sizes)
        lowest = self.operands.tiles[nest.write.buffer.name].partition + nest.write.row(env)
        self.operands.kernel.memset(from_reachable(view, lowest), number)
