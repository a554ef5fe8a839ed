"""Workers and drivers of a fleet killed at random moments: is anything lost, done twice, left over?

    python -m benchmarks.fleet_kills [--worker-kills 50] [--driver-kills 50] [--ray-kills 0]
        [--trials 240] [--json]

A job on simulators runs once without a fleet. Then it runs with `--workers`, a local Ray each time:

- *workers*: while the job runs, the process of a worker chosen at random gets SIGKILL at a random
  moment, again and again, two times in three after new trials; jobs follow each other until there
  were `--worker-kills`;
- *driver*: `tilesmith tune` gets SIGKILL at a random moment, two times in three while it measures,
  is resumed and killed again, until there were `--driver-kills`; a job that ends before its kill
  makes room for the next;
- *ray*: processes of the job's Ray get SIGKILL at random moments, every kind in its turn: the
  node's manager (raylet), the head (gcs_server), agents, the client server, the keeper, workers.
  By kind, the longest time without a new trial in the (at most 300) that follow is printed.

Printed are the kills that hit a job at work, and of how many runs or kills trials that were in the
database were not there later (lost), a configuration was measured twice, the finished job's trials
are not those of the job without a fleet, the database did not pass its check, or a process was left
five seconds after the driver's end. The command is the adopter of all orphans (Linux), so it sees
every one.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

try:
    import numpy as np

    from benchmarks.resume import has_repeats, is_damaged, rows
    from tilesmith.capabilities.fleet.keeper import descendants, end_descendants
    from tilesmith.records import Database
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

_PR_SET_CHILD_SUBREAPER = 36
_LEFT_S = 5.0
_LONGEST_S = 1200.0
_ENOUGH = 300
"""Trials after a kill that show whether the job goes on."""
_RANDOM_S = 5.0
"""A driver is killed at most so long after its start, or its first new trial."""


@dataclass
class Tally:
    """What became of a kind of kill."""

    runs: int = 0
    kills: int = 0
    kills_at_work: int = 0
    trials_when_killed: int = 0
    failed: int = 0
    lost: int = 0
    twice: int = 0
    other_trials: int = 0
    damaged: int = 0
    processes_left: int = 0
    recovery_s: list[float] = field(default_factory=list)
    """From a kill of a worker, or from the start after a kill of a driver, to a new trial, where
    that was waited for."""


@dataclass
class Recovery:
    """Of kills of one kind of process, the longest seconds without a new trial that followed."""

    kills: int = 0
    seconds: list[float] = field(default_factory=list)
    """Of each kill that trials followed."""
    unharmed: int = 0
    """Jobs that were over before another trial was needed."""


@dataclass(frozen=True)
class Job:
    """What is tuned, and by how many."""

    operator: str
    target: str
    trials: int
    workers: int

    def start(self, path: Path, *, seed: int, workers: bool = True) -> subprocess.Popen[bytes]:
        """`tilesmith tune`, which goes on where the last one was killed."""
        words = ["tune", "--op", self.operator, "--target", self.target, "--measure", "simulator"]
        words += ["--database", str(path), "--trials", str(self.trials), "--seed", str(seed)]
        words += ["--in-flight", "4", "--json", *(["--resume"] if jobs_of(path) else [])]
        words += ["--workers", str(self.workers)] if workers else []
        return subprocess.Popen(
            [sys.executable, "-m", "tilesmith", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )


def jobs_of(path: Path) -> list[str]:
    """How the jobs of a database stand, the newest first."""
    if not path.exists():
        return []
    with Database.open(str(path)) as database:
        return [job.status for job in database.jobs()]


def worker_processes(driver: int) -> list[int]:
    """Processes of the workers below a driver."""
    found = []
    for process in descendants(driver):
        try:
            title = Path(f"/proc/{process}/cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::WorkerActor"):
            found.append(process)
    return found


def adopt_orphans() -> None:
    """Become the parent of every process whose own dies."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def left_over() -> int:
    """Processes that are still there `_LEFT_S` after a driver's end; they are killed then."""
    until = time.monotonic() + _LEFT_S
    while time.monotonic() < until:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return 0
        time.sleep(0.05)
    found = len(descendants(os.getpid()))
    end_descendants()
    return found


def judge(path: Path, expected: list[str], seen: set[str], tally: Tally) -> None:
    """Compare a finished job with the one that had no fleet."""
    found = rows(path)
    tally.runs += 1
    tally.lost += not seen <= set(found)
    tally.twice += has_repeats(found)
    tally.other_trials += found != expected
    tally.damaged += is_damaged(path)
    print(json.dumps(asdict(tally)), file=sys.stderr, flush=True)


