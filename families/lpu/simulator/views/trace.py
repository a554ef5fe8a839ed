"""Schedules as Chrome/Perfetto JSON (https://ui.perfetto.dev): one track for each queue, one slice
for each burst, with its text; times are exact.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tilesmith.families.kit.simulation.operator_lane import OperatorSpan
from tilesmith.families.kit.simulation.operator_lane import events as lane_events
from tilesmith.families.lpu.codegen.isa.bursts import BurstOp, BurstSchedule
from tilesmith.families.lpu.codegen.isa.text import burst_text
from tilesmith.search_space.support.files import written

MAXIMUM_BURSTS = 50_000
"""Bursts a trace shows at most."""


def write_trace(
    schedule: BurstSchedule,
    path: Path,
    maximum: int = MAXIMUM_BURSTS,
    operators: Sequence[OperatorSpan] = (),
) -> str:
    """Write a schedule to `path`; the notice if it was cut, else "".

    Args:
        operators: when which of them is worked on, tracks of their own.

    Raises:
        InputError, JobError: as `search_space.support.files.written`.
    """
    count = len(schedule.table)
    notice = f"the trace shows the first {maximum} of {count} bursts" if count > maximum else ""
    with written(path) as file, io.TextIOWrapper(file, encoding="utf-8") as out:
        out.write('{"displayTimeUnit": "ns", "otherData": ')
        out.write(json.dumps({"notice": notice}))
        out.write(', "traceEvents": [\n')
        for number, event in enumerate(chain(lane_events(operators), events(schedule, maximum))):
            out.write(",\n" if number else "")
            out.write(json.dumps(event, separators=(",", ":")))
        out.write("\n]}\n")
    return notice


def events(schedule: BurstSchedule, maximum: int = MAXIMUM_BURSTS) -> Iterator[dict[str, Any]]:
    """Trace events; times in microseconds. A slice's reads and writes are tracks of their own."""
    table, us = schedule.table, schedule.chip.ghz * 1e3
    name = f"{schedule.name} on {schedule.chip.target.name}"
    yield {"ph": "M", "ts": 0, "pid": 1, "tid": 0, "name": "process_name", "args": {"name": name}}
    shown = np.argsort(table["cycle"], kind="stable")[:maximum]
    tracks = 2 * table["queue"].astype(np.int64) + (table["op"] == BurstOp.WRITE)
    for track in np.unique(tracks[shown]).tolist():
        label = schedule.chip.queues[track // 2] + (" write" if track % 2 else "")
        yield {
            "ph": "M",
            "ts": 0,
            "pid": 1,
            "tid": track,
            "name": "thread_name",
            "args": {"name": label},
        }
    for row in shown.tolist():
        burst = table[row]
        cycles = (int(burst["count"]) - 1) * int(burst["interval"]) + 1
        yield {
            "ph": "X", "pid": 1, "tid": int(tracks[row]),
            "name": schedule.chains[int(burst["chain"])],
            "cat": BurstOp(int(burst["op"])).name.lower(),
            "ts": int(burst["cycle"]) / us, "dur": cycles / us,
            "args": {"text": burst_text(schedule, row), "cycle": int(burst["cycle"])},
        }  # fmt: skip
