"""The first runs of a profile as a Chrome/Perfetto trace: one track a thread, and one of the runs.

Format: "Trace Event Format", complete events ("ph": "X"), times in microseconds. Events of a track
never overlap; what a thread waits for the others is an event of its own, behind what it did.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilesmith.capabilities.profile.report import OperatorTime, ProfileReport
from tilesmith.search_space.support.files import written

if TYPE_CHECKING:
    from tilesmith.compiler.runtime.profiling import Event

_RUNS = 1000
"""Number of the track of whole runs: behind all threads."""


def write_trace(path: Path, report: ProfileReport, events: "Sequence[Event]") -> None:
    """Write a trace; errors as `search_space.support.files.written`."""
    arguments = _told(report.ops)
    with written(path) as out:
        out.write(b'{"displayTimeUnit": "ns", "traceEvents": [\n')
        rows = (json.dumps(row) for row in (*_names(report, events), *_rows(events, arguments)))
        for number, row in enumerate(rows):
            out.write((",\n" if number else "").encode() + row.encode())
        out.write(b"\n]}\n")


def _told(ops: Iterable[OperatorTime]) -> Mapping[tuple[str, str], dict[str, Any]]:
    """What is shown of an operator beside its times, by its sources and workload."""
    return {
        (op.name, op.workload): {
            "operator": op.operator,
            "part": op.part,
            "algorithm": op.algorithm,
            "nodes": list(op.sources),
            "workload": op.workload,
            "config": op.config,
            "schedule": op.origin,
            "bound": op.bound,
            "foretold us": op.predicted_us,
            "mean us": op.us,
        }
        for op in ops
    }


def _names(report: ProfileReport, events: "Sequence[Event]") -> Iterator[dict[str, Any]]:
    def named(kind: str, name: str, **more: Any) -> dict[str, Any]:
        row = {"ph": "M", "ts": 0, "pid": 1, "tid": 0, "name": kind, "args": {"name": name}}
        return {**row, **more}

    yield named("process_name", f"{report.model} on {report.target}")
    for thread in sorted({event.thread for event in events if event.step is not None}):
        yield named("thread_name", f"thread {thread}", tid=thread)
    yield named("thread_name", "runs", tid=_RUNS)


def _rows(
    events: "Sequence[Event]", arguments: Mapping[tuple[str, str], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    start = min((event.start for event in events), default=0.0)
    run = 0
    for event in events:
        row: dict[str, Any] = {
            "ph": "X",
            "pid": 1,
            "tid": event.thread,
            "ts": round((event.start - start) / 1e3, 3),
            "dur": round((event.stop - event.start) / 1e3, 3),
        }
        if event.step is None:
            run += 1
            yield {**row, "tid": _RUNS, "name": f"run {run}", "cat": "run"}
            continue
        step: Any = event.step
        sources = getattr(step, "sources", ())
        name = str(sources[0] if sources else step.name)
        args = arguments.get((name, getattr(step, "workload", "")), {})
        if event.wait:
            yield {**row, "name": "wait", "cat": "wait", "args": {"after": name}}
        else:
            yield {**row, "name": name, "cat": args.get("operator", "step"), "args": args}