def kill_workers(job: Job, folder: Path, kills: int, rng: np.random.Generator) -> Tally:
    """Kill workers while jobs run."""
    tally = Tally()
    while tally.kills < kills:
        seed = tally.runs
        expected = reference(job, folder, seed)
        path = folder / f"workers-{seed}.db"
        process = job.start(path, seed=seed)
        until = time.monotonic() + _LONGEST_S
        killed = False
        while process.poll() is None and time.monotonic() < until:
            if rng.random() < 2 / 3:
                waited = wait_for_more(path, len(rows(path)), process)
                tally.recovery_s += [waited] if killed and waited is not None else []
            pause(process, float(rng.uniform(0.0, 2.0)))
            found = worker_processes(process.pid)
            killed = False
            if found and tally.kills < kills and process.poll() is None:
                victim = found[int(rng.integers(len(found)))]
                os.kill(victim, signal.SIGKILL)
                tally.kills += 1
                killed = True
                at_work = len(rows(path))
                tally.kills_at_work += at_work > 0
                tally.trials_when_killed += at_work
        tally.failed += ended_badly(process)
        tally.processes_left += left_over()
        judge(path, expected, set(), tally)
    return tally


def kill_drivers(job: Job, folder: Path, kills: int, rng: np.random.Generator) -> Tally:
    """Kill the driver, resume, kill again."""
    tally = Tally()
    while tally.kills < kills:
        seed = 1000 + tally.runs
        expected = reference(job, folder, seed)
        path, seen = folder / f"driver-{seed}.db", set[str]()
        while jobs_of(path)[:1] != ["finished"]:
            process = job.start(path, seed=seed)
            if tally.kills == kills:
                process.wait()
            elif rng.random() < 2 / 3:
                waited = wait_for_more(path, len(seen), process)
                tally.recovery_s += [waited] if seen and waited is not None else []
            pause(process, float(rng.uniform(0.0, _RANDOM_S)))
            if process.poll() is None:
                process.kill()
                process.wait()
                tally.kills += 1
                tally.kills_at_work += bool(jobs_of(path))
            else:
                tally.failed += ended_badly(process)
            tally.processes_left += left_over()
            tally.damaged += is_damaged(path)
            found = set(rows(path))
            tally.lost += not seen <= found
            tally.trials_when_killed += len(found)
            seen = found
        judge(path, expected, seen, tally)
    return tally


_KINDS = {
    "raylet/raylet": "raylet", "gcs/gcs_server": "gcs_server",
    "ray::DashboardAgent": "dashboard agent",
    "ray::RuntimeEnvAgent": "runtime env agent", "ray.util.client.server": "client server",
    "dashboard/dashboard.py": "dashboard", "monitor.py": "monitor", "log_monitor": "log monitor",
    "ray::WorkerActor": "worker", "ray::Choos": "chooser", "ray::IDLE": "idle worker",
    "fleet.keeper": "keeper",
}  # fmt: skip
"""By a part of their titles, all kinds of processes that a job's Ray has."""


def ray_processes(driver: int) -> dict[str, list[int]]:
    """The processes of a job's Ray, by kind."""
    found: dict[str, list[int]] = {}
    for process in descendants(driver):
        with contextlib.suppress(OSError):
            title = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            kinds = [kind for part, kind in _KINDS.items() if part in title]
            if kinds:
                found.setdefault(kinds[0], []).append(process)
    return found


def kill_ray(
    job: Job, folder: Path, kills: int, rng: np.random.Generator
) -> tuple[Tally, dict[str, Recovery]]:
    """Kill processes of a job's Ray while it runs, each kind in its turn."""
    tally, recoveries = Tally(), dict[str, Recovery]()
    while tally.kills < kills:
        seed = 2000 + tally.runs
        expected = reference(job, folder, seed)
        path = folder / f"ray-{seed}.db"
        process = job.start(path, seed=seed)
        while process.poll() is None and tally.kills < kills:
            wait_for_more(path, count_of(path), process)
            pause(process, float(rng.uniform(0.0, 2.0)))
            there = ray_processes(process.pid)
            if process.poll() is not None or not there:
                break
            kind = min(there, key=lambda kind: recoveries.get(kind, Recovery()).kills)
            before = count_of(path)
            os.kill(there[kind][int(rng.integers(len(there[kind])))], signal.SIGKILL)
            tally.kills += 1
            tally.kills_at_work += before > 0
            tally.trials_when_killed += before
            recovery = recoveries.setdefault(kind, Recovery())
            longest = longest_pause(path, before + _ENOUGH, process)
            if count_of(path) > before:
                recovery.seconds.append(round(longest, 1))
                print(f"{kind}: {longest:.1f} s", file=sys.stderr, flush=True)
            else:
                recovery.unharmed += process.poll() == 0
            recovery.kills += 1
        pause(process, _LONGEST_S)
        tally.failed += ended_badly(process)
        tally.processes_left += left_over()
        judge(path, expected, set(), tally)
    return tally, recoveries


