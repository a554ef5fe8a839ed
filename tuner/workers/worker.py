"""The worker process of the hardware runner: reads requests from stdin, writes replies to stdout.

First line: {"backend", "target", "threads", "folder", "memory_mib", "cores"}; the reply says it is
ready. Cores it is given are the only ones it runs on. Then one request a line: {"measure": {...}},
{"compare": {...}} or {"build": {...}}, and beside it perhaps {"reference": {...}}, a kernel to look
at afterwards; a reply says if the clocks of this machine disagreed meanwhile. The process limits
its own memory and ignores Ctrl-C (its parent decides); it was started so that it dies with its
parent (`tuner.workers.worker_process`). Whatever a candidate prints goes to stderr.
"""

import importlib
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import result_to_json
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.machines.clocks import ClockWatch, step_of, unreadable
from tilesmith.tuner.measurement.trial import Bench


def main() -> None:
    """Serve requests until stdin ends."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setup = json.loads(requests.readline())
    if setup.get("cores"):
        os.sched_setaffinity(0, setup["cores"])
    target = Target.from_json(setup["target"])
    backend = importlib.import_module(setup["backend"]).open_backend(target, setup["threads"])
    bench = Bench(backend, Path(setup["folder"]))
    _limit_memory(setup["memory_mib"])
    _say(replies, {"ready": True})
    clocks, step = ClockWatch(), step_of()
    for request in requests:
        clocks.look()
        asked = json.loads(request)
        results, spent = _serve(bench, asked), bench.watch.seconds
        reply = {"results": results, "spent": spent, "look": _look(bench, asked.get("reference"))}
        jump = clocks.look() or unreadable(results, step)
        reply["clock"] = None if jump is None else vars(jump)
        _say(replies, {**reply, "resident": resident_bytes()})


def _serve(bench: Bench, request: dict[str, Any]) -> list[dict[str, Any]]:
    if "measure" in request:
        asked = request["measure"]
        workload = Workload.parse(asked["workload"])
        result = bench.measure(workload, Config.of(asked["config"]), asked["incumbent"])
        return [result_to_json(result)]
    if "build" in request:
        asked = request["build"]
        bench.build(Workload.parse(asked["workload"]), Config.of(asked["config"]))
        return []
    asked = request["compare"]
    configs = [Config.of(values) for values in asked["configs"]]
    return [result_to_json(r) for r in bench.compare(Workload.parse(asked["workload"]), configs)]


def _look(bench: Bench, reference: dict[str, Any] | None) -> float | None:
    """Seconds of the reference kernel now; None without one, or where it does not run."""
    if reference is None:
        return None
    try:
        return bench.look(Workload.parse(reference["workload"]), Config.of(reference["config"]))
    except Exception:  # it ran before: the next trial will tell what is wrong
        return None


def _say(replies: BinaryIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
    replies.flush()


def _limit_memory(mebibytes: int) -> None:
    """Allow so much address space beyond what is in use: allocations above it fail."""
    used = _statm()[0]
    limit = used + (mebibytes << 20)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if used and (hard == resource.RLIM_INFINITY or limit < hard):
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def resident_bytes() -> int:
    """Memory in use now, bytes; 0 where the system does not tell."""
    return _statm()[1]


def _statm() -> tuple[int, int]:
    """Address space and resident memory in bytes."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0, 0
    page = resource.getpagesize()
    return int(fields[0]) * page, int(fields[1]) * page
