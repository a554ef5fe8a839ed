"""A schedule as the file that was asked for, with lanes of the operators it works on.

On the page each lane is a slice, from MXM in the west through MEM, VXM and MEM to MXM in the east,
and a bar is a burst, coloured by what it does: work moves up and down as streams do. Of a long
program a second picture shows a stretch from its middle. A trace has one track for each queue and
one slice for each burst; times are exact.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.kit.simulation import timeline_page
from tilesmith.families.kit.simulation.operator_lane import OperatorSpan
from tilesmith.families.kit.simulation.timeline_page import TimelineBar, TimelinePage, picture
from tilesmith.families.kit.simulation.traces import LONGEST, PROCESS, cut_notice, write_trace_of
from tilesmith.families.lpu.codegen.chip import LINKS_A_QUEUE, MXM_KINDS, Chip
from tilesmith.families.lpu.codegen.isa.bursts import BurstOp, BurstSchedule
from tilesmith.families.lpu.codegen.isa.text import burst_text
from tilesmith.families.lpu.simulator.shares import shares

LANE, ABOVE = 8, 20
"""Pixels: of a slice's height, and above the first."""

CLOSE_UP = 2000
"""Cycles of the stretch shown apart; a program of no more needs none."""

COLOURS = {
    BurstOp.READ: "#4c78a8", BurstOp.WRITE: "#72b7b2", BurstOp.GATHER: "#9ecae9",
    BurstOp.LOAD: "#f58518",
    BurstOp.INSTALL: "#eeca3b", BurstOp.MOVE: "#e45756", BurstOp.ACCUMULATE: "#b279a2",
    BurstOp.ALU: "#54a24b",
    BurstOp.SHUFFLE: "#9d755d", BurstOp.TRANSPOSE: "#d6a5c9", BurstOp.SEND: "#bab0ac",
    BurstOp.RECEIVE: "#79706e",
}  # fmt: skip

COMPUTING = (BurstOp.MOVE, BurstOp.ACCUMULATE, BurstOp.ALU, BurstOp.SHUFFLE, BurstOp.TRANSPOSE)
"""What computes; the others move rows, or install weights."""


def span_of(
    schedule: BurstSchedule, mine: NDArray[np.bool_], name: str, arguments: Mapping[str, Any]
) -> OperatorSpan | None:
    """When an operator is worked on: from its first computing burst to its last burst; where it
    only moves rows, all of them. Weights may be installed before.

    Args:
        mine: of every burst whether it is the operator's; None comes of none.
        arguments: what else a reader may want to know.
    """
    if not mine.any():
        return None
    table, us = schedule.table, schedule.chip.ghz * 1e3
    computing = mine & np.isin(table["op"], COMPUTING)
    working = computing if computing.any() else mine
    begin, end = float(table["cycle"][working].min()), float(ends(schedule)[mine].max())
    first = {"first_burst_us": float(table["cycle"][mine].min()) / us}
    return OperatorSpan(name, begin / us, end / us, {**arguments, **first})


def ends(schedule: BurstSchedule) -> NDArray[np.int64]:
    """The cycle after each burst's last instruction."""
    table = schedule.table
    lasting = (table["count"].astype(np.int64) - 1) * table["interval"] + 1
    return np.asarray(table["cycle"] + lasting)


def draw(placed: BurstSchedule, path: Path, operators: Sequence[OperatorSpan]) -> tuple[str, ...]:
    """Write a schedule: see the kit's `draw`."""
    trace = partial(_write_trace, placed, path, operators)
    return timeline_page.draw(path, partial(_page, placed, operators), trace)


def _page(schedule: BurstSchedule, operators: Sequence[OperatorSpan]) -> str:
    """The HTML text of a schedule."""
    cycles, chip = schedule.cycles, schedule.chip
    used = [op for op in COLOURS if (schedule.table["op"] == op).any()]
    windows = [("", 0, cycles)]
    if cycles > CLOSE_UP:
        begin = (cycles - CLOSE_UP) // 2
        windows.append((f"Cycles {begin} to {begin + CLOSE_UP}:", begin, begin + CLOSE_UP))
    return TimelinePage(
        what="slices",
        title=f"{schedule.name} on {chip.target.name}",
        summary=f"{cycles} cycles, {schedule.seconds * 1e6:.2f} us, {len(schedule.table)} bursts",
        shares=shares(schedule),
        colours={op.name.lower(): COLOURS[op] for op in used},
        per_us=chip.ghz * 1e3,
        lane=2.5 * LANE,
        picture=partial(_picture, schedule),
    ).html(operators, windows)


