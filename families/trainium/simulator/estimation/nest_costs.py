"""What one nest costs, for a batch of configurations, in closed form.

A nest (one block in rectangular loops) becomes the same instructions as in the generator
(`families.trainium.codegen.selection.from_program`), selected by the same specifications: this
module has what each costs, with sizes that are numpy arrays, one element for each configuration,
and the formulas of `families.trainium.codegen.timing.costs`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilesmith.families.kit.programs.strides import boxes
from tilesmith.families.trainium.codegen.selection.loop_nests.patterns import (
    absorbed,
    calls,
    combination,
    squared,
)
from tilesmith.families.trainium.codegen.selection.pointwise import MAX_ELEMENTS
from tilesmith.families.trainium.codegen.selection.transfers import COPY_ELEMENTS
from tilesmith.families.trainium.codegen.timing.engine_costs import FULL_RATE_BYTES
from tilesmith.families.trainium.schedules.building_blocks.activations import simplify
from tilesmith.families.trainium.simulator.estimation.estimate import (
    DMA,
    GPSIMD,
    MATMULS,
    SCALAR,
    TENSOR,
    TRANSPOSES,
    VECTOR,
    StatementCosts,
)
from tilesmith.families.trainium.simulator.estimation.transfer_costs import TransferCost
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.scalar import Call, Const, Load, Scalar, Select, loads

_ENGINES = {"scalar": SCALAR, "gpsimd": GPSIMD}


class NestCost(TransferCost):
    """A rectangular nest: which instructions it becomes, at what cost (as the generator)."""

    def estimate(self) -> StatementCosts:
        return COSTS[self.instruction](self, StatementCosts.zero(self.n))

    def filled(self, total: StatementCosts) -> StatementCosts:
        """Nothing, where the first step of a reduction writes instead."""
        value, psum = self.block.value, self.scope(self.block.buffer) == "psum"
        zero = isinstance(value, Const) and value.value == 0.0
        free = self.block.stage in self.begun or (psum and zero)
        return total if free else self.pointwise(total)

    def chosen(self, total: StatementCosts) -> StatementCosts:
        """Numbers by position: a memset, and a selection for each condition."""
        assert isinstance(self.block.value, Select)
        cycles = self.core.minimums[GPSIMD] + self.elements()
        return self.engine(total, GPSIMD, 1.0 + len(self.block.value.condition), cycles)

    def moved(self, total: StatementCosts) -> StatementCosts:
        return self.dma(total, next(loads(self.block.value)))

    def framed(self, total: StatementCosts) -> StatementCosts:
        """Both sides of each row are filled at once, the inside is loaded; or copied, on chip."""
        source = next(loads(self.block.value))
        if self.scope(source.buffer) != "hbm":
            return self.pointwise(total)
        self.engine(total, VECTOR, 1.0, self.core.minimums[VECTOR])
        return self.dma(total, source)

    def reduced(self, total: StatementCosts) -> StatementCosts:
        """What is reduced straight from HBM costs its load."""
        source = self.block.value
        loaded = isinstance(source, Load) and self.scope(source.buffer) == "hbm"
        return self.moved(total) if loaded else self.pointwise(total)

    def repeated(self, apart: Mapping[str, Any]) -> StatementCosts:
        """The nest for every point of the unrolled loops `apart`, which it runs over one by one.

        What skips partitions is a stack: an engine that the schedule assigns to it copies all but
        the first from that, on chip (`families.trainium.codegen.selection.transfers`).
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
        sources = {self.scope(load.buffer) for load in loads(self.block.value)}
        copied = bool(self.block.engine and stack and self.is_dma(sources))
        total = StatementCosts.zero(self.n)
        total.add(one, rest if copied else rest * high)
        total.span = one.span + (0.0 if copied else one.occupied[DMA] * (high - 1))
        if copied:
            elements = self.elements()
            engine = VECTOR if self.block.engine == "vector" else GPSIMD
            each = np.minimum(elements, COPY_ELEMENTS)
            start = core.minimums[engine]
            cycles = each + start if engine == GPSIMD else np.maximum(start, each)
            first = StatementCosts.zero(self.n)
            self.engine(first, engine, (high - 1) * elements / np.maximum(each, 1), cycles)
            total.add(first, rest)
            total.span = total.span + first.span * each / np.maximum(elements, 1)
            total.span = total.span + core.semaphore_ns + core.latencies[engine]
        return total

    def matmul(self, total: StatementCosts) -> StatementCosts:
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

    def transpose(self, total: StatementCosts) -> StatementCosts:
        core, source = self.core, next(loads(self.block.value))
        rows = self.partition(source)
        rest = set(self.sizes) - rows - self.partition(self.block.write)
        count = self.product(rest)
        passes, extra = 1, 0.0
        if self.dtype(source.buffer) == "float32":
            passes, extra = core.fp32_transpose_factor, core.fp32_pass_overhead
        cycles = (np.maximum(core.minimums[TENSOR], self.product(rows)) + extra) * passes
        total.data[TRANSPOSES] += count
        return self.engine(total, TENSOR, count, cycles)

    def pointwise(self, total: StatementCosts) -> StatementCosts:
        """Instructions of an expression, in the generator's order of cuts."""
        core, block = self.core, self.block
        rows = self.partition(block.write)
        elements = self.elements()
        present = self.product(rows) > 0
        pieces = np.maximum(self.boxes(), np.ceil(elements / MAX_ELEMENTS)) * present
        each = elements / np.maximum(pieces, 1)
        several = [_ENGINES.get(name, VECTOR) for name in block.engine.split("|")]
        touched = {block.buffer, *(load.buffer for load in loads(block.value))}
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
            self.apart(load, inner[-1])
            for load in (block.write, *loads(block.value))
            if self.scope(load.buffer) != "hbm"
        )

    def apart(self, load: Load, name: str) -> bool:
        """Whether one step of a loop moves an access by more than `FULL_RATE_BYTES`."""
        buffer = self.buffers[load.buffer]
        step = size_of(buffer.dtype)
        for index, extent in reversed(list(zip(load.indices, buffer.shape, strict=True))[1:]):
            moved = index.coefficient(name)
            if moved is None:
                return False
            if moved.constant != 0:
                return step * abs(moved.constant or 1) > FULL_RATE_BYTES
            step *= extent.constant or FULL_RATE_BYTES
        return False

    def boxes(self) -> int:
        """Instructions of a copy whose indices divide, clamp or choose (`copies`), at the most."""
        value = self.block.value
        if not isinstance(value, Load | Select):
            return 1
        return boxes(value, {n: int(np.max(size)) for n, size in self.sizes.items()})

    def instructions(self, value: Scalar, own: int) -> list[tuple[int, float]]:
        """(engine, cycles an element) of each instruction of an expression."""
        two = self.core.target.number("vector.tensor_tensor_factor")
        if self.block.reducer == "sum" and squared(value) is not None:
            return [(SCALAR, 1.0)]
        instructions: list[tuple[int, float]] = []
        occurrences = calls(value)
        gone = absorbed(self.column, self.full, occurrences)
        for part in occurrences:
            simple = simplify(part)
            assert simple is not None
            function, arguments = simple
            joined = combination(part, self.column, self.full, occurrences)
            if part in gone:
                continue
            if joined is not None:
                full = self.full(joined.other)
                instructions.append((VECTOR, self.pace(joined.tile, two)) if full else (own, 1.0))
            elif len(arguments) == 1:
                own_engine = function in ("reciprocal", "negate")
                instructions.append((own if own_engine else SCALAR, 1.0))
            elif function == "where":
                numbers = sum(isinstance(a, Const) for a in arguments[1:2])
                instructions += [(own, 1.0)] * (1 + numbers) + [(VECTOR, two)]
            else:
                both = all(self.full(a) for a in arguments)
                pace = min(self.pace(a, two) for a in arguments)
                instructions.append((VECTOR if both else own, pace if both else 1.0))
        return instructions or [(own, 1.0)]

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


COSTS: Mapping[str, Callable[[NestCost, StatementCosts], StatementCosts]] = {
    "memset": NestCost.filled,
    "select": NestCost.chosen,
    "tensor.matmul": NestCost.matmul,
    "tensor.transpose": NestCost.transpose,
    "dma.gather": NestCost.moved,
    "dma.load": NestCost.moved,
    "dma.store": NestCost.moved,
    "framed": NestCost.framed,
    "chosen": NestCost.framed,
    "pointwise": NestCost.pointwise,
    "reduce": NestCost.reduced,
}
"""What a nest costs, by the specification it fits."""
