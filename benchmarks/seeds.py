"""Does the luck of a search matter? One model tuned with several seeds, compiled, timed in turns.

    python benchmarks/seeds.py [--model resnet50] [--seeds 2] [--minutes-each 2] [--keep FOLDER]

Every seed starts from an empty database. Prints one JSON object: median latency for each seed, how
far the slowest lies behind the fastest, and the operators whose published schedule came out slower
than their default.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from models import MODELS, write_models

import tilesmith
from tilesmith.display.output import note
from tilesmith.jobs.compilation.compiling import random_inputs
from tilesmith.jobs.measures.timing import interleave, pinned


def measure(path: Path, folder: Path, seeds: int, minutes: float) -> dict[str, object]:
    """Tune once for each seed, then time all of them in turns."""
    slower: list[str] = []
    with pinned(1):
        calls = {}
        for seed in range(seeds):
            database = folder / f"{path.stem}-seed{seed}.db"
            report = tilesmith.tune(path, database=database, time_limit=60 * minutes, seed=seed)
            slower += [
                task.workload
                for task in report.tasks
                if task.best_us and task.default_us and task.best_us > task.default_us
            ]
            executable = tilesmith.compile(path, database=database)
            note(f"seed {seed}: {report.trials} trials")
            calls[str(seed)] = executable.bind(random_inputs(executable)).run
        timings = interleave(calls, budget_s=15.0)
    medians = {seed: timing.median_ms for seed, timing in timings.items()}
    return {
        "model": path.stem,
        "median_ms": {seed: round(median, 2) for seed, median in medians.items()},
        "slowest_over_fastest": round(max(medians.values()) / min(medians.values()), 3),
        "slower_than_default": slower,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50", choices=list(MODELS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--minutes-each", type=float, default=2.0, help="tuning for each seed")
    parser.add_argument("--keep", type=Path, help="folder for model and databases")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        (path,) = write_models(folder, [arguments.model])
        found = measure(path, folder, arguments.seeds, arguments.minutes_each)
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
