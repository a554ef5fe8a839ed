"""Cycles of the core alone, memory ideal: ports, front end, latencies, spills.

One execution of a block's unrolled body costs the largest of what each resource needs:

    arithmetic   operations, and those that widen narrow elements / ports
    loads        distinct loads (a vector that crosses a line counts twice, a gather once for each
                 lane, an element that all lanes share as little of one as it is narrower than what
                 a port moves) and reloads of spilled registers / ports
    stores       distinct stores / ports
    front end    operations issued / width; a load used once folds into its arithmetic
    latency      one dependent operation for each reduction step, hidden as far as the reorder
                 buffer overlaps neighbouring tiles

and, on top, a fitted cost for each spilled register. Short tails are bodies of their own: every
combination of full and short unrolled loops is costed and weighted with how often it occurs.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tilesmith.simulator.cpu.facts import Facts, Floats
from tilesmith.simulator.cpu.footprint import distinct, lowest_bit
from tilesmith.simulator.cpu.machine import CpuCore
from tilesmith.simulator.cpu.skeleton import BlockSite, Skeleton

SPILL_CYCLES = 1.5
"""Cycles between spilled vectors that are stored and loaded again (measured)."""
SPILL_LATENCY = 11.5
"""Cycles until a spilled accumulator is back in a register (measured)."""
SPILL_TWICE = 0.6
"""Chance that some accumulators go through memory twice a step where room is short (counted)."""
SPILL_ROOM = 1.5
"""Spilled accumulators that each operand of a step makes room for at the step's end, beyond three
operands; with more of them room is short (counted)."""
ROTATED_FROM, ROTATED_MORE = 2.0, 6.0
"""Bodies of two steps with so many spilled accumulators spill all of them once, and so many values
more: the register allocator renames a tile from step to step (counted in assembly)."""
WAITING_WINDOW = 0.18
"""Share of the reorder buffer that arithmetic may fill while it waits for operands: the schedulers
are shorter than the buffer (measured)."""
SHARPNESS = 6.5
"""Exponent with which resources that are needed at a time add up to nearly the largest (fitted)."""
LOOP_OPERATIONS = 10.0
"""Operations that a loop's counter, addresses and branch issue in each iteration."""
FORWARD_LATENCY = 9.0
"""Cycles from a store to memory to the next load of the same element plus the operation."""
HORIZONTAL = (10.0, 18.0)
"""Operations of reducing the lanes of a vector, and cycles in which everything waits for them: what
comes next needs the result."""
KEPT = 0.85
"""Share of the vectors that only a later step uses again which hold a register until then (fitted
to depthwise convolutions)."""
SELECT_OPERATIONS = 8.0
"""Operations of the test whether all conditions of an unrolled body hold, as they do but at the
borders: index arithmetic, compare, branch."""
WINDOW_OPERATIONS = 3.0
"""Operations of reading every other element: two loads and a shuffle."""
GATHER_OPERATIONS = 2.0
"""Operations that put one lane of a gather in its place (or take one out for a scatter)."""

COUNTED = ("arithmetic", "issued", "loads", "stores", "steps")
"""What a block's bodies are counted by: operations, those that load and store, reduction steps."""
RESOURCES = ("compute", "l1", "stores", "frontend", "latency", "spills")


@dataclass(frozen=True)
class BlockCost:
    """Cycles of one block in the whole program.

    Attributes:
        cycles: (n,).
        parts: what each of `RESOURCES` alone would need, (6, n).
        registers: vector registers that its body wants, (n,).
        tile: accumulators, (n,).
        executions: of its body, (n,).
        operations: issued in one execution, (n,).
        steps: reduction steps in one execution, (n,).
        rounds: iterations of the loops around it, whether it is taken or not, (n,).
        counts: `COUNTED` in the whole program, (len(COUNTED), n).
    """

    cycles: Floats
    parts: Floats
    registers: Floats
    tile: Floats
    executions: Floats
    operations: Floats
    steps: Floats
    rounds: Floats
    counts: Floats


_TOGETHER = 4096
"""Bodies times configurations that are costed in one go, so that the arrays stay in cache."""


@dataclass(frozen=True)
class _Bodies:
    """V variants of a body: counts of its unrolled loops, (V, U, n), and their weights, (V, n)."""

    counts: Floats
    weight: Floats


