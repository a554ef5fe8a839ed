"""Schedules as text: one line a burst, in order of cycles.

    1204  mem.e17      read   bank 0 word 12+1   -> E5         x2304 every 2   sum 3
    1230  mxm.2.move   move   W3 W4 float16                    x2304 every 2   product 0.1

A stream is E or W and its number, with a dot where its tokens do not travel on.
"""

from collections.abc import Iterator

import numpy as np

from tilesmith.families.lpu.codegen.isa import bursts


def group_text(group: bursts.StreamGroup) -> str:
    """`E3 E4 float16`"""
    way = "WE"[group.east]
    end = "." if group.last else ""
    return f"{' '.join(f'{way}{stream}{end}' for stream in group.streams)} {group.dtype}"


def burst_text(schedule: bursts.BurstSchedule, row: int) -> str:
    """One burst, without its cycle."""
    burst = schedule.table[row]
    op, step = bursts.BurstOp(int(burst["op"])), int(burst["step"])
    parts = [schedule.chip.queues[int(burst["queue"])], op.name.lower()]
    if op in bursts.MEMORY_OPS:
        parts.append(f"bank {burst['bank']} word {burst['address']}{step:+d}")
        end = "." if burst["last"] else ""
        stream = f"{'WE'[int(burst['east'])]}{burst['stream']}{end}"
        parts.append(f"<- {stream}" if op == bursts.BurstOp.WRITE else f"-> {stream}")
    if burst["unit"] >= 0:
        parts.append(_unit_text(op, schedule.units[int(burst["unit"])], step))
    count, interval = int(burst["count"]), int(burst["interval"])
    if count > 1:
        parts.append(f"x{count}" + (f" every {interval}" if interval > 1 else ""))
    return " ".join(part for part in parts if part)


def _unit_text(op: bursts.BurstOp, unit: bursts.Unit, step: int) -> str:
    ins = ", ".join(group_text(group) for group in unit.inputs)
    outs = ", ".join(group_text(group) for group in unit.outputs)
    what = ""
    match op:
        case bursts.BurstOp.LOAD:
            what = f"{step} rows of {unit.k}"
        case bursts.BurstOp.MOVE:
            what = f"k {unit.first}:{unit.k}" if unit.first else f"k {unit.k}"
        case bursts.BurstOp.ALU:
            operation = unit.operations[step]
            names = (f"%{o}" if o >= 0 else str(operation.immediate) for o in operation.operands)
            operands = " ".join(names)
            what = f"%{len(unit.inputs) + step} = {operation.function} {operands} {operation.dtype}"
        case bursts.BurstOp.SHUFFLE:
            what = unit.kind
        case bursts.BurstOp.GATHER:
            what = f"of {unit.k} rows by"
        case bursts.BurstOp.SEND | bursts.BurstOp.RECEIVE:
            what = f"link {unit.link}"
        case _:
            pass
    return " ".join(part for part in (what, ins, f"-> {outs}" if outs else "") if part)


def lines(schedule: bursts.BurstSchedule) -> Iterator[str]:
    """The whole program: tensors first, then bursts by cycle and queue."""
    yield f"schedule {schedule.name} on {schedule.chip.target.name}: {schedule.cycles} cycles"
    for place in schedule.places:
        yield f"  {place.role} {place.name}: {place.dtype}[{place.rows}x320]"
    table = schedule.table
    for row in np.lexsort((table["queue"], table["cycle"])).tolist():
        chain = schedule.chains[int(table["chain"][row])]
        yield f"{int(table['cycle'][row]):8d}  {burst_text(schedule, row)}  ; {chain}"


def to_text(schedule: bursts.BurstSchedule) -> str:
    """The program as text."""
    return "\n".join(lines(schedule)) + "\n"
