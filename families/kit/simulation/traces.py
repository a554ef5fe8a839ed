"""Traces in Chrome's format (https://ui.perfetto.dev), streamed.

Events are written as they come, so that memory stays small. A trace that would be too long is cut,
and says so.
"""

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from tilesmith.families.kit.simulation.operator_lane import OperatorSpan
from tilesmith.families.kit.simulation.operator_lane import events as lane_events
from tilesmith.search_space.support.files import written

PROCESS = 1
"""Number of the process that a machine's tracks are of."""

LONGEST = 50_000
"""Instructions that a trace shows at most (some 20 MB; Perfetto opens it within seconds)."""


def write_trace_of(
    path: Path,
    machine: str,
    tracks: Iterable[tuple[int, str]],
    events: Iterable[dict[str, Any]],
    operators: Sequence[OperatorSpan],
    cut: tuple[str, float],
) -> None:
    """Write a machine's trace as JSON.

    Args:
        machine: what its process is called.
        tracks: number and name of each, shown in the order of their numbers.
        events: what happened on the tracks; times in us, as the format wants them.
        operators: when which operator is worked on, tracks of their own.
        cut: what a reader has to know of a trace that was cut, and the us up to which it goes.

    Raises:
        InputError, JobError: as `search_space.support.files.written`.
    """
    notice, until = cut
    every = chain(lane_events(operators, until), _named(machine, tracks), events)
    with written(path) as file, io.TextIOWrapper(file, encoding="utf-8") as out:
        out.write('{"displayTimeUnit": "ns", "otherData": ')
        out.write(json.dumps({"notice": notice}))
        out.write(', "traceEvents": [\n')
        for number, event in enumerate(every):
            out.write(",\n" if number else "")
            out.write(json.dumps(event, separators=(",", ":")))
        out.write("\n]}\n")


def cut_notice(count: int, maximum: int, what: str) -> str:
    """What a reader has to know of a trace that shows `maximum` of `count`; "" if it shows all."""
    return f"the trace shows the first {maximum} of {count} {what}" if count > maximum else ""


def _named(machine: str, tracks: Iterable[tuple[int, str]]) -> Iterator[dict[str, Any]]:
    yield _meta("process_name", 0, "name", machine)
    for number, name in tracks:
        yield _meta("thread_name", number, "name", name)
        yield _meta("thread_sort_index", number, "sort_index", number)


def _meta(kind: str, track: int, key: str, value: str | int) -> dict[str, Any]:
    return {
        "ph": "M", "ts": 0, "pid": PROCESS, "tid": track, "name": kind, "args": {key: value},
    }  # fmt: skip