def block_cost(
    skeleton: Skeleton, facts: Facts, machine: CpuCore, number: int, rows: range, innermost: bool
) -> BlockCost:
    """Cost of block `number`, whose accesses are `rows` of the facts.

    `innermost`: whether its loop's overhead is charged to it.
    """
    block = skeleton.blocks[number]
    rounds = np.ones(facts.trips.shape[1])
    for loop in block.serial:
        rounds = rounds * facts.trips[loop]
    executions = facts.taken[number] * rounds
    model = _BlockModel(facts, machine, block, rows, innermost)
    shape = executions.shape
    total, parts = np.zeros(shape), np.zeros((len(RESOURCES), *shape))
    counts = np.zeros((len(COUNTED), *shape))
    registers, tile, operations, steps = (np.zeros(shape) for _ in range(4))
    for bodies in _variants(block, facts):
        body_cost = model.cost(bodies.counts)
        total += (bodies.weight * body_cost.cycles).sum(axis=0)
        parts += (bodies.weight * body_cost.parts).sum(axis=1)
        counts += (bodies.weight * body_cost.counts).sum(axis=1)
        operations += (bodies.weight * body_cost.operations).sum(axis=0)
        registers = np.maximum(registers, body_cost.registers.max(axis=0))
        tile = np.maximum(tile, body_cost.tile.max(axis=0))
        steps = np.maximum(steps, body_cost.steps.max(axis=0))
    return BlockCost(
        total * executions,
        parts * executions,
        registers,
        tile,
        executions,
        operations,
        steps,
        rounds,
        counts * executions,
    )


