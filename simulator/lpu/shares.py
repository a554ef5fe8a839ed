"""How busy the slices of a schedule are."""

from __future__ import annotations

import numpy as np

from tilesmith.codegen.lpu.isa.bursts import Op, Schedule

UNITS = ("mem read", "mem write", "mxm", "vxm", "sxm", "c2c")

_OPS = {
    "mem read": (Op.READ, Op.GATHER), "mem write": (Op.WRITE,), "mxm": (Op.MOVE,),
    "vxm": (Op.ALU,), "sxm": (Op.SHUFFLE, Op.TRANSPOSE), "c2c": (Op.SEND, Op.RECEIVE),
}  # fmt: skip


def issues(schedule: Schedule) -> dict[str, int]:
    """Cycles that units are taken, by `UNITS`: a product of float16 may take several a vector."""
    table = schedule.table
    count = table["count"].astype(np.int64)
    found = {}
    for name, ops in _OPS.items():
        mine = np.isin(table["op"], ops)
        found[name] = int(count[mine].sum())
    for row in np.flatnonzero(table["op"] == Op.MOVE).tolist():
        unit = schedule.units[int(table["unit"][row])]
        if unit.dtype == "float16":
            passes = schedule.chip.cycles_of_lanes(unit.first, unit.k)
            found["mxm"] += int(count[row]) * (2 * passes - 1)
    return found


def shares(schedule: Schedule) -> dict[str, float]:
    """Shares of the time, 0 to 1: of all slices, planes, ALUs and units of a kind together."""
    chip, cycles = schedule.chip, max(schedule.cycles, 1)
    parts = {
        "mem read": chip.slices, "mem write": chip.slices, "mxm": 4, "vxm": chip.alus,
        "sxm": 2 * sum(chip.sxm), "c2c": 2 * chip.links,
    }  # fmt: skip
    return {name: taken / (parts[name] * cycles) for name, taken in issues(schedule).items()}
