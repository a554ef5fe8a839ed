"""The analytical fidelity: one symbolic program, thousands of configurations, in numpy.

The program's structure is walked once for a whole batch; tile sizes are arrays with one element
for each configuration. Every statement gets the time it occupies each engine, and the span from
its start to its last result when run alone. They compose as the hardware does:

    nest        instructions x issue time on one engine; span = that + latency (DMA: + start time)
    sequence    occupancies add; spans add (each statement needs the one before)
    loop        n iterations, d copies of its tiles: the first takes its span, each further one the
                longest occupancy, or 1/d of the span if that is longer

The estimate is the whole program's span, and never less than the longest occupancy. Extents that
differ in the last iteration (tails) are evaluated for it and for the others, so sums are exact.

Costs of instructions are those of the timeline (`codegen.accelerator.costs`), in closed form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.accelerator.core import ENGINES, Core
from codegen.accelerator.costs import transfer_time
from codegen.accelerator.from_program import DMA_BYTES, split_pipeline
from codegen.accelerator.nests import Evaluate, compile_expression, match_nest
from codegen.accelerator.pointwise import MAX_ELEMENTS, calls, simplify
from search_space.dtypes import size_of
from search_space.expression import Expr
from search_space.program import (
    Allocate,
    Block,
    Buffer,
    If,
    Intrinsic,
    Loop,
    Program,
    Sequence,
    Statement,
    walk,
)
from search_space.scalar import Const, Load, Scalar, Select, loads

Array = NDArray[np.float64]
Values = dict[str, Any]

RESOURCES = (*ENGINES, "dma")
TENSOR, VECTOR, SCALAR, GPSIMD, DMA = range(len(RESOURCES))
MOVED, COUNT, TRANSPOSES = range(len(RESOURCES), len(RESOURCES) + 3)

BALANCE = 8
"""Exponent of the norm that combines occupancies: large, so nearly their maximum."""


@dataclass
class Estimate:
    """Cost of a statement for each configuration of a batch.

    Attributes:
        data: shape (8, n): ns that each of `RESOURCES` is occupied, then bytes to and from HBM,
            instructions, and transposes on the tensor engine.
        span: ns from start to last result, run alone, shape (n,).
        steady: ns each run takes when runs follow each other (inner loops' tiles are made
            ahead), or None where that is the span.
    """

    data: Array
    span: Array
    steady: Array | None = None

    @property
    def repeated(self) -> Array:
        """`steady`, or the span."""
        return self.span if self.steady is None else self.steady

    @classmethod
    def zero(cls, n: int) -> Estimate:
        return cls(np.zeros((len(RESOURCES) + 3, n)), np.zeros(n))

    def add(self, other: Estimate, times: Any = 1.0) -> None:
        """Add `times` runs of another; its span is left to the caller."""
        self.data += other.data * times

    @property
    def occupied(self) -> Array:
        """ns of each resource, shape (5, n)."""
        return self.data[: len(RESOURCES)]

    @property
    def moved(self) -> Array:
        row: Array = self.data[MOVED]
        return row

    @property
    def count(self) -> Array:
        row: Array = self.data[COUNT]
        return row

    @property
    def transposes(self) -> Array:
        row: Array = self.data[TRANSPOSES]
        return row

    @property
    def step(self) -> Array:
        """Occupancies combined: nearly the longest, more where two are alike and get in each
        other's way.
        """
        peak = np.maximum(self.occupied.max(axis=0), 1e-9)
        combined: Array = peak * ((self.occupied / peak) ** BALANCE).sum(axis=0) ** (1 / BALANCE)
        return combined

    @property
    def latency(self) -> Array:
        """ns: the estimate."""
        return np.maximum(self.span, self.step)


@dataclass
class Analysis:
    """A symbolic program, ready to be evaluated on batches."""

    program: Program
    core: Core
    mentioned: dict[int, frozenset[str]] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    rebuilt: dict[tuple[int, str], Loop] = field(default_factory=dict)
    compiled: dict[int, Evaluate] = field(default_factory=dict)
    nests: dict[int, tuple[tuple[Loop, ...], Block] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.buffers = {b.name: b for b in self.program.parameters}
        for statement in walk(self.program.body):
            if isinstance(statement, Allocate):
                self.buffers[statement.buffer.name] = statement.buffer

    def evaluate(self, tiles: Mapping[str, Any], n: int) -> Estimate:
        """Estimate for `n` configurations whose tile sizes are arrays of n integers."""
        self.n = n
        self.memo: dict[tuple[Any, ...], Estimate] = {}
        self.tiles = frozenset(tiles)
        return self.statement(self.program.body, dict(tiles))

    # -- statements ---------------------------------------------------------------------------
    def statement(self, statement: Statement, values: Values) -> Estimate:
        """Estimate of a statement; remembered for the values of the loops it depends on."""
        names = self.variables(statement)
        key = (
            id(statement),
            *(_key(values[n]) for n in names if n in values and n not in self.tiles),
        )
        if key not in self.memo:
            self.memo[key] = self.fresh(statement, values)
        return self.memo[key]

    def fresh(self, statement: Statement, values: Values) -> Estimate:
        if id(statement) not in self.nests:
            self.nests[id(statement)] = match_nest(statement)
        nest = self.nests[id(statement)]
        if nest is not None:
            return self.nest(*nest, values)
        match statement:
            case Loop():
                return self.loop(statement, values)
            case Sequence(statements):
                return self.total(list(statements), values)
            case Allocate(_, body) | Intrinsic(_, body):
                return self.statement(body, values)
            case If(_, then, otherwise):
                # Both branches cost alike wherever this occurs (first or last step of a reduction).
                return self.statement(then if otherwise is None else otherwise, values)
            case _:
                raise AssertionError(type(statement))

    def loop(self, loop: Loop, values: Values) -> Estimate:
        extent = self.value(loop.extent, values)
        usual = self.statement(loop.body, {**values, loop.variable: 0})
        last = usual
        if loop.variable in self.variables(loop.body) and np.any(extent > 1):
            last = self.statement(loop.body, {**values, loop.variable: extent - 1})
        many = np.maximum(extent - 1, 0)
        total = Estimate.zero(self.n)
        total.add(usual, many)
        total.add(last, extent > 0)
        total.span = np.where(extent > 1, usual.span, last.span) * (extent > 0)
        total.steady = np.zeros(self.n)
        for part, times, at in (
            (usual, np.maximum(many - 1, 0), 0),
            (last, extent > 1, np.maximum(extent - 1, 0)),
        ):
            if np.any(times):
                step = self.further(loop, part, {**values, loop.variable: at})
                total.span = total.span + step * times
                total.steady = total.steady + step * times
        if split_pipeline(loop.body)[0]:
            first = np.where(extent > 1, self.further(loop, usual, {**values, loop.variable: 0}), 0)
            once = {**values, loop.variable: np.maximum(extent - 1, 0)}
            only = np.where(extent == 1, self.further(loop, last, once), 0)
            total.steady = total.steady + first + only
        else:
            total.steady = total.span
        return total

    def further(self, loop: Loop, part: Estimate, values: Values) -> Array:
        """ns that one more iteration of a loop adds.

        Iterations that share no tile follow each other as fast as the engines allow. With d copies
        of the tiles made in the body, d iterations are under way at once. With one, the next
        tile's load follows the last sweep over the present one, and the first sweep follows the
        load: what is longer than these two sweeps shows.
        """
        allocations, makers, users = split_pipeline(loop.body)
        if not allocations:
            return part.step
        made = self.total(makers, values)
        used = self.total(users, values)
        count = self.sweeps(users[0], values)
        if loop.stages > 1:
            share = np.maximum(part.step, part.span / loop.stages)
            return share if count is None else np.asarray(np.maximum(share, used.repeated))
        sweep = used.repeated / (1 if count is None else count)
        bare: Array = np.maximum(0.0, made.span - 2 * sweep)
        chain = made.span - made.occupied[DMA] - self.core.dma_start_ns
        bare = np.where(made.occupied[TENSOR] > 0, np.maximum(bare, chain), bare)
        return np.asarray(np.maximum(part.step, used.repeated + bare))

    def total(self, statements: list[Statement], values: Values) -> Estimate:
        total, steady = Estimate.zero(self.n), np.zeros(self.n)
        for statement in statements:
            found = self.statement(statement, values)
            total.add(found)
            total.span = total.span + found.span
            steady = steady + found.repeated
        total.steady = np.minimum(steady, total.span)
        return total

    def sweeps(self, statement: Statement, values: Values) -> Any:
        """How often the users of a tile go over it: the iterations of their outermost loop.

        None where they are a single nest.
        """
        while isinstance(statement, Allocate):
            statement = statement.body
        if isinstance(statement, Loop) and match_nest(statement) is None:
            return np.maximum(self.value(statement.extent, values), 1)
        return None

    def variables(self, body: Statement) -> frozenset[str]:
        """Variables that extents inside a statement depend on."""
        if id(body) not in self.mentioned:
            names: set[str] = set()
            for inner in walk(body):
                if isinstance(inner, Loop):
                    names |= inner.extent.variables()
            self.mentioned[id(body)] = frozenset(names)
        return self.mentioned[id(body)]

    def value(self, expression: Expr, values: Values) -> Any:
        key = id(expression)
        if key not in self.compiled:
            self.compiled[key] = compile_expression(expression, True)
        return self.compiled[key](values)

    # -- nests --------------------------------------------------------------------------------
    def nest(self, loops: tuple[Loop, ...], block: Block, values: Values) -> Estimate:
        """One block in its loops; loops that extents depend on are run."""
        for position, loop in enumerate(loops):
            if any(loop.variable in other.extent.variables() for other in loops):
                key = (id(block), loop.variable)
                if key not in self.rebuilt:
                    rest = _rebuild(loops[:position] + loops[position + 1 :], block)
                    self.rebuilt[key] = Loop(loop.variable, loop.extent, "serial", rest)
                return self.loop(self.rebuilt[key], values)
        sizes = {loop.variable: self.value(loop.extent, values) for loop in loops}
        return _Leaf(self, block, sizes).estimate()


def _key(value: Any) -> Any:
    return value if isinstance(value, int) else value.tobytes()


def _rebuild(loops: tuple[Loop, ...], block: Block) -> Statement:
    statement: Statement = block
    for loop in reversed(loops):
        statement = Loop(loop.variable, loop.extent, loop.kind, statement, loop.stages)
    return statement


@dataclass
class _Leaf:
    """A rectangular nest: which instructions it becomes, at what cost (as the generator)."""

    analysis: Analysis
    block: Block
    sizes: dict[str, Any]

    def estimate(self) -> Estimate:
        block, value, core = self.block, self.block.value, self.analysis.core
        scope = self.scope(block.buffer)
        total = Estimate.zero(self.analysis.n)
        if isinstance(value, Const):
            if scope == "psum" and value.value == 0.0:
                return total
            return self.pointwise(total)
        sources = {self.scope(found.buffer) for found in loads(value)}
        if isinstance(value, Load) and not (sources | {scope}) <= {"sbuf", "psum"}:
            return self.dma(total, value)
        if isinstance(value, Select) and isinstance(value.then, Load):
            self.engine(total, VECTOR, len(value.condition), core.minimums[VECTOR])
            return self.dma(total, value.then)
        if block.reducer == "sum" and scope == "psum":
            return self.matmul(total)
        if isinstance(value, Load) and scope == "psum" and sources == {"sbuf"}:
            return self.transpose(total, value)
        return self.pointwise(total)

    def scope(self, name: str) -> str:
        found = self.analysis.buffers[name].scope
        return found if found in ("sbuf", "psum") else "hbm"

    def dtype(self, name: str) -> str:
        return self.analysis.buffers[name].dtype

    def product(self, names: Any) -> Any:
        result: Any = 1.0
        for name in names:
            result = result * self.sizes[name]
        return result

    def partition(self, found: Load) -> set[str]:
        return set(found.indices[0].variables()) & set(self.sizes)

    def used(self, found: Load) -> set[str]:
        return {n for index in found.indices for n in index.variables()} & set(self.sizes)

    def engine(self, total: Estimate, engine: int, count: Any, cycles: Any) -> Estimate:
        core = self.analysis.core
        time = count * cycles / core.clocks[engine]
        total.occupied[engine] += time
        total.span += np.where(
            count > 0, time + core.latencies[engine] / core.clocks[engine] + core.semaphore_ns, 0
        )
        total.data[COUNT] += count
        return total

    def matmul(self, total: Estimate) -> Estimate:
        core, written = self.analysis.core, self.block.write
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
        return self.engine(total, TENSOR, count, cycles)

    def transpose(self, total: Estimate, source: Load) -> Estimate:
        core = self.analysis.core
        rows = self.partition(source)
        rest = set(self.sizes) - rows - self.partition(self.block.write)
        count = self.product(rest)
        passes, extra = 1, 0.0
        if self.dtype(source.buffer) == "float32":
            passes, extra = core.fp32_factor, core.fp32_pass_overhead
        cycles = (np.maximum(core.minimums[TENSOR], self.product(rows)) + extra) * passes
        total.data[TRANSPOSES] += count
        return self.engine(total, TENSOR, count, cycles)

    def dma(self, total: Estimate, source: Load) -> Estimate:
        """Transfers: contiguous runs in HBM follow from the innermost index."""
        core, written = self.analysis.core, self.block.write
        load = self.scope(written.buffer) == "sbuf"
        chip, hbm = (written, source) if load else (source, written)
        size = size_of(self.dtype(chip.buffer))
        run = self.run(hbm)
        whole = self.product(self.sizes)
        runs = whole / run
        engines, time = _vector_transfer(runs, run * size, core)
        busy = engines * time / core.dma_engines
        pieces = np.maximum(1.0, whole * size / DMA_BYTES)
        total.occupied[DMA] += np.maximum(busy, whole * size / core.hbm_bytes_per_ns)
        total.span += np.where(whole > 0, time + core.dma_start_ns, 0)
        total.data[MOVED] += whole * size
        total.data[COUNT] += pieces
        return total

    def run(self, hbm: Load) -> Any:
        """Elements of a contiguous run of an HBM access."""
        buffer = self.analysis.buffers[hbm.buffer]
        run: Any = 1.0
        whole: Any = True
        for index, extent in zip(reversed(hbm.indices), reversed(buffer.shape), strict=True):
            names = [
                n for n in index.variables()
                if n in self.sizes and index.coefficient(n) is not None
            ]  # fmt: skip
            count = self.product(names)
            run = np.where(whole, run * count, run)
            whole = whole & (count >= (extent.constant or 0))
        return run

    def pointwise(self, total: Estimate) -> Estimate:
        """Instructions of an expression, in the generator's order of cuts."""
        core, block = self.analysis.core, self.block
        rows = self.partition(block.write)
        elements = self.product(set(self.sizes) - rows)
        present = self.product(rows) > 0
        pieces = np.maximum(1.0, np.ceil(elements / MAX_ELEMENTS)) * present
        each = elements / np.maximum(pieces, 1)
        own = {"scalar": SCALAR, "gpsimd": GPSIMD}.get(block.engine, VECTOR)
        for engine, factor in self.instructions(block.value, own):
            minimum = core.minimums[engine]
            size = each * factor
            cycles = size + minimum if engine == GPSIMD else np.maximum(minimum, size)
            self.engine(total, engine, pieces, cycles)
        if block.reducer is not None:
            self.engine(total, VECTOR, pieces, np.maximum(core.minimums[VECTOR], each))
        return self.staged(total, block.value, rows)

    def staged(self, total: Estimate, value: Scalar, rows: set[str]) -> Estimate:
        """Operands that an epilogue reads straight from HBM."""
        core = self.analysis.core
        for found in dict.fromkeys(loads(value)):
            if self.scope(found.buffer) != "hbm":
                continue
            size = size_of(self.dtype(found.buffer))
            run = self.run(found)
            elements = self.product(self.used(found) | rows)
            engines, time = _vector_transfer(elements / run, run * size, core)
            total.occupied[DMA] += engines * time / core.dma_engines
            total.span += time + core.dma_start_ns
            total.data[MOVED] += elements * size
            total.data[COUNT] += 1
        return total

    def instructions(self, value: Scalar, own: int) -> list[tuple[int, float]]:
        """(engine, cycles an element) of each instruction of an expression."""
        two = self.analysis.core.target.number("vector.tensor_tensor_factor")
        found: list[tuple[int, float]] = []
        for part in calls(value):
            simple = simplify(part)
            assert simple is not None
            function, arguments = simple
            if len(arguments) == 1:
                own_engine = function in ("reciprocal", "negate")
                found.append((own if own_engine else SCALAR, 1.0))
            elif function == "where":
                found += [(own, two)] * 3
            else:
                both = all(self.full(a) for a in arguments)
                found.append((VECTOR if both else own, two if both else 1.0))
        return found or [(own, 1.0)]

    def full(self, value: Scalar) -> bool:
        """Whether a value varies along free axes (is no number and no column)."""
        if isinstance(value, Const):
            return False
        if isinstance(value, Load):
            return bool(self.used(value) - self.partition(self.block.write))
        return True


def _vector_transfer(runs: Any, length: Any, core: Core) -> tuple[Any, Any]:
    """`costs.transfer_time` for arrays of run counts and lengths."""
    count = np.maximum(np.asarray(runs, dtype=np.float64), 1.0).astype(np.int64)
    return transfer_time(count, np.maximum(np.asarray(length), 1.0).astype(np.int64), core)


def features(estimate: Estimate, roofline: float) -> NDArray[np.float32]:
    """What a cost model learns from, shape (n, 10): logarithms of times, bytes and counts."""
    columns = [
        *estimate.occupied,
        estimate.span,
        estimate.moved,
        estimate.count,
        estimate.transposes,
        estimate.latency / max(roofline, 1e-9),
    ]
    return np.log2(np.stack(columns, axis=1) + 1.0).astype(np.float32)