def _variants(block: BlockSite, facts: Facts) -> Iterator[_Bodies]:
    """Every combination of full and short unrolled loops that occurs, some at a time."""
    unrolled = list(block.unrolled)
    full, short, chance = facts.full[unrolled], facts.short[unrolled], facts.chance[unrolled]
    choices = [(False, True) if chance[i].any() else (False,) for i in range(len(unrolled))]
    chosen = np.array(list(itertools.product(*choices)), dtype=np.bool_)[:, :, None]
    some = max(1, _TOGETHER // max(1, full.shape[1]))
    for start in range(0, len(chosen), some):
        here = chosen[start : start + some]
        weight = np.prod(np.where(here, chance, 1.0 - chance), axis=1)
        occurs = weight.any(axis=1)
        if occurs.any():
            yield _Bodies(np.where(here, short, full)[occurs], weight[occurs])


class _BlockModel:
    """Costs the variants of one block."""

    def __init__(
        self,
        facts: Facts,
        machine: CpuCore,
        block: BlockSite,
        rows: range,
        innermost: bool,
    ) -> None:
        self._machine = machine
        self._block = block
        self._facts = facts
        self._innermost = innermost
        outer, inner = len(block.serial), len(block.unrolled)
        self._strides = facts.strides[rows.start : rows.stop, outer : outer + inner]
        self._order = np.argsort(self._strides, axis=1, kind="stable")
        self._sorted = np.take_along_axis(self._strides, self._order, axis=1)
        self._lane = _lane_strides(block, facts, rows)
        self._wide = _vectors(block, facts, machine)
        self._crossing = _crossing(block, facts, machine, rows)
        self._register_reads = sum(a.register and not a.write for a in block.accesses)
        self._register_writes = sum(a.register and a.write for a in block.accesses)
        accumulator = next((a for a in block.accesses if a.write), None)
        self._moves_tile = (
            np.array(accumulator.moves[outer : outer + inner], dtype=bool)
            if accumulator is not None
            else np.zeros(inner, dtype=bool)
        )

    def cost(self, counts: Floats) -> BlockCost:
        """One execution of each of V bodies, whose unrolled loops run `counts` times, (V, U, n).

        All that is found has the shape (V, n).
        """
        machine, block = self._machine, self._block
        points = np.prod(counts, axis=1) * self._wide
        one_step = np.where(self._moves_tile[:, None], counts, 1.0)
        tile = np.prod(one_step, axis=1) * self._wide
        steps = points * block.arithmetic.share / np.maximum(tile, 1e-9)
        memory = self._memory(counts, one_step, points)
        in_registers = block.tile_depth >= 0 and block.accumulates
        wanted = memory.held + (tile if in_registers else 0.0)
        spills = np.zeros_like(points)
        if in_registers and block.arithmetic.unit != "tiles":  # which are counted, and fit
            spills = np.minimum(tile, np.maximum(0.0, wanted - machine.registers))
        each = max(block.arithmetic.operations, 1.0 * block.accumulates)
        arithmetic = points * block.arithmetic.share * each
        arithmetic = arithmetic + memory.widening
        stored = _spilled(spills, steps, tile)
        issued = arithmetic + memory.issued + 2.0 * stored
        issued = issued + SELECT_OPERATIONS * (block.selects > 0)
        if block.arithmetic.horizontal:
            issued = issued + HORIZONTAL[0] * points
        moved = self._evicted(points) if not block.accumulates else np.zeros_like(points)
        if self._innermost:
            issued = issued + LOOP_OPERATIONS
        loads = memory.loads + stored + moved * self._register_reads
        stores = memory.stores + moved * self._register_writes
        parts = np.stack(
            [
                arithmetic / machine.ports(block.arithmetic.unit),
                loads / machine.load_ports,
                stores / machine.store_ports,
                issued / machine.width,
                self._latency(steps, arithmetic, _trips(spills, steps, memory.held)),
                SPILL_CYCLES * stored,
            ]
        )
        cycles = smooth(parts)
        counts = np.stack([arithmetic, issued, loads, stores, steps])
        return BlockCost(cycles, parts, wanted, tile, points, issued, steps, points, counts)

    def _evicted(self, points: Floats) -> Floats:
        """Vectors of register buffers that do not fit the registers, per access of the body."""
        size = np.zeros_like(points)
        for buffer in self._block.pressure:
            size = size + np.ceil(self._facts.capacity[buffer] / self._machine.lanes)
        excess = np.maximum(0.0, size - self._machine.registers)
        return points * excess / np.maximum(size, 1.0)

    def _memory(self, counts: Floats, one_step: Floats, points: Floats) -> "_Memory":
        """Loads, stores, operations issued for them, registers that hold loaded values, and what
        widens these."""
        shape = points.shape
        loads, stores, issued, held, widening = (np.zeros(shape) for _ in range(5))
        uniform = np.zeros(shape)
        folded = np.zeros(shape, dtype=bool)
        inside = [i for i, access in enumerate(self._block.accesses) if not access.register]
        numbers = self._distinct(inside, counts)
        now_numbers = self._distinct(inside, one_step) if self._block.accumulates else numbers
        for place, number, now_number in zip(inside, numbers, now_numbers, strict=True):
            access, lane = self._block.accesses[place], self._lane[place]
            vector = lane == access.size
            window = (lane == 2 * access.size) & (self._wide == 1.0) & (not access.write)
            scattered = (lane > 0) & ~vector & ~window
            each = np.where(scattered, self._lanes(), np.where(vector, self._wide, 1.0))
            each = np.where(window, WINDOW_OPERATIONS - 1.0, each)
            pieces = number * each
            ports = pieces * np.where(vector | window, 1.0 + self._crossing[place], 1.0)
            if access.write:
                stores = stores + ports
                issued = issued + pieces * np.where(scattered, GATHER_OPERATIONS, 1.0)
                continue
            loads = loads + ports * np.where(vector | window, 1.0, self._machine.narrow_loads)
            widening = widening + np.where(vector, pieces, number) * access.widening
            reused = points > number * np.where(vector | scattered, self._wide, 1.0) * 1.001
            kept = np.where(scattered, pieces * GATHER_OPERATIONS, np.where(reused, pieces, 0.0))
            kept = np.where(window, number * WINDOW_OPERATIONS, kept)
            issued = issued + kept
            if not self._block.accumulates:
                continue
            now = now_number * self._wide
            again = np.prod(one_step, axis=1) * self._wide > now * 1.001
            kept = now * np.where(again, 1.0, KEPT)
            held = held + np.where(vector & reused, kept, np.where(scattered, 2.0 + now, 0.0))
            uniform = np.where((lane == 0) & reused, 1.0, uniform)
            folded = folded | (vector & reused) | scattered
        held = held + np.where(folded, uniform, 1.0)
        return _Memory(loads, stores, issued, held, widening)

    def _distinct(self, places: list[int], counts: Floats) -> Floats:
        """Different addresses of some accesses in each body, (accesses, V, n)."""
        if not self._block.unrolled or not places:
            return np.ones((len(places), counts.shape[0], counts.shape[2]))
        order, strides = self._order[places, None], self._sorted[places, None]
        return distinct(strides, np.take_along_axis(counts[None], order, axis=2))

    def _lanes(self) -> Floats:
        """Points a vector holds; one where nothing is vectorised."""
        vector = self._block.vector
        return np.ones(self._wide.shape) if vector is None else self._facts.trips[vector]

    def _latency(self, steps: Floats, arithmetic: Floats, trips: Floats) -> Floats:
        """Cycles in which a chain of dependent updates cannot go faster."""
        block, machine = self._block, self._machine
        if not block.accumulates:
            return np.zeros_like(steps)
        if block.tile_depth < 0:
            same = not block.serial or not self._moves_at(len(block.serial) - 1)
            return np.full_like(steps, FORWARD_LATENCY if same else 0.0)
        chain = machine.fma_latency * max(1, block.arithmetic.latency)
        inner = np.ones_like(steps)
        for loop in block.serial[block.tile_depth :]:
            inner = inner * self._facts.trips[loop]
        window = WAITING_WINDOW * machine.reorder
        overlap = 1.0 + window / np.maximum(arithmetic * inner, 1.0)
        return (steps * chain + trips * SPILL_LATENCY) / overlap

    def _moves_at(self, place: int) -> bool:
        return any(a.write and a.moves[place] for a in self._block.accesses)


def smooth(parts: Floats) -> Floats:
    """Cycles of resources that work at a time, (R, n) to (n,): a little more than the largest."""
    most = np.maximum(parts.max(axis=0), 1e-9)
    return np.asarray(most * ((parts / most) ** SHARPNESS).sum(axis=0) ** (1.0 / SHARPNESS))


def _spilled(spills: Floats, steps: Floats, tile: Floats) -> Floats:
    """Vectors stored and loaded again in a body of `steps` steps with `spills` accumulators."""
    usual = np.where(spills > 0, (spills + 1.0) * steps, 0.0)
    rotated = (steps == 2.0) & (spills >= ROTATED_FROM)
    return np.where(rotated, tile + ROTATED_MORE, usual)


def _trips(spills: Floats, steps: Floats, held: Floats) -> Floats:
    """How often the longest chain of a body goes through memory.

    The operands of a step's last row free their registers for accumulators that wait in memory.
    """
    late = spills > SPILL_ROOM * np.maximum(held - 3.0, 0.0)
    often = np.where(steps == 1.0, 1.0 + SPILL_TWICE * late, steps)
    return np.where(spills > 0, np.where(steps == 2.0, 1.0, often), 0.0)


@dataclass(frozen=True)
class _Memory:
    loads: Floats
    stores: Floats
    issued: Floats
    held: Floats
    widening: Floats


def _lane_strides(block: BlockSite, facts: Facts, rows: range) -> Floats:
    """Bytes from lane to lane of each access, (accesses, n); 0 without a vector loop."""
    if block.vector is None:
        return np.zeros((len(rows), facts.trips.shape[1]))
    return np.asarray(facts.strides[rows.start : rows.stop, len(block.path) - 1])


def _vectors(block: BlockSite, facts: Facts, machine: CpuCore) -> Floats:
    """Vector registers that one execution of the vector loop fills."""
    if block.vector is None:
        return np.ones(facts.trips.shape[1])
    return np.asarray(np.maximum(1.0, np.ceil(facts.full[block.vector] / machine.lanes)))


def _crossing(block: BlockSite, facts: Facts, machine: CpuCore, rows: range) -> Floats:
    """Share of each access's vectors that cross a line, by alignment, (accesses, n)."""
    if block.vector is None:
        return np.zeros((len(rows), facts.trips.shape[1]))
    places = len(block.path) - 1
    chosen = slice(rows.start, rows.stop)
    strides, counts = facts.strides[chosen, :places], facts.counts[chosen, :places]
    bits = np.where(counts > 1, lowest_bit(strides, machine.line), machine.line)
    aligned = bits.min(axis=1) if places else np.full((len(rows), counts.shape[-1]), machine.line)
    aligned = np.minimum(aligned, lowest_bit(facts.offset[chosen], machine.line))
    width = machine.lanes * 4.0
    return np.asarray(np.maximum(0.0, width - aligned) / machine.line)
