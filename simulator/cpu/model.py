"""The analytical model: a batch of configurations of one signature becomes cycles with reasons.

Blocks that run together form a *phase*: a loop nest with what is initialised and stored around its
innermost loops. Within a phase computing overlaps with cache misses,

    phase = (core^8 + transfer^8)^(1/8) + stalls        (nearly a maximum)

and phases follow one another. `transfer` is bytes over what one core can draw from a level;
`stalls` are the misses that no prefetcher hides: short contiguous runs that lie a multiple of 2 KiB
apart.

The form and its constants are fitted to one AVX-512 core: `docs/decisions/0008-cpu-simulator.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simulator.cpu.core import RESOURCES, BlockCost, block_cost
from simulator.cpu.facts import Facts, Floats
from simulator.cpu.footprint import lowest_bit
from simulator.cpu.machine import Machine
from simulator.cpu.skeleton import Node, Skeleton
from simulator.cpu.traffic import Traffic, traffic_of

OVERLAP = 8.0
TILE_CYCLES = 4.0
"""Cycles to begin and end one register tile."""
LOOP_CYCLES = 1.8
"""Cycles to enter an inner loop."""
STALLS = {"read": (1.7, 4.5), "written": (4.0, 20.0)}
"""Stall cycles of a line that begins a contiguous run while neighbouring runs lie an odd multiple
of 2 KiB, or a multiple of 4 KiB, apart: they fall into few sets, and a load that follows a store to
the same place of another page waits for it. Other runs are prefetched in time (fitted)."""
PAGE = 4096
LINE = 64.0
SHARED_WINDOW = 0.11
"""Share of the reorder buffer by which neighbouring blocks overlap."""
WRITE_BACK = 0.6
"""Cost of a line written back in terms of one fetched."""
BARRIER_CYCLES = 2000.0
"""Cycles in which threads meet after a root statement."""
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
        core: the core's share before overlapping, (n,).
        costs: of its blocks, in order.
    """

    blocks: tuple[int, ...]
    cycles: Floats
    terms: Floats
    core: Floats
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
    traffic: Traffic


