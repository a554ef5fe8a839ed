"""A timeline as one static HTML page with an SVG: engines and queues over time, no script needed.

For people without Perfetto: one lane for each engine and DMA queue, a bar for each instruction
with its text as a tooltip, colours by operation, and a table of how busy each engine was. Bars
that would be thinner than a pixel are merged with their neighbours, so that the page stays small.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np

from codegen.accelerator.core import queue_name
from codegen.accelerator.instructions import Op
from codegen.accelerator.text import instruction_text
from search_space.errors import InputError
from simulator.accelerator.timeline import Timeline

WIDTH, LANE, LABEL = 1200, 22, 90
"""Pixels: of the time axis, of a lane's height, of the labels."""

COLOURS = {
    Op.LOAD: "#4c78a8", Op.STORE: "#72b7b2", Op.MATMUL: "#e45756", Op.TRANSPOSE: "#f58518",
    Op.ACTIVATION: "#54a24b", Op.COPY: "#bab0ac",
}  # fmt: skip
OTHER = "#b279a2"

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:13px sans-serif;margin:16px}}td,th{{padding:2px 12px 2px
0;text-align:left}}</style> <h1>{title}</h1> <p>{summary}</p>
<table><tr><th>engine</th><th>busy</th></tr>{rows}</table> <svg width="{width}" height="{height}"
font-size="11">{lanes}</svg> </html>
"""


def write_picture(played: Timeline, path: Path) -> None:
    """Write a timeline to `path` as HTML.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        path.write_text(page(played), encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"timeline '{path}' cannot be written: {reason}") from error


def page(played: Timeline) -> str:
    """The HTML text of a timeline."""
    stream = played.stream
    queues = [int(q) for q in np.unique(stream.rows["queue"])]
    lanes = "".join(_lane(played, queue, i) for i, queue in enumerate(queues))
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{share:.1%}</td></tr>"
        for name, share in played.engines.items()
    )
    title = escape(f"{stream.name} on {played.core.target.name}")
    summary = (
        f"{played.makespan / 1e3:.2f} us, {len(stream)} instructions, "
        f"{played.costs.total_bytes / 1e6:.2f} MB moved, bound by {escape(played.bound)}"
    )
    return PAGE.format(
        title=title,
        summary=summary,
        rows=rows,
        lanes=lanes,
        width=WIDTH + LABEL,
        height=LANE * len(queues),
    )


def _lane(played: Timeline, queue: int, position: int) -> str:
    """One queue's label and bars."""
    stream = played.stream
    rows = np.flatnonzero(stream.rows["queue"] == queue)
    scale = WIDTH / max(played.makespan, 1e-9)
    top = position * LANE
    parts = [f'<text x="0" y="{top + 15}">{queue_name(queue)}</text>']
    reached = -1.0
    for row in rows:
        left, right = float(played.start[row]) * scale, float(played.end[row]) * scale
        if right < reached + 1.0:
            continue
        left = max(left, reached)
        reached = max(right, left + 1.0)
        colour = COLOURS.get(Op(int(stream.rows["op"][row])), OTHER)
        parts.append(
            f'<rect x="{LABEL + left:.1f}" y="{top + 2}" width="{reached - left:.1f}" '
            f'height="{LANE - 4}" fill="{colour}">'
            f"<title>{escape(instruction_text(stream, int(row)))}</title></rect>"
        )
    return "".join(parts)
