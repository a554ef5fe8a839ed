"""Timelines as Chrome/Perfetto JSON (https://ui.perfetto.dev), streamed.

One track for each engine and DMA queue, one slice for each instruction with its text and
addresses, flow arrows from an instruction to those that waited for its semaphore, and counters for
SBUF and PSUM bytes in use and for DMA bandwidth. Events are written as they are made, so that
memory stays small; past a cap the trace is cut, at an instruction, and says so.

Slices of a track do not overlap (Perfetto drops those that do): an engine's ends where its next
instruction starts, though its result may show later, which the slice's arguments tell; of transfers
that run side by side each begins where the one before ends.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tilesmith.families.kit.simulation.operator_lane import OperatorSpan
from tilesmith.families.kit.simulation.traces import LONGEST, PROCESS, cut_notice, write_trace_of
from tilesmith.families.trainium.codegen.isa import instructions as isa
from tilesmith.families.trainium.codegen.isa.core import FIRST_DMA_QUEUE, queue_name
from tilesmith.families.trainium.codegen.isa.text import instruction_text
from tilesmith.families.trainium.simulator.timelines.timeline import Timeline

WITHIN = 0.999
"""Where in its slice an arrow leaves: an arrow from the very end would belong to none."""

COUNTERS = 200
"""Points of the bandwidth counter."""


def write_trace(
    played: Timeline, path: Path, maximum: int = LONGEST, operators: Sequence[OperatorSpan] = ()
) -> str:
    """Write a timeline to `path` as JSON; the notice if it was cut, else "".

    Args:
        operators: when which of them is worked on, tracks of their own.

    Raises:
        InputError, JobError: as `search_space.support.files.written`.
    """
    stream = played.stream
    shown = min(len(stream), maximum)
    notice = cut_notice(len(stream), maximum, "instructions")
    until = float(played.start[:shown].max()) / 1e3 if notice else float("inf")
    queues = np.unique(stream.rows["queue"][:shown]).tolist()
    tracks = ((queue, _track(stream, queue)) for queue in queues)
    machine = f"{stream.name} on {played.core.target.name}"
    write_trace_of(path, machine, tracks, _events(played, shown), operators, (notice, until))
    return notice


def _events(played: Timeline, shown: int) -> Iterator[dict[str, Any]]:
    begin, end = slices(played)
    instructions = (_instruction(played, row, begin, end) for row in range(shown))
    yield from chain.from_iterable(instructions)
    yield from _occupancy(played, shown)
    yield from _bandwidth(played, shown)


def _track(stream: isa.InstructionStream, queue: int) -> str:
    """An engine's name; a DMA queue's with the tensor it serves."""
    name = queue_name(queue)
    if not name.startswith("dma"):
        return name
    row = int(np.flatnonzero(stream.rows["queue"] == queue)[0])
    load = stream.rows["op"][row] != isa.Opcode.STORE
    access = int(stream.rows["in0" if load else "out"][row])
    tensor = stream.tensors[int(stream.accesses["tensor"][access])].name
    return f"{name} ({'load' if load else 'store'} {tensor})"


def slices(played: Timeline) -> tuple[isa.Floats, isa.Floats]:
    """When the slice of each row begins and ends (ns), so that those of a track do not overlap."""
    queue = played.stream.rows["queue"]
    begin, end = played.start.copy(), played.end.copy()
    for number in np.unique(queue):
        mine = np.flatnonzero(queue == number)
        if number < FIRST_DMA_QUEUE:
            end[mine[:-1]] = np.minimum(end[mine[:-1]], begin[mine[1:]])
        else:
            begin[mine[1:]] = np.maximum(begin[mine[1:]], end[mine[:-1]])
    return begin, end


def _instruction(
    played: Timeline, row: int, begin: isa.Floats, end: isa.Floats
) -> Iterator[dict[str, Any]]:
    stream = played.stream
    queue, op = int(stream.rows["queue"][row]), isa.Opcode(int(stream.rows["op"][row]))
    start, stop = float(begin[row]) / 1e3, float(end[row]) / 1e3
    shown = {"row": row, "text": instruction_text(stream, row)}
    yield {
        "ph": "X", "pid": PROCESS, "tid": queue, "name": op.name.lower(), "ts": start,
        "dur": stop - start, "args": {**shown, "result_us": float(played.end[row]) / 1e3},
    }  # fmt: skip
    for wait in range(int(stream.wait_start[row]), int(stream.wait_start[row + 1])):
        source = int(stream.waits[wait])
        from_queue = int(stream.rows["queue"][source])
        if from_queue == queue:
            continue
        common = {"pid": PROCESS, "cat": "semaphore", "name": "semaphore", "id": wait}
        inside = (begin[source] + WITHIN * (end[source] - begin[source])) / 1e3
        yield {"ph": "s", "tid": from_queue, "ts": float(inside), **common}
        yield {"ph": "f", "bp": "e", "tid": queue, "ts": start, **common}


def live_bytes(played: Timeline, shown: int, space: isa.Space) -> tuple[Any, Any]:
    """(times in ns, bytes in use in one partition) at every change, from tiles' first and last
    use.
    """
    stream = played.stream
    count = len(stream.allocations)
    first, last = np.full(count, np.inf), np.full(count, -np.inf)
    owner = stream.accesses["allocation"]
    for operand in isa.OPERANDS:
        index = stream.rows[operand][:shown]
        rows = np.flatnonzero(index >= 0)
        tiles = owner[index[rows]]
        rows, tiles = rows[tiles >= 0], tiles[tiles >= 0]
        np.minimum.at(first, tiles, played.start[rows])
        np.maximum.at(last, tiles, played.end[rows])
    kept = [
        i for i, a in enumerate(stream.allocations) if a.space == space and np.isfinite(first[i])
    ]
    sizes = np.array([stream.allocations[i].bytes for i in kept], dtype=np.int64)
    times = np.concatenate([first[kept], last[kept]])
    changes = np.concatenate([sizes, -sizes])
    order = np.lexsort((changes, times))
    return times[order], np.cumsum(changes[order])


def _occupancy(played: Timeline, shown: int) -> Iterator[dict[str, Any]]:
    for space, name in ((isa.Space.SBUF, "SBUF"), (isa.Space.PSUM, "PSUM")):
        times, sizes = live_bytes(played, shown, space)
        for time, size in zip(times.tolist(), sizes.tolist(), strict=True):
            yield _counter(f"{name} KiB a partition", time, size / 1024)


def bandwidth(played: Timeline, shown: int, points: int = COUNTERS) -> tuple[Any, Any]:
    """(times in ns, GB/s) of DMA, averaged over `points` equal intervals of the shown time."""
    dma = np.flatnonzero(played.costs.bytes[:shown] > 0)
    if not len(dma):
        return np.zeros(0), np.zeros(0)
    span = float(played.end[:shown].max())
    edges = np.linspace(0.0, span, points + 1)
    start, end, moved = played.start[dma], played.end[dma], played.costs.bytes[dma]
    rate = moved / np.maximum(end - start, 1e-9)
    reached = np.array([(rate * np.clip(edge - start, 0, end - start)).sum() for edge in edges])
    return edges[:-1], np.diff(reached) / (span / points)


def _bandwidth(played: Timeline, shown: int) -> Iterator[dict[str, Any]]:
    times, rates = bandwidth(played, shown)
    for time, rate in zip(times.tolist(), rates.tolist(), strict=True):
        yield _counter("DMA GB/s", time, rate)


def _counter(name: str, time: float, value: float) -> dict[str, Any]:
    return {
        "ph": "C", "pid": PROCESS, "tid": 0, "name": name, "ts": time / 1e3,
        "args": {"value": round(value, 3)},
    }  # fmt: skip
