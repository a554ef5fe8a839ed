"""How busy the slices of a schedule are."""

import numpy as np

from tilesmith.families.lpu.codegen.isa.bursts import BurstOp, BurstSchedule

UNITS = ("mem read", "mem write", "mxm", "vxm", "sxm", "c2c")

_OPS = {
    "mem read": (BurstOp.READ, BurstOp.GATHER), "mem write": (BurstOp.WRITE,),
    "mxm": (BurstOp.MOVE,),
    "vxm": (BurstOp.ALU,), "sxm": (BurstOp.SHUFFLE, BurstOp.TRANSPOSE), "c2c": (BurstOp.SEND,
    BurstOp.RECEIVE),
}  # fmt: skip


def issues(schedule: BurstSchedule) -> dict[str, int]:
    """Cycles that units are taken, by `UNITS`: a product of float16 may take several a vector, and
    a link takes as long as it carries one."""
    table = schedule.table
    count = table["count"].astype(np.int64)
    cycles = {}
    for name, ops in _OPS.items():
        mine = np.isin(table["op"], ops)
        cycles[name] = int(count[mine].sum())
    for row in np.flatnonzero(table["op"] == BurstOp.MOVE).tolist():
        unit = schedule.units[int(table["unit"][row])]
        if unit.dtype == "float16":
            passes = schedule.chip.cycles_of_lanes(unit.first, unit.k)
            cycles["mxm"] += int(count[row]) * (2 * passes - 1)
    cycles["c2c"] = sum(_on_links(schedule).values())
    return cycles


def _on_links(schedule: BurstSchedule) -> dict[tuple[int, int], int]:
    """Cycles that every link which is used carries something, each way."""
    table, cycles = schedule.table, dict[tuple[int, int], int]()
    for row in np.flatnonzero(np.isin(table["op"], _OPS["c2c"])).tolist():
        unit, op = schedule.units[int(table["unit"][row])], int(table["op"][row])
        (group,) = unit.inputs or unit.outputs
        each = len(group.streams) * schedule.chip.link_cycles
        taken = int(table["count"][row]) * each
        cycles[unit.link, op] = cycles.get((unit.link, op), 0) + taken
    return cycles


def shares(schedule: BurstSchedule) -> dict[str, float]:
    """Shares of the time, 0 to 1: of all slices, planes, ALUs and units of a kind together, and of
    the links that are used."""
    chip, cycles = schedule.chip, max(schedule.cycles, 1)
    parts = {
        "mem read": chip.slices, "mem write": chip.slices, "mxm": 4, "vxm": chip.alus,
        "sxm": 2 * sum(chip.sxm), "c2c": max(1, len(_on_links(schedule))),
    }  # fmt: skip
    return {name: taken / (parts[name] * cycles) for name, taken in issues(schedule).items()}
