"""Jobs that are stopped at random moments: does each end in order, whatever it is in the middle of?

    python -m benchmarks.interrupts [--times 30] [--within 3] [--measure simulator] [--workers N]

`tilesmith tune` is started and gets SIGINT, SIGTERM or SIGHUP after a random time: while it
imports, opens its database, measures or commits. Printed are, by signal, how many stops hit a job
that was registered, and of how many

- the exit code is not 128 and the signal's number (those that came before a line of ours ran are
  counted apart: "too early"),
- stderr shows a traceback, or does not end with one sentence,
- the database has a job that is said to run, or to be dead,
- the sentence tells another number of trials than the database has;

and the longest time from the signal to the end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tilesmith.records import Database

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Tally:
    """What became of the jobs that one signal stopped."""

    stops: int = 0
    too_early: int = 0
    of_a_job: int = 0
    trials: int = 0
    wrong_code: int = 0
    traceback: int = 0
    no_sentence: int = 0
    left_running: int = 0
    lost: int = 0
    longest_s: float = 0.0


def stopped(words: list[str], number: signal.Signals, after_s: float, tally: Tally) -> None:
    """One job, stopped once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.db")
        process = subprocess.Popen(
            [sys.executable, "-m", "tilesmith", "tune", *words, "--database", str(path)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        time.sleep(after_s)
        os.killpg(process.pid, number)
        begun = time.monotonic()
        _, said = process.communicate()
        tally.longest_s = max(tally.longest_s, round(time.monotonic() - begun, 2))
        judge(process.returncode, said, path, number, tally)


def judge(code: int, said: str, path: Path, number: signal.Signals, tally: Tally) -> None:
    """Count what went wrong; what did is shown."""
    tally.stops += 1
    if code == -number:
        tally.too_early += 1
        return
    before = asdict(tally)
    lines = said.strip().splitlines() or [""]
    tally.wrong_code += code != 128 + number
    tally.traceback += "Traceback" in said or "internal error" in said
    tally.no_sentence += not lines[-1].startswith("tilesmith: ")
    statuses, trials = (), 0
    if path.exists():
        with Database.open(str(path), create=True) as database:
            statuses = tuple("lost" if job.lost else job.status for job in database.jobs())
            trials = database.stats()["trials"]
    tally.left_running += not set(statuses) <= {"interrupted"}
    told = re.search(r"after (\d+) trials", lines[-1])
    tally.lost += told is not None and int(told[1]) != trials
    if before | {"stops": 0} != asdict(tally) | {"stops": 0}:
        print(number.name, code, statuses, trials, said, sep="\n", file=sys.stderr)
    tally.of_a_job += bool(statuses)
    tally.trials += trials


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=30, help="stops by each signal")
    parser.add_argument("--within", type=float, default=3.0, help="seconds after the start")
    parser.add_argument("--operator", default="matmul m=16 n=32 k=8 const=b")
    parser.add_argument("--measure", default="simulator")
    parser.add_argument("--workers", help="as of 'tilesmith tune'")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    words = ["--op", given.operator, "--measure", given.measure, "--trials", "100000"]
    words += ["--workers", given.workers] if given.workers else []
    tallies = {number.name: Tally() for number in SIGNALS}
    for turn in range(given.times * len(SIGNALS)):
        number = SIGNALS[turn % len(SIGNALS)]
        stopped(words, number, float(rng.uniform(0.0, given.within)), tallies[number.name])
    if given.json:
        print(json.dumps({name: asdict(tally) for name, tally in tallies.items()}))
        return
    print(f"{'':12} " + " ".join(f"{name:>8}" for name in tallies))
    for name in asdict(Tally()):
        values = (getattr(tally, name) for tally in tallies.values())
        print(f"{name.replace('_', ' '):12} " + " ".join(f"{value:8g}" for value in values))


if __name__ == "__main__":
    main()
