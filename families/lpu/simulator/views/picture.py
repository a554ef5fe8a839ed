"""A schedule as one static HTML page with an SVG: slices as they stand on the chip against time.

Each row is a slice, from MXM in the west through MEM, VXM and MEM to MXM in the east; a bar is a
burst, coloured by what it does, with its text as a tooltip. Work moves up and down as streams do.
Bars thinner than a pixel are merged with their neighbours; of a long program a second picture shows
a stretch from its middle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np

from tilesmith.families.kit.simulation.operator_lane import OperatorSpan, svg
from tilesmith.families.kit.simulation.timeline_page import PAGE
from tilesmith.families.lpu.codegen.chip import LINKS_A_QUEUE, MXM_KINDS, Chip
from tilesmith.families.lpu.codegen.isa.bursts import BurstOp, BurstSchedule
from tilesmith.families.lpu.codegen.isa.text import burst_text
from tilesmith.families.lpu.simulator.views.shares import shares
from tilesmith.search_space.support.files import written

WIDTH, LANE, LABEL, TICKS = 1200, 8, 90, 8
"""Pixels: of the time axis, of a slice's height, of the labels; and times shown."""

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


def write_picture(
    schedule: BurstSchedule, path: Path, operators: Sequence[OperatorSpan] = ()
) -> None:
    """Write a schedule to `path` as HTML.

    Args:
        operators: when which of them is worked on, lanes of their own.

    Raises:
        InputError, JobError: as `search_space.support.files.written`.
    """
    with written(path) as file:
        file.write(page(schedule, operators).encode())


def page(schedule: BurstSchedule, operators: Sequence[OperatorSpan] = ()) -> str:
    """The HTML text of a schedule."""
    used = [op for op in COLOURS if (schedule.table["op"] == op).any()]
    legend = "".join(f'<i style="background:{COLOURS[o]}"></i>{o.name.lower()}' for o in used)
    rows = "".join(f"<tr><td>{n}</td><td>{s:.1%}</td></tr>" for n, s in shares(schedule).items())
    pictures = _with_operators(schedule, 0, schedule.cycles, operators)
    if schedule.cycles > CLOSE_UP:
        begin = (schedule.cycles - CLOSE_UP) // 2
        end = begin + CLOSE_UP
        pictures += f"<p>Cycles {begin} to {end}:</p>"
        pictures += _with_operators(schedule, begin, end, operators)
    title = escape(f"{schedule.name} on {schedule.chip.target.name}")
    summary = (
        f"{schedule.cycles} cycles, {schedule.seconds * 1e6:.2f} us, {len(schedule.table)} bursts"
    )
    return PAGE.format(
        what="slices", title=title, summary=summary, rows=rows, legend=legend, pictures=pictures
    )


def lanes_of(chip: Chip) -> dict[int, tuple[int, str]]:
    """The lane and label of every queue, from west to east."""
    order: list[tuple[int, str]] = []
    half, sxm = chip.half, sum(chip.sxm)

    def mxm(plane: int) -> None:
        for kind in MXM_KINDS:
            order.append((chip.mxm_queue(plane, kind), f"MXM {plane}"))

    def exchange(east: bool) -> None:
        first = chip.sxm_queue(east, "shifter")
        order.extend((queue, f"SXM {'WE'[east]}") for queue in range(first, first + sxm))

    mxm(0)
    mxm(1)
    exchange(False)
    order += [(queue, f"MEM W{queue + 1}") for queue in range(half - 1, -1, -1)]
    order += [(chip.vxm_queue + alu, "VXM") for alu in range(chip.alus)]
    order += [(half + queue, f"MEM E{queue + 1}") for queue in range(half)]
    exchange(True)
    mxm(2)
    mxm(3)
    last = chip.link_queue(0)
    order += [(last + n, "C2C") for n in range(-(-chip.links // LINKS_A_QUEUE))]
    return {queue: (lane, label) for lane, (queue, label) in enumerate(order)}


def _with_operators(
    schedule: BurstSchedule, begin: int, end: int, operators: Sequence[OperatorSpan]
) -> str:
    cycles = schedule.chip.ghz * 1e3
    lanes = svg(operators, (begin / cycles, end / cycles), WIDTH, LABEL, 2.5 * LANE)
    return f"<div>{lanes}</div>{_picture(schedule, begin, end)}"


def _picture(schedule: BurstSchedule, begin: int, end: int) -> str:
    """An SVG of the cycles from `begin` to `end`."""
    lanes = lanes_of(schedule.chip)
    bars = "".join(_bars(schedule, lanes, begin, end))
    labels = "".join(_labels(lanes))
    height = LANE * len(lanes) + 30
    axis = "".join(
        f'<text x="{LABEL + WIDTH * t / TICKS:.0f}" y="12" fill="#888">'
        f"{begin + (end - begin) * t // TICKS}</text>"
        for t in range(TICKS)
    )
    return f'<svg viewBox="0 0 {WIDTH + LABEL} {height}" font-size="9">{axis}{labels}{bars}</svg>'


def _labels(lanes: dict[int, tuple[int, str]]) -> Iterator[str]:
    shown = ""
    for lane, label in sorted(lanes.values()):
        kind = label if not label.startswith("MEM") else label.rstrip("0123456789")
        if kind != shown:
            yield f'<text x="0" y="{20 + LANE * (lane + 1)}">{label}</text>'
        shown = kind


def _bars(
    schedule: BurstSchedule, lanes: dict[int, tuple[int, str]], begin: int, end: int
) -> Iterator[str]:
    table = schedule.table
    last = table["cycle"] + (table["count"].astype(np.int64) - 1) * table["interval"] + 1
    mine = np.flatnonzero((table["cycle"] < end) & (last > begin))
    mine = mine[np.lexsort((table["cycle"][mine], table["op"][mine], table["queue"][mine]))]
    scale = WIDTH / max(end - begin, 1)
    reached: dict[tuple[int, bool], float] = {}
    for row in mine.tolist():
        queue, op = int(table["queue"][row]), BurstOp(int(table["op"][row]))
        write = op == BurstOp.WRITE
        left = max(int(table["cycle"][row]) - begin, 0) * scale
        right = min((int(last[row]) - begin) * scale, float(WIDTH))
        before = reached.get((queue, write), -1.0)
        if right < before + 1.0:
            continue
        left = max(left, before)
        right = max(right, left + 1.0)
        reached[queue, write] = right
        half = (LANE - 1) / 2 if op in (BurstOp.READ, BurstOp.WRITE) else LANE - 1
        top = 20 + LANE * lanes[queue][0] + (half if write else 0)
        text = escape(f"{burst_text(schedule, row)} ({schedule.chains[int(table['chain'][row])]})")
        yield (
            f'<rect x="{LABEL + left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
            f'height="{half:.1f}" fill="{COLOURS[op]}"><title>{text}</title></rect>'
        )
