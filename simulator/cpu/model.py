"""The analytical model: a batch of configurations of one signature becomes cycles with reasons.

Blocks that run together form a *phase*: a loop nest with what is initialised and stored around its
innermost loops. Within a phase computing overlaps with cache misses,

    phase = (core^5 + transfer^5)^(1/5)        (nearly a maximum)

and phases follow one another. `transfer` is bytes over what one core can draw from a level, from
memory less of it where a run begins (`PAGE`), and, as `stalls`, what prefetching does not hide: the
beginnings of contiguous runs, and misses that follow one another into few sets of L1, where lines
to be read wait for lines to be written back.

The form and its constants are fitted to one AVX-512 core: `docs/decisions/0008-cpu-simulator.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tilesmith.simulator.cpu.core import HORIZONTAL, RESOURCES, BlockCost, block_cost, smooth
from tilesmith.simulator.cpu.facts import Facts, Floats
from tilesmith.simulator.cpu.footprint import lowest_bit
from tilesmith.simulator.cpu.machine import CpuCore
from tilesmith.simulator.cpu.skeleton import LoopNode, Skeleton
from tilesmith.simulator.cpu.traffic import LineTraffic, traffic_of

OVERLAP = 5.5
"""Exponent with which computing and moving add up to nearly the larger (fitted)."""
STARTS = (0.5, 1.6)
"""Cycles that a run of lines takes before prefetching follows it, from L2 and beyond (fitted)."""
PAGE = 4096.0
"""Bytes of a run from memory that are fetched one by one before a prefetcher knows what is next: it
learns anew in each page that does not follow the last."""
TILE_CYCLES = 1.3
"""Cycles to begin and end one register tile."""
LOOP_CYCLES = 0.3
"""Cycles to enter an inner loop."""
CONFLICTS = {"read": 8.5, "written": 40.0}
"""Cycles from one miss in a set of L1 to the next in the same set, without and with a line to write
back (measured: columns of matrices whose rows lie 4 KiB apart)."""
SHARED_WINDOW = 0.13
"""Share of the reorder buffer by which neighbouring blocks overlap."""
WRITE_BACK = 0.12
"""Cost of a line written back in terms of one fetched."""
AHEAD_CYCLES = 64.0
"""Moving that a prefetcher begins while the phase before still computes: some 32 lines from L2."""
CALL_CYCLES = 120.0
"""Cycles to call a kernel."""

LEVELS = ("l2", "l3", "memory")
TERMS = (*RESOURCES, "tiles", *LEVELS, "stalls")


@dataclass(frozen=True)
class PhaseCost:
    """One phase of n configurations.

    Attributes:
        blocks: indices of its blocks.
        cycles: in all, (n,).
        terms: cycles of each of `TERMS` by itself, (len(TERMS), n).
        core, waiting: computing and moving before they overlap, (n,).
        costs: of its blocks, in order.
    """

    blocks: tuple[int, ...]
    cycles: Floats
    terms: Floats
    core: Floats
    waiting: Floats
    costs: tuple[BlockCost, ...]


@dataclass(frozen=True)
class ProgramCost:
    """What n configurations of one signature cost.

    Attributes:
        cycles: (n,).
        phases: in program order.
        traffic: lines moved.
    """

    cycles: Floats
    phases: tuple[PhaseCost, ...]
    traffic: LineTraffic


def program_cost(
    skeleton: Skeleton, facts: Facts, machine: CpuCore, cold: bool = False
) -> ProgramCost:
    """Cost every configuration of the batch; `cold`: weights start in memory."""
    traffic = traffic_of(skeleton, facts, machine, cold)
    starts = _row_ranges(skeleton)
    innermost = _overhead_blocks(skeleton.root)
    costs = {
        number: block_cost(skeleton, facts, machine, number, starts[number], number in innermost)
        for number in range(len(skeleton.blocks))
    }
    tiles = _tile_cycles(skeleton, facts)
    conflicts = _conflicts(skeleton, traffic, machine)
    phases = []
    for item in skeleton.root.items:
        node = LoopNode(-1, (item,))
        nest = [
            _phase(blocks, costs, traffic, conflicts, tiles, facts, machine)
            for blocks in phases_of(node)
        ]
        phases += _interleaved(nest, _rounds(skeleton, facts, node)) if len(nest) > 1 else nest
    total = np.full(facts.trips.shape[1], CALL_CYCLES)
    for phase in phases:
        total = total + phase.cycles
    if machine.threads > 1:
        total = total + machine.barrier * len(skeleton.root.items)
    return ProgramCost(total, tuple(phases), traffic)


def phases_of(node: LoopNode) -> list[tuple[int, ...]]:
    """Blocks grouped into phases: a block beside inner loops joins the first phase of the next.

    One behind the last loop belongs to that loop's last phase.
    """
    if not any(isinstance(item, LoopNode) for item in node.items):
        return [tuple(node.blocks())] if node.items else []
    grouped: list[tuple[int, ...]] = []
    waiting: list[int] = []
    for item in node.items:
        if isinstance(item, int):
            waiting.append(item)
            continue
        phases = phases_of(item)
        if not phases:
            continue
        if waiting:
            phases[0] = (*waiting, *phases[0])
            waiting = []
        grouped += phases
    if waiting and grouped:
        grouped[-1] = (*grouped[-1], *waiting)
    elif waiting:
        grouped.append(tuple(waiting))
    return grouped


def _phase(
    blocks: tuple[int, ...],
    costs: Mapping[int, BlockCost],
    traffic: LineTraffic,
    conflicts: Floats,
    tiles: Mapping[int, Floats],
    facts: Facts,
    machine: CpuCore,
) -> PhaseCost:
    shape = facts.trips.shape[1]
    threads, imbalance = _threads(facts, machine, blocks[0])
    members = [costs[number] for number in blocks]
    overhead = np.zeros(shape)
    for number in blocks:
        overhead = overhead + tiles[number]
    parts = np.zeros((len(RESOURCES), shape))
    for member in members:
        parts = parts + member.parts
    core = _overlapped(members, parts, overhead, machine)
    share = imbalance / threads
    moved = _moved(blocks, traffic, conflicts, threads, machine)
    transfer, stall, waiting = (cycles * share for cycles in moved)
    core, overhead, parts = core * share, overhead * share, parts * share
    cycles = (core**OVERLAP + waiting**OVERLAP) ** (1.0 / OVERLAP)
    terms = np.concatenate([parts, overhead[None], transfer, stall[None]])
    return PhaseCost(blocks, cycles, terms, core, waiting, tuple(members))


def _moved(
    blocks: tuple[int, ...],
    traffic: LineTraffic,
    conflicts: Floats,
    threads: Floats,
    machine: CpuCore,
) -> tuple[Floats, Floats, Floats]:
    """Cycles of what blocks move: by bandwidth from each level, (3, n), stalls, both, (n,)."""
    rows = [i for i, block in enumerate(traffic.blocks) if block in blocks]
    private = np.array([1.0, 0.0, 0.0])[:, None]
    cores = np.array([1.0, *machine.shared])[:, None]
    common = np.minimum(threads, cores) / threads
    cycles_a_line = machine.line / np.array(machine.bandwidth)[:, None]
    cycles_a_line = cycles_a_line * (private + (1.0 - private) / common)
    shape = threads.shape
    transfer, stall, waiting = np.zeros((3, *shape)), np.zeros(shape), np.zeros(shape)
    for row in rows:
        moved = traffic.moved[:, row] * (WRITE_BACK if traffic.back[row] else 1.0)
        own = np.maximum(moved - np.append(moved[1:], np.zeros((1, *shape)), axis=0), 0.0)
        own = own * cycles_a_line
        if not traffic.back[row]:
            own[2] += _begun(moved[2], traffic.far_run[row], cycles_a_line[2], machine)
        transfer += own
        waits = np.maximum(own.sum(axis=0), conflicts[row])
        if not traffic.back[row]:
            run = np.maximum(traffic.run[row] / machine.line, 1.0)
            near, far = np.maximum(moved[0] - moved[1], 0.0), moved[1]
            waits = waits + (STARTS[0] * near + STARTS[1] * far) / run
        waiting += waits
        stall += waits - own.sum(axis=0)
    return transfer, stall, waiting


def _begun(lines: Floats, run: Floats, cycles_a_line: Floats, machine: CpuCore) -> Floats:
    """Cycles that lines from memory take more because nobody foresees the first of a run, (n,)."""
    share = np.minimum(1.0, PAGE / np.maximum(run, machine.line))
    return np.asarray(
        lines * share * np.maximum(machine.line / machine.scattered - cycles_a_line, 0)
    )


def _rounds(skeleton: Skeleton, facts: Facts, node: LoopNode) -> Floats:
    """Iterations of the loops around all blocks of a nest."""
    paths = [skeleton.blocks[number].serial for number in node.blocks()]
    rounds = np.ones(facts.trips.shape[1])
    for loops in zip(*paths, strict=False):
        if len(set(loops)) > 1:
            break
        rounds = rounds * facts.trips[loops[0]]
    return rounds


def _interleaved(nest: list[PhaseCost], rounds: Floats) -> list[PhaseCost]:
    """Phases that take turns: what one of them moves in a round of few lines overlaps with all."""
    computing, moving = np.zeros_like(rounds), np.zeros_like(rounds)
    for phase in nest:
        ahead = np.minimum(1.0, AHEAD_CYCLES * rounds / np.maximum(phase.waiting, 1e-9))
        waiting = (1.0 - ahead) * phase.waiting
        computing += (phase.core**OVERLAP + waiting**OVERLAP) ** (1.0 / OVERLAP)
        moving += ahead * phase.waiting
    total = (computing**OVERLAP + moving**OVERLAP) ** (1.0 / OVERLAP)
    scale = total / sum((phase.cycles for phase in nest), np.zeros_like(rounds))
    return [replace(phase, cycles=phase.cycles * scale) for phase in nest]


def _overlapped(
    members: list[BlockCost], parts: Floats, overhead: Floats, machine: CpuCore
) -> Floats:
    """Core cycles of blocks that follow one another, and of beginning and ending their tiles.

    As far as the reorder buffer holds one round of them all, they share the resources (the largest
    sum counts) and the overhead hides; beyond, each waits for the one before.
    """
    apart = overhead.copy()
    issued = np.zeros(parts.shape[1])
    for member in members:
        apart = apart + member.cycles
        issued = issued + member.operations * member.executions
    together = smooth(parts)
    rounds = np.min(np.stack([np.maximum(member.rounds, 1.0) for member in members]), axis=0)
    window = SHARED_WINDOW * machine.reorder
    share = np.minimum(1.0, window / np.maximum(issued / rounds, 1.0))
    return np.asarray(share * np.minimum(together, apart) + (1.0 - share) * apart)


def _threads(facts: Facts, machine: CpuCore, block: int) -> tuple[Floats, Floats]:
    """(threads that share a phase, slowest thread's share over the mean)."""
    slices = facts.slices[block]
    threads = np.minimum(float(machine.threads), np.maximum(slices, 1.0))
    return threads, np.ceil(slices / threads) * threads / np.maximum(slices, 1.0)


def _conflicts(skeleton: Skeleton, traffic: LineTraffic, machine: CpuCore) -> Floats:
    """Cycles that misses need which fall into few sets of L1, (entries, n)."""
    accesses = [access for block in skeleton.blocks for access in block.accesses]
    rewritten = _rewritten(skeleton)
    cycles = np.zeros_like(traffic.run)
    way = machine.sets[0] * machine.line
    for entry, row in enumerate(traffic.rows):
        if traffic.back[entry]:
            continue
        again = accesses[row].buffer in rewritten[traffic.blocks[entry]]
        period = way / lowest_bit(traffic.pitch[entry], way)
        sets = np.minimum(period, np.maximum(traffic.streams[entry], 1.0))
        sets = sets * np.maximum(traffic.run[entry] / machine.line, 1.0)
        each = CONFLICTS["written" if again else "read"] / sets
        cycles[entry] = traffic.moved[0, entry] * each * (traffic.pitch[entry] > 0)
    return cycles


def _rewritten(skeleton: Skeleton) -> dict[int, set[int]]:
    """For each block the buffers that its phase both reads and writes."""
    both_ways = {}
    for phase in phases_of(skeleton.root):
        inside = [access for number in phase for access in skeleton.blocks[number].accesses]
        written = {access.buffer for access in inside if access.write and not access.register}
        both = {access.buffer for access in inside if not access.write} & written
        both_ways.update(dict.fromkeys(phase, both))
    return both_ways


def _row_ranges(skeleton: Skeleton) -> list[range]:
    """The rows of `Facts.strides` that belong to each block."""
    ranges, start = [], 0
    for block in skeleton.blocks:
        ranges.append(range(start, start + len(block.accesses)))
        start += len(block.accesses)
    return ranges


def _overhead_blocks(node: LoopNode) -> set[int]:
    """The first block of every loop without loops inside: it pays for the loop's counter."""
    nodes = [item for item in node.items if isinstance(item, LoopNode)]
    if not nodes:
        return (
            {item for item in node.items[:1] if isinstance(item, int)} if node.loop >= 0 else set()
        )
    return set().union(*(_overhead_blocks(inner) for inner in nodes))


def _tile_cycles(skeleton: Skeleton, facts: Facts) -> dict[int, Floats]:
    """Cycles to begin tiles and enter loops, charged to each block that updates a tile."""
    shape = facts.trips.shape[1]
    cycles_of = {}
    for number, block in enumerate(skeleton.blocks):
        cycles = np.zeros(shape)
        if block.arithmetic.horizontal:
            rounds = np.prod(facts.trips[list(block.serial)], axis=0)
            cycles = HORIZONTAL[1] * facts.taken[number] * rounds
        if block.accumulates and block.tile_depth >= 0:
            entered = facts.taken[number].copy()
            for place, loop in enumerate(block.serial):
                if place == block.tile_depth:
                    cycles = cycles + TILE_CYCLES * entered
                if place >= block.tile_depth:
                    cycles = cycles + LOOP_CYCLES * entered * (facts.full[loop] > 1.0)
                entered = entered * facts.trips[loop]
            if len(block.serial) == block.tile_depth:
                cycles = cycles + TILE_CYCLES * entered
        elif block.serial:
            entered = facts.taken[number].copy()
            for loop in block.serial[:-1]:
                entered = entered * facts.trips[loop]
            cycles = cycles + LOOP_CYCLES * entered
        cycles_of[number] = cycles
    return cycles_of
