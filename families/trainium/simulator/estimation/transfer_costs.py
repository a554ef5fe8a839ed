"""What transfers and single instructions of one nest cost, for a batch of configurations.

`nest_costs` says which of them a nest becomes; here are their formulas, those of
`families.trainium.codegen.timing.costs` with sizes that are numpy arrays.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tilesmith.families.kit.programs.strides import boxes
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.selection.pointwise import STAGED
from tilesmith.families.trainium.codegen.selection.staging import SMALL
from tilesmith.families.trainium.codegen.selection.transfers import DMA_BYTES
from tilesmith.families.trainium.codegen.timing.costs import transfer_time
from tilesmith.families.trainium.simulator.estimation.estimate import (
    COUNT,
    DMA,
    GPSIMD,
    MOVED,
    PSUM_PORT,
    ROWS,
    SBUF_PORT,
    SCALAR,
    STORED,
    TRANSFERS,
    VECTOR,
    StatementCosts,
)
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import Load, Scalar, loads
from tilesmith.search_space.ir.program import Block, Buffer


@dataclass
class TransferCost:
    """A rectangular nest and what it moves.

    Attributes:
        begun: stages whose first reduction writes what it works on.
        instruction: the specification that the block fits.
        turns: the loops around the nest, and how often each is run; only where it `stages`.
    """

    core: Core
    buffers: Mapping[str, Buffer]
    n: int
    block: Block
    sizes: dict[str, Any]
    constants: AbstractSet[str] = frozenset()
    begun: AbstractSet[str] = frozenset()
    instruction: str = "pointwise"
    turns: dict[str, Any] = field(default_factory=dict)

    def is_dma(self, sources: set[str]) -> bool:
        """Whether any side is in HBM."""
        return not sources | {self.scope(self.block.buffer)} <= {"sbuf", "psum"}

    def scope(self, name: str) -> str:
        scope = self.buffers[name].scope
        return scope if scope in ("sbuf", "psum") else "hbm"

    def dtype(self, name: str) -> str:
        return self.buffers[name].dtype

    def product(self, names: Any) -> Any:
        result: Any = 1.0
        for name in names:
            result = result * self.sizes[name]
        return result

    def partition(self, load: Load) -> set[str]:
        return set(load.indices[0].variables()) & set(self.sizes)

    def used(self, load: Load) -> set[str]:
        return {n for index in load.indices for n in index.variables()} & set(self.sizes)

    def elements(self) -> Any:
        """Elements a partition that the nest writes or goes over."""
        return self.product(set(self.sizes) - self.partition(self.block.write))

    def engine(
        self,
        total: StatementCosts,
        engine: int,
        count: Any,
        cycles: Any,
        part: float = 1.0,
        psum: bool = False,
    ) -> StatementCosts:
        """Add `count` instructions, of which this engine takes a `part` where several share.

        Engines that exclude each other on a memory hold its port meanwhile (`psum`: on PSUM, too).
        """
        core = self.core
        time = count * cycles / core.clocks[engine]
        total.occupied[engine] += time * part
        if core.exclusive_sbuf and engine in (VECTOR, GPSIMD):
            total.data[SBUF_PORT] += time * part
        if core.exclusive_psum and psum and engine in (VECTOR, SCALAR):
            total.data[PSUM_PORT] += time * part
        shown = core.latencies[engine] / core.clocks[engine] + core.semaphore_ns
        total.span += np.where(count > 0, (time + shown) * part, 0)
        total.data[COUNT] += count * part
        return total

    def dma(self, total: StatementCosts, source: Load) -> StatementCosts:
        """Transfers: contiguous runs in HBM follow from the innermost index."""
        core, written = self.core, self.block.write
        if any(atom.kind == "element" for index in source.indices for atom in index.atoms()):
            self.picked(total)
        load = self.scope(written.buffer) == "sbuf"
        chip, hbm = (written, source) if load else (source, written)
        size = size_of(self.dtype(chip.buffer))
        whole = self.product(self.sizes)
        if hbm.buffer in self.constants:
            run = self.laid_out(hbm, whole, size, self.partition(chip))
        else:
            run = 1.0 if self.scattered(chip, hbm) else self.run(hbm, self.partition(chip))
        runs = whole / run
        engines, time = _vector_transfer(runs, run * size, core)
        busy = engines * time / core.dma_engines
        pieces = np.maximum(1.0, whole * size / DMA_BYTES)
        total.occupied[DMA] += np.maximum(busy, whole * size / core.hbm_bytes_per_ns)
        total.span += np.where(whole > 0, core.transferred_ns(time), 0)
        self.transferred(total, whole * size, pieces, runs)
        if not load:
            total.data[STORED] += whole * size
        return total

    def transferred(self, total: StatementCosts, moved: Any, transfers: Any, rows: Any) -> None:
        """Count what DMA does."""
        total.data[MOVED] += moved
        total.data[COUNT] += transfers
        total.data[TRANSFERS] += transfers
        total.data[ROWS] += rows

    def picked(self, total: StatementCosts) -> None:
        """What a gather does first: indices are loaded and brought into their range (`gathers`)."""
        for _ in range(5):
            self.engine(total, VECTOR, 1.0, self.core.minimums[VECTOR])
        total.span += self.core.transferred_ns(0.0)

    def laid_out(self, hbm: Load, whole: Any, size: int, rows: AbstractSet[str]) -> Any:
        """Elements of a contiguous run of a constant, which lies in the order of its loads.

        But not where all partitions want the same rows, and these are long.
        """
        piece = whole / np.maximum(1.0, whole * size / DMA_BYTES)
        piece = np.maximum(piece / self.product(rows), 1.0)
        if rows & self.used(hbm):
            return piece
        return np.where(whole * size <= SMALL, piece, self.run(hbm, rows))

    def scattered(self, chip: Load, hbm: Load) -> bool:
        """Whether elements that follow each other in HBM lie apart on chip."""
        for name in hbm.indices[-1].variables() & set(self.sizes):
            step, other = (load.indices[-1].coefficient(name) for load in (hbm, chip))
            moves = step is not None and step.constant == 1 and np.all(self.sizes[name] > 1)
            if moves and name not in self.partition(chip):
                return other is None or other.constant != 1
        return False

    def run(self, hbm: Load, rows: AbstractSet[str] = frozenset()) -> Any:
        """Elements of a contiguous run of an HBM access; it ends with the loops `rows` over
        partitions."""
        buffer = self.buffers[hbm.buffer]
        run: Any = 1.0
        whole: Any = True
        left = self.used(hbm)
        for index, extent in zip(reversed(hbm.indices), reversed(buffer.shape), strict=True):
            names = [n for n in index.variables() if n in left]
            left -= set(names)
            ends = self.product(rows & set(names)) > 1
            names = [n for n in names if n not in rows]
            count: Any = 1.0
            for name in names:
                odd = index.coefficient(name) is None
                pieces = boxes(hbm, {name: int(np.max(self.sizes[name]))}) if odd else 1
                count = count * self.sizes[name] / pieces
            whole = whole & (not self.skips(index, names))
            run = np.where(whole, run * count, run)
            whole = whole & (count >= (extent.constant or 0)) & ~np.asarray(ends)
        return run

    def skips(self, index: Expr, names: list[str]) -> bool:
        """Whether an index moves in steps longer than one: what it walks lies apart."""
        steps = [index.coefficient(name) for name in names if np.any(self.sizes[name] > 1)]
        known = [abs(step.constant or 0) for step in steps if step is not None]
        return bool(known) and len(known) == len(steps) and min(known) > 1

    def staged(self, total: StatementCosts, value: Scalar, rows: set[str]) -> StatementCosts:
        """Operands that an epilogue reads straight from HBM."""
        core = self.core
        for load in dict.fromkeys(loads(value)):
            if self.scope(load.buffer) != "hbm":
                continue
            size = size_of(self.dtype(load.buffer))
            elements = self.product(self.used(load) | rows)
            run = self.run(load, rows)
            if load.buffer in self.constants:
                run = self.laid_out(load, elements, size, rows)
            loaded = self.loaded(load)
            if self.used(load) & rows and self.used(load) <= rows:  # a column of a vector
                elements = prod(e.constant or 1 for e in self.buffers[load.buffer].shape)
                loaded, run = 1, elements
            engines, time = _vector_transfer(elements / run, run * size, core)
            share = loaded / prod(self.turns.values())
            total.occupied[DMA] += engines * time / core.dma_engines * share
            total.span += core.transferred_ns(time) * share
            self.transferred(total, elements * size * share, share, elements / run * share)
        return total

    def stages(self) -> bool:
        """Whether instructions read operands from HBM, which may be loaded less often than read."""
        return any(self.scope(f.buffer) == "hbm" for f in loads(self.block.value))

    def loaded(self, load: Load) -> Any:
        """How often what is read from HBM is loaded: a few pieces stay staged, each once."""
        every: Any = prod(self.turns.values())
        moving = {name for index in load.indices for name in index.variables()} - set(self.sizes)
        if not moving <= set(self.turns):
            return every
        pieces: Any = prod(self.turns[name] for name in moving)
        return np.where(pieces <= STAGED, pieces, every)


def _vector_transfer(runs: Any, length: Any, core: Core) -> tuple[Any, Any]:
    """`costs.transfer_time` for arrays of run counts and lengths."""
    count = np.maximum(np.asarray(runs, dtype=np.float64), 1.0).astype(np.int64)
    return transfer_time(count, np.maximum(np.asarray(length), 1.0).astype(np.int64), core)
