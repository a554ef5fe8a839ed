"""Two threads against one on a whole model, with both cores free.

    python benchmarks/threads.py [--model resnet50] [--minutes-each 2.5] [--keep FOLDER]

The model is tuned for one thread and then, starting from those schedules, for two; both compiled
models run in turns within one run, on the same cores. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from models import MODELS, write_models

import tilesmith
from tilesmith.display.output import note
from tilesmith.jobs.compilation.compiling import random_inputs
from tilesmith.jobs.measures.timing import interleave, pinned


def measure(path: Path, database: Path, minutes: float) -> dict[str, float | str]:
    """Tune and time; the speed-up is that of median latencies."""
    with pinned(2):
        calls = {}
        for threads in (1, 2):
            tilesmith.tune(path, database=database, time_limit=60 * minutes, threads=threads)
            executable = tilesmith.compile(path, database=database, threads=threads)
            note(f"{threads} threads: {executable.report.tuned} kernels tuned")
            calls[str(threads)] = executable.bind(random_inputs(executable)).run
        timings = interleave(calls, budget_s=10.0)
    one, two = timings["1"].median_ms, timings["2"].median_ms
    return {
        "model": path.stem,
        "one_thread_ms": round(one, 2),
        "two_threads_ms": round(two, 2),
        "speed_up": round(one / two, 2),
    }


def main() -> None:
    os.environ.setdefault("TILESMITH_PACKS", "none")  # a pack may know these models
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50", choices=list(MODELS))
    parser.add_argument("--minutes-each", type=float, default=2.5, help="tuning per thread count")
    parser.add_argument("--keep", type=Path, help="folder for model and database")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        (path,) = write_models(folder, [arguments.model])
        database = folder / f"{arguments.model}-threads.db"
        print(json.dumps(measure(path, database, arguments.minutes_each), indent=2))


if __name__ == "__main__":
    main()
