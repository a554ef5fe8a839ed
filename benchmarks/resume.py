"""Tuning jobs killed at random moments: is anything lost, measured twice, or decided otherwise?

    python benchmarks/resume.py [--kills 50] [--jobs 10] [--trials 96] [--seed 0] [--json]

Each of `--jobs` jobs (another seed, strategy and target each, simulator, trial budget) runs once
uninterrupted. Then it runs `--kills` / `--jobs` times more: its process gets SIGKILL after a random
share of that time, and is resumed in a new process; every second time the resumed one is killed
too. Printed are the kills that hit a job at work, and of how many runs

- a trial that was in the database when the job was killed was not there at the end (lost),
- a configuration was measured twice, by the count of rows,
- the trials or the best schedules are not those of the uninterrupted run,
- the database did not pass its integrity check after the kill or at the end.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import tilesmith as ts
import tilesmith.jobs.tuning.job  # before forking, so that kills hit the job itself
from tilesmith.api import tune
from tilesmith.records import Database

OPERATORS = ("matmul m=128 n=256 k=64 const=b", "matmul m=64 n=64 k=512", "softmax shape=64x96")
TARGETS = ("cpu", "systolic")
STRATEGIES = ("evolutionary", "random", "annealing")


@dataclass(frozen=True)
class Job:
    """What is tuned, and how."""

    operators: tuple[str, ...]
    target: str
    strategy: str
    seed: int
    trials: int

    def run(self, path: str) -> None:
        """Start the job, or go on with it; nothing is left to do if it was killed after its end."""
        with Database.open(path) as database:
            known = database.jobs()
        if known and known[0].status == "finished":
            return
        tune(
            [ts.Workload.parse(text) for text in self.operators],
            self.target,
            path,
            trials=self.trials,
            measure="simulator",
            seed=self.seed,
            strategy=self.strategy,
            resume=bool(known),
        )


@dataclass
class Tally:
    """What became of the killed runs."""

    runs: int = 0
    kills: int = 0
    kills_at_work: int = 0
    trials_when_killed: int = 0
    lost: int = 0
    twice: int = 0
    other_trials: int = 0
    other_bests: int = 0
    damaged: int = 0


def started(job: Job, path: Path) -> multiprocessing.process.BaseProcess:
    """The job in a process of its own, forked from this one."""
    process = multiprocessing.get_context("fork").Process(target=job.run, args=(str(path),))
    process.start()
    return process


def rows(path: Path) -> list[str]:
    """Every trial as its line of an export, without times and hosts; sorted."""
    if not path.exists():
        return []
    with Database.open(str(path)) as database:
        lines = list(database.export_lines())[1:]
    trials = [json.loads(line) for line in lines]
    for trial in trials:
        for name in ("created_at", "elapsed_s", "host"):
            trial.pop(name, None)
    return sorted(json.dumps(trial, sort_keys=True) for trial in trials)


def has_repeats(trials: list[str]) -> bool:
    """Whether a configuration was measured twice."""
    found = [(trial["workload"], json.dumps(trial["config"])) for trial in map(json.loads, trials)]
    return len(set(found)) != len(found)


def bests(path: Path) -> list[tuple[str, str]]:
    """Workload and configuration of each best schedule."""
    with Database.open(str(path)) as database:
        return [(best.record.workload_key, best.record.config.key) for best in database.overview()]


def is_damaged(path: Path) -> bool:
    if not path.exists():
        return False
    with Database.open(str(path)) as database:
        return bool(database.check())


def jobs(count: int, trials: int) -> Iterator[Job]:
    for number in range(count):
        target = TARGETS[number % 2]
        operators = OPERATORS if target == "cpu" else OPERATORS[:2]
        yield Job(operators, target, STRATEGIES[number % 3], number, trials)


def killed_run(
    job: Job, path: Path, whole_s: float, rng: np.random.Generator, twice: bool, tally: Tally
) -> None:
    """Kill the job once or twice at random moments, then let it end."""
    seen: set[str] = set()
    for _ in range(2 if twice else 1):
        process = started(job, path)
        process.join(float(rng.uniform(0.0, whole_s)))
        tally.kills += 1
        tally.kills_at_work += process.is_alive()
        process.kill()
        process.join()
        tally.damaged += is_damaged(path)
        found = rows(path)
        tally.trials_when_killed += len(found)
        tally.lost += not seen <= set(found)
        seen = set(found)
    process = started(job, path)
    process.join()
    assert process.exitcode == 0, f"the resumed job ended with {process.exitcode}"
    tally.lost += not seen <= set(rows(path))
    tally.damaged += is_damaged(path)


def study(kills: int, count: int, trials: int, seed: int, folder: Path) -> Tally:
    rng, tally = np.random.default_rng(seed), Tally()
    for number, job in enumerate(jobs(count, trials)):
        reference = folder / f"{number}.db"
        start = time.perf_counter()
        process = started(job, reference)
        process.join()
        assert process.exitcode == 0, "the uninterrupted job failed"
        whole_s = time.perf_counter() - start
        expected, chosen = rows(reference), bests(reference)
        for turn in range(-(-kills // count)):
            path = folder / f"{number}-{turn}.db"
            killed_run(job, path, whole_s, rng, turn % 2 == 1, tally)
            found = rows(path)
            configurations = [
                (r["workload"], json.dumps(r["config"])) for r in map(json.loads, found)
            ]
            tally.runs += 1
            tally.twice += len(set(configurations)) != len(configurations)
            tally.other_trials += found != expected
            tally.other_bests += bests(path) != chosen
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="runs to kill")
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--trials", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        tally = study(given.kills, given.jobs, given.trials, given.seed, Path(folder))
    if given.json:
        print(json.dumps(asdict(tally)))
        return
    for name, value in asdict(tally).items():
        print(f"{name.replace('_', ' '):22} {value:6d}")


if __name__ == "__main__":
    main()