def _lanes(chip: Chip) -> list[tuple[int, str]]:
    """Queues with the labels of their lanes, from west to east."""

    def mxm(*planes: int) -> list[tuple[int, str]]:
        return [(chip.mxm_queue(p, kind), f"MXM {p}") for p in planes for kind in MXM_KINDS]

    def exchange(east: bool) -> list[tuple[int, str]]:
        first = chip.sxm_queue(east, "shifter")
        return [(queue, f"SXM {'WE'[east]}") for queue in range(first, first + sum(chip.sxm))]

    half, links = chip.half, -(-chip.links // LINKS_A_QUEUE)
    return [
        *mxm(0, 1),
        *exchange(False),
        *((queue, f"MEM W{queue + 1}") for queue in range(half - 1, -1, -1)),
        *((chip.vxm_queue + alu, "VXM") for alu in range(chip.alus)),
        *((half + queue, f"MEM E{queue + 1}") for queue in range(half)),
        *exchange(True),
        *mxm(2, 3),
        *((chip.link_queue(0) + link, "C2C") for link in range(links)),
    ]


def _picture(schedule: BurstSchedule, begin: float, end: float) -> str:
    """An SVG of the cycles from `begin` to `end`; a label stands at the first lane of its kind."""
    lanes = _lanes(schedule.chip)
    kinds = [label.rstrip("0123456789") if label[:3] == "MEM" else label for _, label in lanes]
    labels = [
        (ABOVE + LANE * (lane + 1), label)
        for lane, (_, label) in enumerate(lanes)
        if not lane or kinds[lane] != kinds[lane - 1]
    ]
    bars = _bars(schedule, {queue: lane for lane, (queue, _) in enumerate(lanes)}, begin, end)
    size = LANE * len(lanes) + 30, 9
    return picture(bars, (begin, end), labels, lambda cycle: f"{int(cycle)}", size)


def _bars(
    schedule: BurstSchedule, lanes: Mapping[int, int], begin: float, end: float
) -> Iterator[TimelineBar]:
    """Bursts; a slice reads in the upper half of its lane and writes in the lower."""
    table, last = schedule.table, ends(schedule)
    mine = np.flatnonzero((table["cycle"] < end) & (last > begin))
    for row in mine[np.lexsort((table[mine]["cycle"], table[mine]["op"]))].tolist():
        queue, op = int(table["queue"][row]), BurstOp(int(table["op"][row]))
        write = op == BurstOp.WRITE
        height = (LANE - 1) / 2 if op in (BurstOp.READ, BurstOp.WRITE) else LANE - 1
        top = ABOVE + LANE * lanes[queue] + (height if write else 0)
        times = float(table["cycle"][row]), float(last[row])
        yield TimelineBar(
            (queue, write), *times, top, height, COLOURS[op], partial(_text, schedule, row)
        )


def _text(schedule: BurstSchedule, row: int) -> str:
    chain = schedule.chains[int(schedule.table["chain"][row])]
    return f"{burst_text(schedule, row)} ({chain})"


def _write_trace(schedule: BurstSchedule, path: Path, operators: Sequence[OperatorSpan]) -> str:
    """Write a schedule as JSON; a slice's reads and writes are tracks of their own."""
    table, queues = schedule.table, schedule.chip.queues
    shown = np.argsort(table["cycle"], kind="stable")[:LONGEST]
    tracks = 2 * table["queue"].astype(np.int64) + (table["op"] == BurstOp.WRITE)
    names = (
        (track, queues[track // 2] + (" write" if track % 2 else ""))
        for track in np.unique(tracks[shown]).tolist()
    )
    machine = f"{schedule.name} on {schedule.chip.target.name}"
    notice = cut_notice(len(table), LONGEST, "bursts")
    events = (_event(schedule, row, int(tracks[row])) for row in shown.tolist())
    write_trace_of(path, machine, names, events, operators, (notice, float("inf")))
    return notice


def _event(schedule: BurstSchedule, row: int, track: int) -> dict[str, Any]:
    burst, us = schedule.table[row], schedule.chip.ghz * 1e3
    cycles = (int(burst["count"]) - 1) * int(burst["interval"]) + 1
    return {
        "ph": "X", "pid": PROCESS, "tid": track,
        "name": schedule.chains[int(burst["chain"])],
        "cat": BurstOp(int(burst["op"])).name.lower(),
        "ts": int(burst["cycle"]) / us, "dur": cycles / us,
        "args": {"text": burst_text(schedule, row), "cycle": int(burst["cycle"])},
    }  # fmt: skip
