"""What one nest costs, for a batch of configurations, in closed form.

A nest (one block in rectangular loops) becomes the same instructions as in the generator
(`codegen.accelerator.from_program`): this module mirrors its choices, with sizes that are numpy
arrays, one element for each configuration, and the formulas of `codegen.accelerator.costs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen.accelerator.core import Core
from codegen.accelerator.costs import transfer_time
from codegen.accelerator.engine_costs import FULL_RATE_BYTES
from codegen.accelerator.patterns import absorbed, calls, combination, simplify, squared
from codegen.accelerator.pointwise import MAX_ELEMENTS
from codegen.accelerator.staging import SMALL
from codegen.accelerator.transfers import COPY_ELEMENTS, DMA_BYTES
from search_space.dtypes import size_of
from search_space.expression import Expr
from search_space.program import Block, Buffer
from search_space.scalar import Call, Const, Load, Scalar, Select, loads
from search_space.strides import boxes
from simulator.accelerator.estimate import (
    COUNT,
    DMA,
    GPSIMD,
    MATMULS,
    MOVED,
    PSUM_PORT,
    ROWS,
    SBUF_PORT,
    SCALAR,
    STORED,
    TENSOR,
    TRANSFERS,
    TRANSPOSES,
    VECTOR,
    Estimate,
)

_ENGINES = {"scalar": SCALAR, "gpsimd": GPSIMD}


@dataclass
class NestCost:
    """A rectangular nest: which instructions it becomes, at what cost (as the generator).

    Attributes:
        begun: stages whose first reduction writes what it works on.
        times: how often the nest is run; only where it `stages`.
    """

    core: Core
    buffers: Mapping[str, Buffer]
    n: int
    block: Block
    sizes: dict[str, Any]
    constants: AbstractSet[str] = frozenset()
    begun: AbstractSet[str] = frozenset()
    times: Any = 1

    def estimate(self) -> Estimate:
        block, value, core = self.block, self.block.value, self.core
        scope = self.scope(block.buffer)
        total = Estimate.zero(self.n)
        if isinstance(value, Const):
            if scope == "psum" and value.value == 0.0:
                return total
            if block.stage in self.begun:
                return total  # the reduction's first step writes instead
            return self.pointwise(total)
        if isinstance(value, Select) and not any(loads(value)):
            count = 1.0 + len(value.condition)  # `positions`
            cycles = core.minimums[GPSIMD] + self.elements()
            return self.engine(total, GPSIMD, count, cycles)
        sources = {self.scope(found.buffer) for found in loads(value)}
        if isinstance(value, Load) and self.is_dma(sources):
            return self.dma(total, value)
        if isinstance(value, Select) and isinstance(value.then, Load) and self.is_dma(sources):
            self.engine(total, VECTOR, 1.0, core.minimums[VECTOR])  # both sides of each row at once
            return self.dma(total, value.then)
        if block.reducer == "sum" and scope == "psum":
            return self.matmul(total)
        if isinstance(value, Load) and scope == "psum" and sources == {"sbuf"}:
            return self.transpose(total, value)
        return self.pointwise(total)

    def repeated(self, apart: Mapping[str, Any]) -> Estimate:
        """The nest for every point of the unrolled loops `apart`, which it runs over one by one.

        What skips partitions is a stack: an engine that the schedule assigns to it copies all but
        the first from that, on chip (`codegen.accelerator.transfers`).
        """
        one, core = self.estimate(), self.core
        row = self.block.write.indices[0]
        steps = {name: row.coefficient(name) for name in apart}
        stack = [n for n, step in steps.items() if step is not None and step.constant != 0]
        high: Any = 1.0
        for name in stack:
            high = high * apart[name]
        rest: Any = 1.0
        for name in set(apart) - set(stack):
            rest = rest * apart[name]
        sources = {self.scope(found.buffer) for found in loads(self.block.value)}
        copied = bool(self.block.engine and stack and self.is_dma(sources))
        total = Estimate.zero(self.n)
        total.add(one, rest if copied else rest * high)
        total.span = one.span + (0.0 if copied else one.occupied[DMA] * (high - 1))
        if copied:
            elements = self.elements()
            engine = VECTOR if self.block.engine == "vector" else GPSIMD
            each = np.minimum(elements, COPY_ELEMENTS)
            start = core.minimums[engine]
            cycles = each + start if engine == GPSIMD else np.maximum(start, each)
            first = Estimate.zero(self.n)
            self.engine(first, engine, (high - 1) * elements / np.maximum(each, 1), cycles)
            total.add(first, rest)
            total.span = total.span + first.span * each / np.maximum(elements, 1)
            total.span = total.span + core.semaphore_ns + core.latencies[engine]
        return total

    def is_dma(self, sources: set[str]) -> bool:
        """Whether any side is in HBM."""
        return not sources | {self.scope(self.block.buffer)} <= {"sbuf", "psum"}

    def scope(self, name: str) -> str:
        found = self.buffers[name].scope
        return found if found in ("sbuf", "psum") else "hbm"

    def dtype(self, name: str) -> str:
        return self.buffers[name].dtype

    def product(self, names: Any) -> Any:
        result: Any = 1.0
        for name in names:
            result = result * self.sizes[name]
        return result

    def partition(self, found: Load) -> set[str]:
        return set(found.indices[0].variables()) & set(self.sizes)

    def used(self, found: Load) -> set[str]:
        return {n for index in found.indices for n in index.variables()} & set(self.sizes)

    def engine(
        self,
        total: Estimate,
        engine: int,
        count: Any,
        cycles: Any,
        part: float = 1.0,
        psum: bool = False,
    ) -> Estimate:
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

    def matmul(self, total: Estimate) -> Estimate:
        core, written = self.core, self.block.write
        columns = self.partition(written)
        first = next(iter(loads(self.block.value)))
        depth = self.partition(first)
        free = self.used(written) - columns
        rest = set(self.sizes) - columns - depth - free
        count = self.product(rest)
        passes, extra = 1, 0.0
        if self.dtype(first.buffer) == "float32":
            passes, extra = core.fp32_factor, core.fp32_pass_overhead
        cycles = (np.maximum(core.minimums[TENSOR], self.product(free)) + extra) * passes
        total.data[MATMULS] += count
        return self.engine(total, TENSOR, count, cycles)

    def transpose(self, total: Estimate, source: Load) -> Estimate:
        core = self.core
        rows = self.partition(source)
        rest = set(self.sizes) - rows - self.partition(self.block.write)
        count = self.product(rest)
        passes, extra = 1, 0.0
        if self.dtype(source.buffer) == "float32":
            passes, extra = core.fp32_transpose_factor, core.fp32_pass_overhead
        cycles = (np.maximum(core.minimums[TENSOR], self.product(rows)) + extra) * passes
        total.data[TRANSPOSES] += count
        return self.engine(total, TENSOR, count, cycles)

    def dma(self, total: Estimate, source: Load) -> Estimate:
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
        total.span += np.where(whole > 0, time + core.dma_start_ns, 0)
        self.transferred(total, whole * size, pieces, runs)
        if not load:
            total.data[STORED] += whole * size
        return total

    def transferred(self, total: Estimate, moved: Any, transfers: Any, rows: Any) -> None:
        """Count what DMA does."""
        total.data[MOVED] += moved
        total.data[COUNT] += transfers
        total.data[TRANSFERS] += transfers
        total.data[ROWS] += rows

    def picked(self, total: Estimate) -> None:
        """What a gather does first: indices are loaded and brought into their range (`gathers`)."""
        for _ in range(5):
            self.engine(total, VECTOR, 1.0, self.core.minimums[VECTOR])
        total.span += self.core.dma_start_ns

    def laid_out(self, hbm: Load, whole: Any, size: int, rows: AbstractSet[str]) -> Any:
        """Elements of a contiguous run of a constant, which lies in the order of its loads.

        But not where all partitions want the same rows, and these are long.
        """
        piece = np.maximum(whole / np.maximum(1.0, whole * size / DMA_BYTES), 1.0)
        if rows & self.used(hbm):
            return piece
        return np.where(whole * size <= SMALL, piece, self.run(hbm, rows))

    def scattered(self, chip: Load, hbm: Load) -> bool:
        """Whether elements that follow each other in HBM lie apart on chip."""
        for name in hbm.indices[-1].variables() & set(self.sizes):
            step, other = (found.indices[-1].coefficient(name) for found in (hbm, chip))
            moves = step is not None and step.constant == 1 and np.all(self.sizes[name] > 1)
            if moves and name not in self.partition(chip):
                return other is None or other.constant != 1
        return False

    def run(self, hbm: Load, rows: AbstractSet[str] = frozenset()) -> Any:
        """Elements of a contiguous run of an HBM access; DMA walks loops `rows` outermost."""
        buffer, size = self.buffers[hbm.buffer], size_of(self.dtype(hbm.buffer))
        run: Any = 1.0
        whole: Any = True
        left = self.used(hbm)
        for index, extent in zip(reversed(hbm.indices), reversed(buffer.shape), strict=True):
            names = [n for n in index.variables() if n in left]
            left -= set(names)
            apart: Any = False
            if rows & set(names):  # short rows join, then what is around them is run (`outer_axes`)
                apart = self.product(left) > 1
                whole = whole & (~np.asarray(apart) | (run * size < self.core.dma_row_floor))
            count: Any = 1.0
            for name in names:
                odd = index.coefficient(name) is None
                pieces = boxes(hbm, {name: int(np.max(self.sizes[name]))}) if odd else 1
                count = count * self.sizes[name] / pieces
            whole = whole & (not self.skips(index, names))
            run = np.where(whole, run * count, run)
            whole = whole & (count >= (extent.constant or 0)) & ~np.asarray(apart)
        return run

    def skips(self, index: Expr, names: list[str]) -> bool:
        """Whether an index moves in steps longer than one: what it walks lies apart."""
        steps = [index.coefficient(name) for name in names if np.any(self.sizes[name] > 1)]
        known = [abs(step.constant or 0) for step in steps if step is not None]
        return bool(known) and len(known) == len(steps) and min(known) > 1

    def pointwise(self, total: Estimate) -> Estimate:
        """Instructions of an expression, in the generator's order of cuts."""
        core, block = self.core, self.block
        rows = self.partition(block.write)
        elements = self.elements()
        present = self.product(rows) > 0
        pieces = np.maximum(self.boxes(), np.ceil(elements / MAX_ELEMENTS)) * present
        each = elements / np.maximum(pieces, 1)
        several = [_ENGINES.get(name, VECTOR) for name in block.engine.split("|")]
        touched = {block.buffer, *(found.buffer for found in loads(block.value))}
        psum = any(self.scope(name) == "psum" for name in touched)
        rate = 2.0 if self.strided() else 1.0
        for place, (engine, factor) in enumerate(self.instructions(block.value, several[0])):
            for one in several if engine == several[0] else [engine]:
                minimum = core.minimums[one]
                size = each * (factor * rate)
                cycles = size + minimum if one == GPSIMD else np.maximum(minimum, size)
                part = 1 / len(several) if engine == several[0] else 1.0
                self.engine(total, one, pieces, cycles, part, psum and place == 0)
        if block.reducer is not None:
            kept = self.product(self.used(block.write) - rows)
            again = isinstance(block.value, Call) and np.any(kept > 1)
            later = pieces if again else np.maximum(pieces - 1, 0)
            self.engine(total, VECTOR, later, np.maximum(core.minimums[VECTOR], each))
        return self.staged(total, block.value, rows)

    def strided(self) -> bool:
        """Whether instructions read or write elements more than `FULL_RATE_BYTES` apart."""
        block = self.block
        rows, written = self.partition(block.write), self.used(block.write)
        names = [n for n in self.sizes if n not in rows and np.any(self.sizes[n] > 1)]
        kept = [n for n in names if n in written]
        summed = [n for n in names if n not in written]
        again = isinstance(block.value, Call) and kept
        inner = kept if again or not summed else summed
        return bool(inner) and any(
            self.apart(found, inner[-1])
            for found in (block.write, *loads(block.value))
            if self.scope(found.buffer) != "hbm"
        )

    def apart(self, found: Load, name: str) -> bool:
        """Whether one step of a loop moves an access by more than `FULL_RATE_BYTES`."""
        buffer = self.buffers[found.buffer]
        step = size_of(buffer.dtype)
        for index, extent in reversed(list(zip(found.indices, buffer.shape, strict=True))[1:]):
            moved = index.coefficient(name)
            if moved is None:
                return False
            if moved.constant != 0:
                return step * abs(moved.constant or 1) > FULL_RATE_BYTES
            step *= extent.constant or FULL_RATE_BYTES
        return False

    def elements(self) -> Any:
        """Elements a partition that the nest writes or goes over."""
        return self.product(set(self.sizes) - self.partition(self.block.write))

    def boxes(self) -> int:
        """Instructions of a copy whose indices divide, clamp or choose (`copies`), at the most."""
        value = self.block.value
        if not isinstance(value, Load | Select):
            return 1
        return boxes(value, {n: int(np.max(size)) for n, size in self.sizes.items()})

    def staged(self, total: Estimate, value: Scalar, rows: set[str]) -> Estimate:
        """Operands that an epilogue reads straight from HBM."""
        core = self.core
        for found in dict.fromkeys(loads(value)):
            if self.scope(found.buffer) != "hbm":
                continue
            size = size_of(self.dtype(found.buffer))
            elements = self.product(self.used(found) | rows)
            run = self.run(found)
            if found.buffer in self.constants:
                run = self.laid_out(found, elements, size, rows)
            engines, time = _vector_transfer(elements / run, run * size, core)
            share = 1 / self.times if self.unmoved(found) else 1.0
            total.occupied[DMA] += engines * time / core.dma_engines * share
            total.span += (time + core.dma_start_ns) * share
            self.transferred(total, elements * size * share, share, elements / run * share)
        return total

    def stages(self) -> bool:
        """Whether instructions read an operand from HBM that is the same in every run."""
        found = loads(self.block.value)
        return any(self.scope(f.buffer) == "hbm" and self.unmoved(f) for f in found)

    def unmoved(self, found: Load) -> bool:
        """Whether no loop outside the nest moves an access: it is staged once."""
        return all(index.variables() <= set(self.sizes) for index in found.indices)

    def instructions(self, value: Scalar, own: int) -> list[tuple[int, float]]:
        """(engine, cycles an element) of each instruction of an expression."""
        two = self.core.target.number("vector.tensor_tensor_factor")
        if self.block.reducer == "sum" and squared(value) is not None:
            return [(SCALAR, 1.0)]
        found: list[tuple[int, float]] = []
        occurrences = calls(value)
        gone = absorbed(value, self.column, self.full, occurrences)
        for part in occurrences:
            simple = simplify(part)
            assert simple is not None
            function, arguments = simple
            joined = combination(part, self.column, self.full, occurrences)
            if part in gone:
                continue
            if joined is not None:
                full = self.full(joined.other)
                found.append((VECTOR, self.pace(joined.tile, two)) if full else (own, 1.0))
            elif len(arguments) == 1:
                own_engine = function in ("reciprocal", "negate")
                found.append((own if own_engine else SCALAR, 1.0))
            elif function == "where":
                numbers = sum(isinstance(a, Const) for a in arguments[1:2])
                found += [(own, 1.0)] * (1 + numbers) + [(VECTOR, two)]
            else:
                both = all(self.full(a) for a in arguments)
                pace = min(self.pace(a, two) for a in arguments)
                found.append((VECTOR if both else own, pace if both else 1.0))
        return found or [(own, 1.0)]

    def pace(self, value: Scalar, two: float) -> float:
        """Cycles an element of an instruction of two tiles one of which is `value`."""
        return 1.0 if isinstance(value, Load) and self.scope(value.buffer) == "psum" else two

    def column(self, value: Scalar) -> bool:
        """Whether a value is a number, or read from one element a partition."""
        return isinstance(value, Const) or (isinstance(value, Load) and not self.full(value))

    def full(self, value: Scalar) -> bool:
        """Whether a value varies along free axes (is no number and no column)."""
        if isinstance(value, Const):
            return False
        if isinstance(value, Load):
            free = self.used(value) - self.partition(self.block.write)
            return any(np.any(self.sizes[name] > 1) for name in free)
        return True


def _vector_transfer(runs: Any, length: Any, core: Core) -> tuple[Any, Any]:
    """`costs.transfer_time` for arrays of run counts and lengths."""
    count = np.maximum(np.asarray(runs, dtype=np.float64), 1.0).astype(np.int64)
    return transfer_time(count, np.maximum(np.asarray(length), 1.0).astype(np.int64), core)