def program_cost(
    skeleton: Skeleton, facts: Facts, machine: Machine, cold: bool = False
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
    stalls = _stalls(skeleton, traffic)
    found = []
    for blocks in phases_of(skeleton.root):
        found.append(_phase(blocks, costs, traffic, stalls, tiles, facts, machine))
    total = np.full(facts.trips.shape[1], CALL_CYCLES)
    for phase in found:
        total = total + phase.cycles
    if machine.threads > 1:
        total = total + BARRIER_CYCLES * len(skeleton.root.items)
    return ProgramCost(total, tuple(found), traffic)


def phases_of(node: Node) -> list[tuple[int, ...]]:
    """Blocks grouped into phases: a block beside inner loops joins the first phase of the next.

    One behind the last loop belongs to that loop's last phase.
    """
    if not any(isinstance(item, Node) for item in node.items):
        return [tuple(node.blocks())] if node.items else []
    found: list[tuple[int, ...]] = []
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
        found += phases
    if waiting and found:
        found[-1] = (*found[-1], *waiting)
    elif waiting:
        found.append(tuple(waiting))
    return found


def _phase(
    blocks: tuple[int, ...],
    costs: Mapping[int, BlockCost],
    traffic: Traffic,
    stalls: Floats,
    tiles: Mapping[int, Floats],
    facts: Facts,
    machine: Machine,
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
    rows = [i for i, block in enumerate(traffic.blocks) if block in blocks]
    lines = np.zeros((3, shape))
    stall = np.zeros(shape)
    for row in rows:
        moved = traffic.moved[:, row] * (WRITE_BACK if traffic.back[row] else 1.0)
        lines[0] += np.maximum(moved[0] - moved[1], 0.0)
        lines[1] += np.maximum(moved[1] - moved[2], 0.0)
        lines[2] += moved[2]
        stall = stall + stalls[row]
    share = imbalance / threads
    private = np.array([1.0, 0.0, 0.0])[:, None]
    common = np.minimum(threads, machine.shared) / threads
    slowed = private + (1.0 - private) / common
    transfer = lines * machine.line / np.array(machine.bandwidth)[:, None] * slowed * share
    core, stall, overhead, parts = core * share, stall * share, overhead * share, parts * share
    moved_all = transfer.sum(axis=0)
    cycles = (core**OVERLAP + moved_all**OVERLAP) ** (1.0 / OVERLAP) + stall
    terms = np.concatenate([parts, overhead[None], transfer, stall[None]])
    return PhaseCost(blocks, cycles, terms, core, tuple(members))


def _overlapped(
    members: list[BlockCost], parts: Floats, overhead: Floats, machine: Machine
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
    together = parts[:5].max(axis=0) + parts[5]
    rounds = np.min(np.stack([np.maximum(member.rounds, 1.0) for member in members]), axis=0)
    window = SHARED_WINDOW * machine.reorder
    share = np.minimum(1.0, window / np.maximum(issued / rounds, 1.0))
    return np.asarray(share * np.minimum(together, apart) + (1.0 - share) * apart)


def _threads(facts: Facts, machine: Machine, block: int) -> tuple[Floats, Floats]:
    """(threads that share a phase, slowest thread's share over the mean)."""
    slices = facts.slices[block]
    threads = np.minimum(float(machine.threads), np.maximum(slices, 1.0))
    return threads, np.ceil(slices / threads) * threads / np.maximum(slices, 1.0)


def _stalls(skeleton: Skeleton, traffic: Traffic) -> Floats:
    """Stall cycles of each traffic entry, (entries, n)."""
    accesses = [access for block in skeleton.blocks for access in block.accesses]
    rewritten = _rewritten(skeleton)
    found = np.zeros_like(traffic.run)
    for entry, row in enumerate(traffic.rows):
        if traffic.back[entry]:
            continue
        again = accesses[row].buffer in rewritten[traffic.blocks[entry]]
        half, page = STALLS["written" if again else "read"]
        apart = lowest_bit(traffic.pitch[entry], PAGE) * (traffic.pitch[entry] > 0)
        each = np.where(apart >= PAGE, page, np.where(apart >= PAGE // 2, half, 0.0))
        lines = np.maximum(traffic.run[entry] / LINE, 1.0)
        found[entry] = traffic.moved[0, entry] * each / lines
    return found


def _rewritten(skeleton: Skeleton) -> dict[int, set[int]]:
    """For each block the buffers that its phase both reads and writes."""
    found = {}
    for phase in phases_of(skeleton.root):
        inside = [access for number in phase for access in skeleton.blocks[number].accesses]
        written = {access.buffer for access in inside if access.write and not access.register}
        both = {access.buffer for access in inside if not access.write} & written
        found.update(dict.fromkeys(phase, both))
    return found


def _row_ranges(skeleton: Skeleton) -> list[range]:
    """The rows of `Facts.strides` that belong to each block."""
    found, start = [], 0
    for block in skeleton.blocks:
        found.append(range(start, start + len(block.accesses)))
        start += len(block.accesses)
    return found


def _overhead_blocks(node: Node) -> set[int]:
    """The first block of every loop without loops inside: it pays for the loop's counter."""
    nodes = [item for item in node.items if isinstance(item, Node)]
    if not nodes:
        return (
            {item for item in node.items[:1] if isinstance(item, int)} if node.loop >= 0 else set()
        )
    return set().union(*(_overhead_blocks(inner) for inner in nodes))


def _tile_cycles(skeleton: Skeleton, facts: Facts) -> dict[int, Floats]:
    """Cycles to begin tiles and enter loops, charged to each block that updates a tile."""
    shape = facts.trips.shape[1]
    found = {}
    for number, block in enumerate(skeleton.blocks):
        cycles = np.zeros(shape)
        if block.accumulates and block.tile_depth >= 0:
            entered = facts.taken[number].copy()
            for place, loop in enumerate(block.serial):
                if place == block.tile_depth:
                    cycles = cycles + TILE_CYCLES * entered
                if place >= block.tile_depth:
                    cycles = cycles + LOOP_CYCLES * entered
                entered = entered * facts.trips[loop]
            if len(block.serial) == block.tile_depth:
                cycles = cycles + TILE_CYCLES * entered
        elif block.serial:
            entered = facts.taken[number].copy()
            for loop in block.serial[:-1]:
                entered = entered * facts.trips[loop]
            cycles = cycles + LOOP_CYCLES * entered
        found[number] = cycles
    return found