def longest_pause(path: Path, trials: int, process: subprocess.Popen[bytes]) -> float:
    """The longest seconds without a new trial until there are so many, or the process has ended."""
    known, since, longest = count_of(path), time.monotonic(), 0.0
    while known < trials and process.poll() is None:
        time.sleep(0.05)
        longest = max(longest, time.monotonic() - since)
        if (count := count_of(path)) > known:
            known, since = count, time.monotonic()
    return longest


def count_of(path: Path) -> int:
    """Trials in a database, however many: asked of SQLite itself, beside its writer."""
    if not path.exists():
        return 0
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        try:
            return int(connection.execute("select count(*) from trials").fetchone()[0])
        except sqlite3.OperationalError:
            return 0


def wait_for_more(path: Path, trials: int, process: subprocess.Popen[bytes]) -> float | None:
    """Wait until a database has more trials; the seconds, or None if the process has ended."""
    since = time.monotonic()
    while process.poll() is None:
        if count_of(path) > trials:
            return round(time.monotonic() - since, 1)
        time.sleep(0.1)
    return None


def pause(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait so long, or until it has ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def ended_badly(process: subprocess.Popen[bytes]) -> bool:
    """Whether a driver that was not killed did not end well; says why."""
    if process.poll() is None:
        process.kill()
    _, errors = process.communicate()
    if process.returncode:
        print(errors.decode(errors="replace")[-600:], file=sys.stderr)
    return process.returncode != 0


def reference(job: Job, folder: Path, seed: int) -> list[str]:
    """Trials of the job without a fleet."""
    path = folder / f"reference-{seed}.db"
    if job.start(path, seed=seed, workers=False).wait(_LONGEST_S):
        raise SystemExit("the job without a fleet failed")
    return rows(path)


def spread(seconds: list[float]) -> str:
    """Their median and the longest."""
    took = sorted(seconds)
    return f"{took[len(took) // 2]:.1f} s, most {took[-1]:.1f} s" if took else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker-kills", type=int, default=50)
    parser.add_argument("--driver-kills", type=int, default=50)
    parser.add_argument("--ray-kills", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--trials", type=int, default=240)
    parser.add_argument("--operator", default="matmul m=512 n=512 k=512")
    parser.add_argument("--target", default="trn1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    job = Job(given.operator, given.target, given.trials, given.workers)
    rng = np.random.default_rng(given.seed)
    adopt_orphans()
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "workers": kill_workers(job, Path(folder), given.worker_kills, rng),
            "driver": kill_drivers(job, Path(folder), given.driver_kills, rng),
        }
        found["ray"], recoveries = kill_ray(job, Path(folder), given.ray_kills, rng)
    if given.json:
        told = {kind: asdict(recovery) for kind, recovery in recoveries.items()}
        print(json.dumps({name: asdict(tally) for name, tally in found.items()} | told))
        return
    for kind, recovery in sorted(recoveries.items()):
        middle = spread(recovery.seconds)
        ended = f" ({recovery.unharmed} at the job's end)" if recovery.unharmed else ""
        print(f"{kind:22} {recovery.kills:3d} kills, longest without a trial {middle}{ended}")
    print(f"{'killed':22} {'workers':>8} {'driver':>8} {'ray':>8}")
    for kind, tally in found.items():
        print(f"{kind:22} recovery {spread(tally.recovery_s)}")
    for name in [name for name in asdict(Tally()) if name != "recovery_s"]:
        values = (getattr(tally, name) for tally in found.values())
        print(f"{name.replace('_', ' '):22} " + " ".join(f"{value:8d}" for value in values))


if __name__ == "__main__":
    main()
