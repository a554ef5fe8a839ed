"""Laws of slices and queues: who may do what in one cycle.

The chip has no arbiters: two instructions that want one queue, bank, unit or plane in the same
cycle compute something else. Each law is checked for all bursts at once, whoever scheduled them.
"""

from itertools import pairwise

import numpy as np

from tilesmith.families.lpu.codegen.dataflow import Ints
from tilesmith.families.lpu.codegen.isa.bursts import (
    MEMORY_OPS,
    BurstOp,
    BurstSchedule,
    depths,
    latency,
)
from tilesmith.families.lpu.codegen.verification.report import breach, common, may_meet, overlapping


def check_slices(schedule: BurstSchedule) -> None:
    """Prove the laws of queues, MEM, VXM and MXM.

    Raises:
        VerificationError: the first breach.
    """
    _shapes(schedule)
    _queues(schedule)
    _banks(schedule)
    _alus(schedule)
    _planes(schedule)
    _links(schedule)


def _shapes(schedule: BurstSchedule) -> None:
    """Bursts begin at cycle 0 or later, stay in their bank, and are on a queue of their kind."""
    table, chip = schedule.table, schedule.chip
    count, step = table["count"].astype(np.int64), table["step"].astype(np.int64)
    for wrong, law in (
        (table["cycle"] < 0, "no cycle is before 0"),
        ((count < 1) | (table["interval"] < 1), "a burst is of one vector or more, a cycle apart"),
        (
            (table["queue"] < 0) | (table["queue"] >= len(chip.queues)),
            f"there are {len(chip.queues)} queues",
        ),
    ):
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise breach(schedule, row, law)
    memory = np.isin(table["op"], MEMORY_OPS)
    wrong = memory != (table["queue"] < chip.slices)
    if wrong.any():
        raise breach(schedule, int(np.flatnonzero(wrong)[0]), "this queue has no such instruction")
    ends = table["address"] + (count - 1) * np.where(table["op"] == BurstOp.GATHER, 0, step)
    low, high = np.minimum(table["address"], ends), np.maximum(table["address"], ends)
    wrong = memory & (
        (low < 0) | (high >= chip.bank_words) | (table["bank"] < 0) | (table["bank"] > 1)
    )
    if wrong.any():
        law = f"a bank has words 0 to {chip.bank_words - 1}, a slice banks 0 and 1"
        raise breach(schedule, int(np.flatnonzero(wrong)[0]), law)


def _same_cycle(schedule: BurstSchedule, rows: Ints, group: Ints, law: str) -> None:
    """No two bursts of one group in the same cycle."""
    table = schedule.table
    start, step = table["cycle"][rows], table["interval"][rows].astype(np.int64)
    count = table["count"][rows].astype(np.int64)
    first, second = overlapping(group, start, start + (count - 1) * step + 1)
    meet = may_meet((start[first], step[first]), (start[second], step[second]))
    for a, b in zip(first[meet].tolist(), second[meet].tolist(), strict=True):
        shared = common(*((int(start[n]), int(count[n]), int(step[n])) for n in (a, b)))
        if len(shared):
            text = law.format(other=int(rows[a]))
            raise breach(schedule, int(rows[b]), text, int(shared[0]))


def _queues(schedule: BurstSchedule) -> None:
    """One instruction a queue and cycle; a MEM slice's reads one, and its writes one. (Both planes
    of a hemisphere do a product of float16.)"""
    table = schedule.table
    queue = table["queue"].astype(np.int64)
    group = 2 * queue + (table["op"] == BurstOp.WRITE)
    law = "one instruction a queue and cycle (of MEM one read, one write): the other is {other}"
    rows = np.arange(len(table))
    double = _both_planes(schedule)
    kinds = schedule.chip.mxm_queue(1, "load") - schedule.chip.mxm_queue(0, "load")
    rows = np.concatenate((rows, double))
    group = np.concatenate((group, 2 * (queue[double] + kinds)))
    _same_cycle(schedule, rows, group, law)


def _both_planes(schedule: BurstSchedule) -> Ints:
    """Rows of MXM in float16."""
    unit = schedule.table["unit"]
    wide = np.array([u.plane >= 0 and u.dtype == "float16" for u in schedule.units] + [False])
    return np.flatnonzero(wide[unit])


def _banks(schedule: BurstSchedule) -> None:
    """A slice does not read and write one bank in the same cycle."""
    table = schedule.table
    rows = np.flatnonzero(np.isin(table["op"], MEMORY_OPS))
    group = 2 * table["queue"][rows].astype(np.int64) + table["bank"][rows]
    law = "a bank of a slice is read or written in a cycle, not both: the other is {other}"
    _same_cycle(schedule, rows, group, law)


