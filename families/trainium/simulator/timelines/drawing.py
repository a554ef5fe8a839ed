"""A timeline as the file that was asked for, with lanes of the operators it works on.

A page has one lane for each engine and DMA queue and a bar for each instruction, coloured by its
operation; of a long program a second picture shows a stretch from its middle.
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
from tilesmith.families.trainium.codegen.isa.core import FIRST_DMA_QUEUE, queue_name
from tilesmith.families.trainium.codegen.isa.instructions import Opcode
from tilesmith.families.trainium.codegen.isa.text import instruction_text
from tilesmith.families.trainium.simulator.timelines.timeline import Timeline
from tilesmith.families.trainium.simulator.timelines.trace import write_trace

LANE = 22
"""Pixels of a lane's height."""

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


def span_of(
    played: Timeline, mine: NDArray[np.bool_], name: str, arguments: Mapping[str, Any]
) -> OperatorSpan | None:
    """When an operator is worked on: from its first instruction on an engine to its last result;
    where it only moves data, its transfers. Weights may be loaded long before.

    Args:
        mine: of every instruction whether it is the operator's; None comes of none.
        arguments: what else a reader may want to know.
    """
    if not mine.any():
        return None
    engines = mine & (played.stream.rows["queue"] < FIRST_DMA_QUEUE)
    working = engines if engines.any() else mine
    begin, end = float(played.start[working].min()), float(played.end[mine].max())
    first = {"first_transfer_us": float(played.start[mine].min()) / 1e3}
    return OperatorSpan(name, begin / 1e3, end / 1e3, {**arguments, **first})


def draw(played: Timeline, path: Path, operators: Sequence[OperatorSpan] = ()) -> tuple[str, ...]:
    """Write a timeline: see the kit's `draw`."""
    trace = partial(write_trace, played, path, operators=operators)
    return timeline_page.draw(path, partial(page, played, operators), trace)


def page(played: Timeline, operators: Sequence[OperatorSpan] = ()) -> str:
    """The HTML text of a timeline.

    Args:
        operators: when which of them is worked on, lanes of their own.
    """
    stream = played.stream
    used = {Opcode(int(op)) for op in np.unique(stream.rows["op"])}
    colours = {op.name.lower(): colour for op, colour in COLOURS.items() if op in used}
    if used - set(COLOURS):
        colours["other"] = OTHER
    windows = [("", 0.0, played.makespan)]
    if len(stream) > CLOSE_UP:
        starts = np.sort(played.start)
        first = (len(starts) - CLOSE_UP) // 2
        begin, end = float(starts[first]), float(starts[first + CLOSE_UP])
        windows.append((f"{begin / 1e3:.2f} to {end / 1e3:.2f} us:", begin, end))
    return TimelinePage(
        what="engine",
        title=f"{stream.name} on {played.core.target.name}",
        summary=f"{played.makespan / 1e3:.2f} us, {len(stream)} instructions, "
        f"{played.costs.total_bytes / 1e6:.2f} MB moved, bound by {played.bound}",
        shares=played.engines,
        colours=colours,
        per_us=1e3,
        lane=LANE,
        picture=partial(_picture, played),
    ).html(operators, windows)


def _picture(played: Timeline, begin: float, end: float) -> str:
    """An SVG of the time from `begin` to `end` (ns)."""
    queues = np.unique(played.stream.rows["queue"]).tolist()
    labels = [(LANE * n + 15, queue_name(queue)) for n, queue in enumerate(queues, 1)]
    bars = _bars(played, {queue: LANE * n for n, queue in enumerate(queues, 1)}, begin, end)
    size = LANE * (len(queues) + 1), 11
    return picture(bars, (begin, end), labels, lambda ns: f"{ns / 1e3:.4g} us", size)


def _bars(
    played: Timeline, tops: Mapping[int, int], begin: float, end: float
) -> Iterator[TimelineBar]:
    stream = played.stream
    for row in np.flatnonzero((played.start < end) & (played.end > begin)).tolist():
        queue, op = int(stream.rows["queue"][row]), Opcode(int(stream.rows["op"][row]))
        times = float(played.start[row]), float(played.end[row])
        colour, text = COLOURS.get(op, OTHER), partial(instruction_text, stream, row)
        yield TimelineBar(queue, *times, tops[queue] + 2, LANE - 4, colour, text)
