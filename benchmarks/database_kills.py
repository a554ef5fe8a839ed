"""The database server killed at random moments under tuning jobs: is anything lost, or there twice?

    python -m benchmarks.database_kills [--kills 50] [--trials 96] [--seed 0] [--json]

A PostgreSQL server of its own (`benchmarks.subjects.postgres_server`) is, in turns and at random
moments, restarted fast, restarted at once (`-m immediate`), or killed (`kill -9` of all its
processes) and started again, while a job runs on it (simulators, a trial budget; another seed,
strategy and target each). Printed are the kills that hit a job at work, and of how many jobs

- the process failed (it is then resumed once, as its sentence says),
- a trial that the database held after a kill was not there at the end (lost),
- a configuration is there twice, by the count of rows,
- the trials or the best schedules are not those of the same job never disturbed,
- the database did not pass its check,
- a process was left behind.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

try:
    import numpy as np
    from sqlalchemy import create_engine, text

    import tilesmith as ts
    import tilesmith.jobs.tuning.job  # before forking, so that kills hit the job itself
    from benchmarks.resume import Job, jobs
    from benchmarks.subjects.postgres_server import Server
    from tilesmith.api import tune
    from tilesmith.records import Database
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

_PAUSE_S = (0.1, 1.5)
"""Between two kills of the server, drawn evenly."""
_KILLS_A_JOB = 8
"""At most: a job that waits for its server does not end, and would take all of them."""


@dataclass
class Tally:
    """What became of the jobs."""

    jobs: int = 0
    kills: int = 0
    kills_at_work: int = 0
    failed: int = 0
    lost: int = 0
    twice: int = 0
    other_trials: int = 0
    other_bests: int = 0
    damaged: int = 0
    left_behind: int = 0


def run(job: Job, url: str) -> None:
    tune(
        [ts.Workload.parse(words) for words in job.operators],
        job.target,
        url,
        trials=job.trials,
        measure="simulator",
        seed=job.seed,
        strategy=job.strategy,
        resume=True,
    )


def started(job: Job, url: str) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=run, args=(job, url))
    process.start()
    return process


def rows(url: str) -> Counter[str]:
    """Every trial without its time, host and place, and how often it is there."""
    with Database.open(url) as database:
        records = database.query(limit=None)
    return Counter(
        f"{r.workload_key} {r.config.key} {r.latency} {r.result.status}" for r in records
    )


def bests(url: str) -> list[tuple[str, str]]:
    with Database.open(url) as database:
        return [(best.record.workload_key, best.record.config.key) for best in database.overview()]


def empty(url: str) -> None:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()


def disturb(server: Server, number: int) -> None:
    """One of the three ways in turn."""
    if number % 3 == 2:
        server.kill()
        server.start()
    else:
        server.restart("fast" if number % 3 == 0 else "immediate")


def disturbed(job: Job, server: Server, rng: np.random.Generator, tally: Tally, most: int) -> None:
    """Run a job while the server is killed again and again; then let it end."""
    seen: Counter[str] = Counter()
    process = started(job, server.url)
    for _ in range(min(most, _KILLS_A_JOB)):
        process.join(float(rng.uniform(*_PAUSE_S)))
        if not process.is_alive():
            break
        disturb(server, tally.kills)
        tally.kills += 1
        tally.kills_at_work += process.is_alive()
        found = rows(server.url)
        tally.lost += bool(seen - found)
        seen = found
    process.join()
    if process.exitcode:
        tally.failed += 1
        again = started(job, server.url)
        again.join()
    tally.lost += bool(seen - rows(server.url))


def study(kills: int, trials: int, seed: int, folder: Path) -> Tally:
    rng, tally = np.random.default_rng(seed), Tally()
    with Server.started(folder) as server:
        for job in jobs(10 * kills, trials):
            if tally.kills >= kills:
                break
            empty(server.url)
            reference = str(folder / "reference.db")
            Path(reference).unlink(missing_ok=True)
            undisturbed = started(job, reference)
            undisturbed.join()
            disturbed(job, server, rng, tally, kills - tally.kills)
            found, expected = rows(server.url), rows(reference)
            tally.jobs += 1
            tally.twice += any(count > 1 for count in found.values())
            tally.other_trials += found != expected
            tally.other_bests += bests(server.url) != bests(reference)
            with Database.open(server.url) as database:
                tally.damaged += bool(database.check())
        numbers = server.processes()
        server.stop()
    tally.left_behind = len(multiprocessing.active_children())
    tally.left_behind += sum(Path(f"/proc/{number}/exe").exists() for number in numbers)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--trials", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tilesmith-kills-") as folder:
        tally = study(given.kills, given.trials, given.seed, Path(folder))
    if given.json:
        print(json.dumps(asdict(tally)))
        return
    for name, value in asdict(tally).items():
        print(f"{name.replace('_', ' '):22} {value:6d}")


if __name__ == "__main__":
    main()
