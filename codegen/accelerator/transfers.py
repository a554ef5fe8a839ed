"""Copies between HBM and SBUF: plain ones, and those into a frame of a constant (padding)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

from codegen.accelerator.nests import Environment, Nest, narrow
from codegen.accelerator.operands import Operands
from search_space.dtypes import size_of
from search_space.errors import CodegenError
from search_space.scalar import Const, Load, Select

DMA_BYTES = 1 << 20
"""A DMA transfer is cut into pieces no larger than this, so that work can begin on the first."""


@dataclass
class Transfers:
    """Emits LOAD and STORE.

    Attributes:
        framed: for each place in SBUF (offset, partition), the box inside the frame it has.
    """

    operands: Operands
    framed: dict[tuple[int, int], tuple[tuple[str, int, int, int], ...]] = field(
        default_factory=dict
    )

    def initialise(self, nest: Nest, env: Environment, sizes: dict[str, int], value: float) -> None:
        """A tile filled with a number; in PSUM the first matmul does it by not adding."""
        tile = self.operands.tiles[nest.write.buffer.name]
        self.operands.started[tile.allocation] = set()
        if nest.write.buffer.scope == "psum" and value == 0.0:
            return
        partition = self.operands.partition(nest.write, sizes)
        dims = [(n, s) for n, s in sizes.items() if n != partition]
        view = self.operands.tile_view(nest.write, env, partition, dims, sizes.get(partition, 1))
        self.operands.kernel.memset(view, value)

    def dma(self, nest: Nest, env: Environment, sizes: dict[str, int]) -> None:
        """LOAD or STORE, outer free loops run while a transfer would be too large."""
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
        for values in product(*(range(count) for _, count in free[:cut])):
            run = {name: env.get(name, 0) + v for (name, _), v in zip(free, values, strict=False)}
            inner = {**env, **run}
            tile = self.operands.tile_view(chip, inner, partition, free[cut:], rows)
            view = self.operands.hbm_view(hbm, inner, [(partition, rows), *free[cut:]])
            if load:
                self.operands.kernel.load(tile, view)
            else:
                self.operands.kernel.store(view, tile)

    def padded(self, nest: Nest, env: Environment, sizes: dict[str, int], value: Select) -> None:
        """A transfer into a frame of a constant: the frame is filled, the inside loaded.

        A place that rotates keeps its frame: it is filled once for each box.
        """
        if not isinstance(value.then, Load) or not isinstance(value.otherwise, Const):
            raise CodegenError(f"stage '{nest.block.stage}' pads with more than a number")
        low = dict.fromkeys(sizes, 0)
        high = dict(sizes)
        for expression in value.condition:
            narrow(expression, env, low, high)
        tile = self.operands.tiles[nest.write.buffer.name]
        box = tuple((name, low[name], high[name], sizes[name]) for name in sizes)
        partition = self.operands.partition(nest.write, sizes)
        view = self.operands.tile_view(nest.write, env, partition, [], sizes.get(partition, 1))
        place = (tile.offset, view.partition)
        if self.framed.get(place) != box:
            self.framed[place] = box
            for name, size in sizes.items():
                for start, stop in ((0, low[name]), (max(high[name], low[name]), size)):
                    if stop > start:
                        side = {**sizes, name: stop - start}
                        self.initialise(nest, {**env, name: start}, side, value.otherwise.value)
        if all(high[name] > low[name] for name in sizes):
            moved = {name: first for name, first in low.items() if first}
            inside = {name: high[name] - low[name] for name in sizes}
            self.dma(nest, {**env, **moved}, inside)
