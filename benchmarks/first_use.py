"""What tuning on first use costs and brings: `python -m benchmarks.first_use --part first MODELS`.

    first    seconds from a fresh process's first line to its first answer, the model compiled
             before, or its kernels alone, beside onnxruntime's (session and first run), imports of
             both counted apart; bytecode is cached, as an installer does
    traffic  calls at half load: without a tuner, then beside one for some seconds; then the model
             in turns untuned, as the traffic left it, and tuned offline for some seconds
    busy     processor seconds that the tuner takes in some seconds while others fill all cores

Each part prints a line for a model. Fractions of the offline gain are of the time saved.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import tilesmith as ts
from tilesmith.capabilities.first_use import following
from tilesmith.capabilities.first_use.exchange import ExchangedExecutable
from tilesmith.jobs.compilation.compiling import random_inputs
from tilesmith.jobs.measures.timing import interleave

_FIRST = {
    "tilesmith": """
import tilesmith as ts
started = time.perf_counter()
model = ts.compile(path, tune="background")
model.run(inputs)
""",
    "onnxruntime": """
import onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
started = time.perf_counter()
session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
session.run(None, inputs)
""",
}
_FIRST["kernels"] = _FIRST["tilesmith"]


def first(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Median seconds of either's first answer, in fresh processes in turns."""
    model = ts.compile(path, database=None)  # code is cached from here on
    assert isinstance(model, ts.Executable)
    for thread in threading.enumerate():  # what writes the model
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/x.npz", **random_inputs(model))  # type: ignore[arg-type]
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in _FIRST}
        plain = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
        for _ in range(arguments.repeats):
            for name, code in _FIRST.items():
                program = (
                    "import json, time\nimport numpy as np\nbegun = time.perf_counter()\n"
                    f"path, inputs = {str(path)!r}, dict(np.load('{folder}/x.npz'))\n{code}\n"
                    "now = time.perf_counter()\nprint(json.dumps([now - started, now - begun]))\n"
                    "import os; os._exit(0)\n"
                )
                done = subprocess.run(
                    [sys.executable, "-c", program], capture_output=True, text=True, check=True,
                    env=plain | ({"TILESMITH_CACHE_MIB": "0"} if name == "kernels" else {}),
                )  # fmt: skip
                taken[name].append(tuple(json.loads(done.stdout.splitlines()[-1])))
    seconds = {n: [statistics.median(v) for v in zip(*t, strict=True)] for n, t in taken.items()}
    ours, theirs = seconds["tilesmith"], seconds["onnxruntime"]
    return {
        "tilesmith_s": ours[0], "onnxruntime_s": theirs[0], "ratio": ours[0] / theirs[0],
        "kernels_cached_s": seconds["kernels"][0],
        "with_imports_s": ours[1], "onnxruntime_with_imports_s": theirs[1],
    }  # fmt: skip


def calls(model: Any, inputs: Mapping[str, Any], seconds: float) -> list[tuple[int, float]]:
    """Calls at half load for so long: of each the program that ran, and its seconds."""
    taken = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        program = id(getattr(model, "_current", None))
        start = time.perf_counter()
        model.run(inputs)
        took = time.perf_counter() - start
        taken.append((program, took))
        time.sleep(took)
    return taken


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(0.99 * len(seconds))]


def traffic(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """See the module."""
    model = ts.compile(path, tune="background", database="first_use.db")
    assert isinstance(model, ExchangedExecutable)
    following._follower.close()  # nobody tunes yet
    inputs = random_inputs(model)
    before = [took for _, took in calls(model, inputs, arguments.seconds / 6)]
    following._follower = following.Follower()
    model = ts.compile(path, tune="background", database="first_use.db")
    assert isinstance(model, ExchangedExecutable)
    untuned = model._current
    during = calls(model, inputs, arguments.seconds)
    following._follower.close()
    programs = list(dict.fromkeys(program for program, _ in during))
    own = [took for program, took in during if program == programs[0]]
    ts.tune(path, database="offline.db", time_limit=arguments.offline)
    offline = ts.compile(path, database="offline.db")
    assert isinstance(offline, ts.Executable)
    turns = {"untuned": untuned, "background": model._current, "offline": offline}
    runs = {name: (lambda one=one: one.run(inputs)) for name, one in turns.items()}
    median = {name: timing.median_ms for name, timing in interleave(runs, 6.0).items()}
    saved, most = (median["untuned"] - median[name] for name in ("background", "offline"))
    return {
        **{f"{name}_ms": value for name, value in median.items()},
        "of_the_offline_gain": saved / most if most > 0.01 * median["untuned"] else None,
        "exchanges": len(programs) - 1, "calls": len(during),
        "p50_ratio_while_tuning": statistics.median(own) / statistics.median(before),
        "p99_ratio_while_tuning": p99(own) / p99(before),
    }  # fmt: skip


def busy(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """See the module."""
    code = "while True: pass"
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in os.sched_getaffinity(0)]
    try:
        model = ts.compile(path, tune="background", database="busy.db")
        time.sleep(arguments.seconds / 3)  # it starts, sees the load, and waits
        process = following._follower._process
        assert process is not None
        before = processor_seconds(process.pid)
        time.sleep(arguments.seconds)
        used = processor_seconds(process.pid) - before
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert model.inputs
    return {"seconds": arguments.seconds, "tuner_processor_s": used}


def processor_seconds(process: int) -> float:
    """Of a process and those that it started."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if process in (int(fields[1]), int(fields[2])):
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


PARTS = {"first": first, "traffic": traffic, "busy": busy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="+", type=Path, help="ONNX files")
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--seconds", type=float, default=60.0, help="of traffic beside the tuner")
    parser.add_argument("--offline", type=float, default=40.0, help="seconds of tuning offline")
    parser.add_argument("--repeats", type=int, default=3, help="fresh processes of each")
    arguments = parser.parse_args()
    paths = [path.resolve() for path in arguments.models]
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TILESMITH_TUNE"] = "never"
            os.chdir(folder)
            figures = PARTS[arguments.part](path, arguments)
            following._follower.close()
            time.sleep(2)  # the tuner sees that nobody is left
        shown = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in figures.items()}
        print(path.stem, json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