def _alus(schedule: BurstSchedule) -> None:
    """Every operation of a VXM unit is issued, in the cycle its operands are there."""
    table, chip = schedule.table, schedule.chip
    rows = np.flatnonzero(table["op"] == BurstOp.ALU)
    began: dict[int, tuple[int, ...]] = {}
    seen: dict[int, set[int]] = {}
    for row in rows.tolist():
        burst = table[row]
        number, step = int(burst["unit"]), int(burst["step"])
        unit = schedule.units[number]
        if not 0 <= step < len(unit.operations):
            raise breach(schedule, row, "its unit has no such operation")
        depth = depths(len(unit.inputs), unit.operations)[step] * latency(chip, BurstOp.ALU)
        key = (int(burst["cycle"]) - depth, int(burst["count"]), int(burst["interval"]))
        if began.setdefault(number, key) != key:
            raise breach(schedule, row, "its operands are not there in that cycle")
        seen.setdefault(number, set()).add(step)
        if not chip.vxm_queue <= burst["queue"] < chip.vxm_queue + chip.alus:
            raise breach(schedule, row, "this queue is not one of VXM")
    for row in rows.tolist():
        number = int(table["unit"][row])
        if len(seen[number]) != len(schedule.units[number].operations):
            raise breach(schedule, row, "another operation of its unit is never issued")


def _planes(schedule: BurstSchedule) -> None:
    """MXM: loads, installs and products of a plane follow each other, and sums are taken as they
    come."""
    table, chip = schedule.table, schedule.chip
    events: dict[int, list[tuple[int, int, int]]] = {plane: [] for plane in range(4)}
    sums: dict[tuple[int, int, int, int], int] = {}
    moves: dict[tuple[int, int, int, int], int] = {}
    kinds = (BurstOp.LOAD, BurstOp.INSTALL, BurstOp.MOVE, BurstOp.ACCUMULATE)
    for row in np.flatnonzero(np.isin(table["op"], kinds)).tolist():
        burst, unit = table[row], schedule.units[int(table["unit"][row])]
        op, cycle = BurstOp(int(burst["op"])), int(burst["cycle"])
        count, interval = int(burst["count"]), int(burst["interval"])
        key = (unit.plane, cycle, count, interval)
        if op == BurstOp.ACCUMULATE:
            sums[key] = row
            continue
        if op == BurstOp.MOVE:
            moves[unit.plane, cycle + chip.delay("product"), count, interval] = row
            least = chip.cycles_of_lanes(unit.first, unit.k)
            if unit.dtype == "float16" and interval < least and count > 1:
                taken = unit.k - unit.first
                raise breach(schedule, row, f"{taken} lanes of float16 take more cycles a vector")
        for plane in (unit.plane, unit.plane + 1) if unit.dtype == "float16" else (unit.plane,):
            events[plane].append((cycle, int(op), row))
    for mine, others, law in (
        (moves, sums, "its sums are not taken (ACC) in the cycles they come"),
        (sums, moves, "no sums come in those cycles"),
    ):
        for key, row in mine.items():
            if key not in others:
                raise breach(schedule, row, law)
    for plane in range(4):
        _plane(schedule, sorted(events[plane]))


def _plane(schedule: BurstSchedule, events: list[tuple[int, int, int]]) -> None:
    """One plane: its array and its load buffer hold what they are meant to."""
    table, chip = schedule.table, schedule.chip
    loading = loaded_until = installed_until = moving_until = 0
    loaded: int | None = None
    installed: int | None = None
    for cycle, op, row in events:
        burst, unit = table[row], int(table["unit"][row])
        end = cycle + (int(burst["count"]) - 1) * int(burst["interval"]) + 1
        match op:
            case BurstOp.LOAD:
                if cycle < max(loaded_until, loading):
                    raise breach(schedule, row, "the load buffer is still in use")
                loaded, loading = unit, end
            case BurstOp.INSTALL:
                if loaded != unit or cycle < loading:
                    raise breach(schedule, row, "its weights are not in the load buffer yet")
                if cycle < moving_until:
                    raise breach(schedule, row, "vectors still meet the weights installed before")
                installed, installed_until = unit, cycle + chip.install
                loaded_until, loaded = installed_until, None
            case _:
                if installed is None or cycle < installed_until:
                    raise breach(schedule, row, "no weights are installed yet")
                held, taken = schedule.units[installed], schedule.units[unit]
                alike = {held.dtype, taken.dtype} <= {"int8", "uint8"} or held.dtype == taken.dtype
                if held.k != taken.k or not alike:
                    raise breach(schedule, row, "weights of another shape are installed")
                moving_until = max(moving_until, end)


def _links(schedule: BurstSchedule) -> None:
    """A link carries one byte plane at a time, each way."""
    table, chip = schedule.table, schedule.chip
    for op in (BurstOp.SEND, BurstOp.RECEIVE):
        rows = np.flatnonzero(table["op"] == op)
        by_link: dict[int, list[tuple[int, int, int]]] = {}
        for row in rows.tolist():
            unit, burst = schedule.units[int(table["unit"][row])], table[row]
            (group,) = unit.inputs if op == BurstOp.SEND else unit.outputs
            each = len(group.streams) * chip.link_cycles
            if int(burst["interval"]) < each and int(burst["count"]) > 1:
                raise breach(schedule, row, f"a link takes such a vector every {each} cycles")
            start = int(burst["cycle"])
            end = start + (int(burst["count"]) - 1) * int(burst["interval"]) + each
            by_link.setdefault(unit.link, []).append((start, end, row))
        for bursts in by_link.values():
            bursts.sort()
            for (_, end, _), (start, _, row) in pairwise(bursts):
                if start < end:
                    raise breach(schedule, row, "the link still carries another burst")
