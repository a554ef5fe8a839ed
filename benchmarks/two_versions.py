"""Two versions of Tilesmith on the same schedules, in turns: does a change cost speed?

    git worktree add ../before REVISION
    python benchmarks/two_versions.py --before ../before [--only NAME ...] [--seconds-each 15]

Each operator of `peers.py` is tuned by the earlier version; both then compile the model from copies
of one database and run it in turns, pinned to one core, a process each. The figure is the median
over all turns of this version's time over the earlier one's; a turn is the fastest of a few runs,
so that what disturbs the machine for moments does not count. Where this version takes other
schedules of the same records (some may be stale to it), the row says so and does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
TURNS = 41
TURN_SECONDS = 0.02
LIMIT = 1.02
"""The largest ratio that passes."""


def serve(model: str, database: str) -> None:
    """The child: compile with whatever `tilesmith` is on the path, time a turn for each line."""
    import tilesmith

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    executable = tilesmith.compile(model, database=database)
    inputs = executable_inputs(executable)
    for _ in range(3):
        executable.run(inputs)
    kernels = [step for step in executable.recipe.steps if type(step).__name__ == "KernelStep"]
    print(json.dumps([step.config for step in kernels], default=dict), flush=True)
    for _line in sys.stdin:
        best, end = float("inf"), time.perf_counter() + TURN_SECONDS
        while (start := time.perf_counter()) < end:
            executable.run(inputs)
            best = min(best, time.perf_counter() - start)
        print(json.dumps(best), flush=True)


def executable_inputs(executable: Any) -> dict[str, Any]:
    """Seeded inputs of the shapes a model wants."""
    import numpy as np

    rng = np.random.default_rng(0)
    return {
        info.name: rng.standard_normal(info.shape).astype(np.float32) for info in executable.inputs
    }


class Version:
    """One checkout's process, compiled and warm."""

    def __init__(self, checkout: Path, model: Path, database: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), "--serve", str(model), str(database)],
            env={**os.environ, "PYTHONPATH": str(checkout)}, cwd=checkout, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.schedules = self._reply()

    def turn(self) -> float:
        """Seconds of one run."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._reply())

    def _reply(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(
    before: Path, model: Path, folder: Path, seconds: float
) -> tuple[float, float, float, bool]:
    """(milliseconds before, milliseconds now, median ratio, whether schedules are the same)."""
    database, copy = folder / "before.db", folder / "now.db"
    for path in (database, copy):
        path.unlink(missing_ok=True)
    words = ["tune", str(model), "--database", str(database), "--time-limit", str(seconds)]
    subprocess.run(
        [sys.executable, "-m", "tilesmith", *words], check=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(before)}, cwd=before,
    )  # fmt: skip
    shutil.copy(database, copy)
    versions = [Version(before, model, database), Version(HERE, model, copy)]
    times: list[list[float]] = [[], []]
    for turn in range(TURNS):
        for number in (0, 1) if turn % 2 else (1, 0):
            times[number].append(versions[number].turn())
    for version in versions:
        version.close()
    ratio = statistics.median(now / old for old, now in zip(*times, strict=True))
    old, now = (statistics.median(column) * 1e3 for column in times)
    return old, now, ratio, versions[0].schedules == versions[1].schedules


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="a checkout of the earlier version")
    parser.add_argument("--only", nargs="*", help="parts of names to compare")
    parser.add_argument("--seconds-each", type=float, default=15.0, help="tuning time per operator")
    parser.add_argument("--serve", nargs=2, metavar=("MODEL", "DATABASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return 0
    if options.before is None:
        parser.error("--before CHECKOUT is needed")
    from peers import CASES
    from subjects import operator_models as models

    worst = 0.0
    print("operator | before ms | now ms | ratio\n---|--:|--:|--:", flush=True)
    with tempfile.TemporaryDirectory() as name:
        for operator, case in CASES.items():
            if options.only is None or any(part in operator for part in options.only):
                model = models.save(case.make(), Path(name) / "model.onnx")
                before = options.before.resolve()
                old, now, ratio, same = compare(before, model, Path(name), options.seconds_each)
                worst = max(worst, ratio if same else 0.0)
                note = "" if same else " (other schedules)"
                print(f"{operator} | {old:.4g} | {now:.4g} | {ratio:.3f}{note}", flush=True)
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
