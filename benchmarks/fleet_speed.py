"""Simulated trials a second by the number of workers on this machine, and whether bests agree.

    python -m benchmarks.fleet_speed [--workers 1,2] [--trials 600] [--strategy random] [--json]
        [--operator "matmul m=512 n=512 k=512"] [--target trn1] [--rounds 1]
        [--in-flight D] [--choosing C] [--own-cores]

Each number of workers gets a local Ray of its own. The rate is that between
the first progress after a tenth of the trials and the last, so that neither Ray's start nor the
import of libraries in the workers counts; numbers of workers take turns, `--rounds` times. With
`--own-cores` N workers have N cores, which the job's own process shares with them: without it one
worker has two already where proposals are made beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

try:
    import tilesmith as ts
    from tilesmith.api import tune
    from tilesmith.records import Database
    from tilesmith.tuner.session.progress import Progress
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None


class Clock:
    """Moments and trials of a job's progress."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    def __call__(self, progress: Progress) -> None:
        self.seen.append((time.monotonic(), progress.trials))

    @property
    def rate(self) -> float:
        """Trials a second, without the first tenth."""
        last = self.seen[-1]
        first = next(one for one in self.seen if one[1] >= last[1] / 10)
        return (last[1] - first[1]) / (last[0] - first[0])


def measured(given: argparse.Namespace, workers: int, path: Path) -> tuple[float, list[str]]:
    """Rate of one job, and the keys of its best configurations."""
    clock = Clock()
    if given.own_cores:
        os.sched_setaffinity(0, given.cores[: max(1, workers)])
    tune(
        [ts.Workload.parse(text) for text in given.operator],
        given.target,
        path,
        trials=given.trials,
        measure="simulator",
        strategy=given.strategy,
        in_flight=given.in_flight,
        choosing=given.choosing,
        workers=workers or None,
        observer=clock,
    )
    with Database.open(str(path)) as database:
        return clock.rate, [best.record.config.key for best in database.overview()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", default="1,2", help="0: no fleet at all")
    parser.add_argument("--trials", type=int, default=600)
    parser.add_argument("--strategy", default="random")
    parser.add_argument("--operator", action="append")
    parser.add_argument("--target", default="trn1")
    parser.add_argument("--in-flight", type=int, help="as `tilesmith tune` does unless given")
    parser.add_argument("--choosing", type=int)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--own-cores", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.cores = sorted(os.sched_getaffinity(0)) if given.own_cores else []
    given.operator = given.operator or ["matmul m=512 n=512 k=512"]
    numbers = [int(text) for text in given.workers.split(",")]
    rates: dict[int, list[float]] = {number: [] for number in numbers}
    bests = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(given.rounds):
            for number in numbers:
                path = Path(folder, f"{number}-{turn}.db")
                rate, best = measured(given, number, path)
                rates[number].append(rate)
                bests.append(best)
    medians = {number: statistics.median(found) for number, found in rates.items()}
    same = all(best == bests[0] for best in bests)
    if given.json:
        print(json.dumps({"trials_per_s": medians, "same_bests": same}))
        return
    for number, rate in medians.items():
        print(f"{number:3d} workers {rate:9.1f} trials/s {rate / medians[numbers[0]]:6.2f} times")
    print("bests are the same" if same else "bests DIFFER")


if __name__ == "__main__":
    main()
