"""A timeline as one static HTML page with an SVG: engines and queues over time, no script needed.

For people without Perfetto: one lane for each engine and DMA queue, a bar for each instruction
with its text as a tooltip, colours by operation, and a table of how busy each engine was. Bars
that would be thinner than a pixel are merged with their neighbours, so that the page stays small;
of a long program a second picture shows a stretch from its middle with every instruction apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np

from tilesmith.families.kit.simulation.operator_lane import OperatorSpan, svg
from tilesmith.families.kit.simulation.timeline_page import PAGE
from tilesmith.families.trainium.codegen.isa.core import queue_name
from tilesmith.families.trainium.codegen.isa.instructions import Opcode
from tilesmith.families.trainium.codegen.isa.text import instruction_text
from tilesmith.families.trainium.simulator.timelines.timeline import Timeline
from tilesmith.search_space.support.files import written

WIDTH, LANE, LABEL = 1200, 22, 90
"""Pixels: of the time axis, of a lane's height, of the labels."""

TICKS = 8
CLOSE_UP = 300
"""Instructions of the stretch shown apart; a program of no more needs none."""

COLOURS = {
    Opcode.LOAD: "#4c78a8", Opcode.STORE: "#72b7b2", Opcode.GATHER: "#9ecae9",
    Opcode.MATMUL: "#e45756",
    Opcode.TRANSPOSE: "#f58518", Opcode.ACTIVATION: "#54a24b", Opcode.COPY: "#bab0ac",
    Opcode.TENSOR_TENSOR: "#b279a2", Opcode.TENSOR_SCALAR: "#d6a5c9", Opcode.REDUCE: "#9d755d",
    Opcode.COLLECTIVE: "#ff9da6",
}  # fmt: skip
OTHER = "#eeca3b"


def write_picture(played: Timeline, path: Path, operators: Sequence[OperatorSpan] = ()) -> None:
    """Write a timeline to `path` as HTML.

    Args:
        operators: when which of them is worked on, lanes of their own.

    Raises:
        InputError, JobError: as `search_space.support.files.written`.
    """
    with written(path) as file:
        file.write(page(played, operators).encode())


def page(played: Timeline, operators: Sequence[OperatorSpan] = ()) -> str:
    """The HTML text of a timeline."""
    stream = played.stream
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{share:.1%}</td></tr>"
        for name, share in played.engines.items()
    )
    title = escape(f"{stream.name} on {played.core.target.name}")
    summary = (
        f"{played.makespan / 1e3:.2f} us, {len(stream)} instructions, "
        f"{played.costs.total_bytes / 1e6:.2f} MB moved, bound by {escape(played.bound)}"
    )
    pictures = _with_operators(played, 0.0, played.makespan, operators)
    if len(stream) > CLOSE_UP:
        begin, end = _middle(played)
        picture = _with_operators(played, begin, end, operators)
        pictures += f"<p>{begin / 1e3:.2f} to {end / 1e3:.2f} us:</p>{picture}"
    return PAGE.format(
        what="engine",
        title=title,
        summary=summary,
        rows=rows,
        legend=_legend(played),
        pictures=pictures,
    )


def _legend(played: Timeline) -> str:
    used = {Opcode(int(op)) for op in np.unique(played.stream.rows["op"])}
    shown = {op.name.lower(): colour for op, colour in COLOURS.items() if op in used}
    if used - set(COLOURS):
        shown["other"] = OTHER
    return "".join(f'<i style="background:{colour}"></i>{name}' for name, colour in shown.items())


def _middle(played: Timeline) -> tuple[float, float]:
    """ns: a stretch in which about `CLOSE_UP` instructions start, half-way through the program."""
    starts = np.sort(played.start)
    first = (len(starts) - CLOSE_UP) // 2
    return float(starts[first]), float(starts[first + CLOSE_UP])


def _with_operators(
    played: Timeline, begin: float, end: float, operators: Sequence[OperatorSpan]
) -> str:
    lanes = svg(operators, (begin / 1e3, end / 1e3), WIDTH, LABEL, LANE)
    return f"<div>{lanes}</div>{_picture(played, begin, end)}"


def _picture(played: Timeline, begin: float, end: float) -> str:
    """An SVG of the time from `begin` to `end` (ns)."""
    queues = [int(q) for q in np.unique(played.stream.rows["queue"])]
    lanes = "".join(
        "".join(_lane(played, queue, i + 1, begin, end)) for i, queue in enumerate(queues)
    )
    return (
        f'<svg viewBox="0 0 {WIDTH + LABEL} {LANE * (len(queues) + 1)}" font-size="11">'
        f"{''.join(_axis(begin, end))}{lanes}</svg>"
    )


def _axis(begin: float, end: float) -> Iterator[str]:
    """Times in us above the lanes."""
    for tick in range(TICKS):
        time = begin + (end - begin) * tick / TICKS
        place = LABEL + WIDTH * tick / TICKS
        yield f'<text x="{place:.0f}" y="12" fill="#888">{time / 1e3:.4g} us</text>'


def _lane(played: Timeline, queue: int, position: int, begin: float, end: float) -> Iterator[str]:
    """One queue's label and bars."""
    stream = played.stream
    mine = (stream.rows["queue"] == queue) & (played.start < end) & (played.end > begin)
    scale = WIDTH / max(end - begin, 1e-9)
    top = position * LANE
    yield f'<text x="0" y="{top + 15}">{queue_name(queue)}</text>'
    reached = -1.0
    for row in np.flatnonzero(mine):
        left = max(float(played.start[row]) - begin, 0.0) * scale
        right = min((float(played.end[row]) - begin) * scale, float(WIDTH))
        if right < reached + 1.0:
            continue
        left = max(left, reached)
        reached = max(right, left + 1.0)
        colour = COLOURS.get(Opcode(int(stream.rows["op"][row])), OTHER)
        yield (
            f'<rect x="{LABEL + left:.1f}" y="{top + 2}" width="{reached - left:.1f}" '
            f'height="{LANE - 4}" fill="{colour}">'
            f"<title>{escape(instruction_text(stream, int(row)))}</title></rect>"
        )
