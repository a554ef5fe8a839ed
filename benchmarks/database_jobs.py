"""Many jobs at once on one PostgreSQL server: do they lock each other out, is a trial lost?

    python -m benchmarks.database_jobs [--jobs 16] [--trials 100000] [--batch 50] [--json]

A server of its own (`benchmarks.subjects.postgres_server`). Each job is a process that does what a
tuning job does to the database, as fast as it can: it starts, asks before every batch what others
measured of it, commits a batch of made-up results together with its state, gives signs of life, and
ends. Jobs in pairs tune the same workload, so that they write the same series. Printed are trials a
second of wall time, failed processes (a deadlock would be one), and how many trials, states or jobs
are not as they were written.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

try:
    from benchmarks.subjects.postgres_server import Server
    from tilesmith.records import Database, TuningRecord
    from tilesmith.records.jobs.job import BEAT_S
    from tilesmith.search_space.hardware.target import Fact, Target
    from tilesmith.search_space.results.measure import MeasureResult
    from tilesmith.search_space.spaces.config import Config
    from tilesmith.search_space.workloads.workload import Workload
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

TARGET = Target.of("cpu", "cpu", {"clock": Fact(4.0, calibratable=True)}, "made up")


@dataclass(frozen=True)
class Figures:
    """What came of it."""

    jobs: int
    trials: int
    seconds: float
    trials_per_s: float
    failed: int
    lost: int
    twice: int
    states_wrong: int
    unfinished: int
    faults: int


def batches(number: int, trials: int, size: int) -> list[list[Config]]:
    """A job's configurations: its own, whichever workload it shares."""
    configs = [Config.of(job=number, tile=tile) for tile in range(trials)]
    return [configs[start : start + size] for start in range(0, trials, size)]


def work(url: str, number: int, trials: int, size: int) -> None:
    """One job."""
    workload = Workload.parse(f"matmul m={64 * (1 + number // 2)} n=64 k=64")
    result = MeasureResult("ok", "simulator", (1e-3,))
    with Database.open(url) as database:
        database.be_patient()
        command = f"tune {number}"
        job = database.start_job(command, seed=number, strategy="random", targets=[TARGET])
        beaten = time.monotonic()
        for configs in batches(number, trials, size):
            known = database.measured_meanwhile(
                job, workload, TARGET, 1, configs, measured_by="simulator"
            )
            assert not known, "nobody else measures these"
            records = [
                TuningRecord(workload.key, TARGET.identity, config, result) for config in configs
            ]
            database.add(records, job=job, job_state=json.dumps({"last": configs[-1]["tile"]}))
            if time.monotonic() - beaten > BEAT_S:
                database.beat(job, {"trials": configs[-1]["tile"]})
                beaten = time.monotonic()
        database.finish_job(job, "finished", "all trials are spent")


def measured(url: str, count: int, trials: int, size: int) -> Figures:
    """Run the jobs and look at what they left."""
    share = trials // count
    begin = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=work, args=(url, number, share, size)) for number in range(count)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - begin
    with Database.open(url) as database:
        records, jobs = database.query(limit=None), database.jobs()
        states = [json.loads(database.job_state(job.id) or "{}") for job in jobs]
        faults = len(database.check())
    there = Counter((record.job, record.config) for record in records)
    return Figures(
        len(jobs),
        len(records),
        seconds,
        len(records) / seconds,
        sum(process.exitcode != 0 for process in processes),
        count * share - len(there),
        sum(repeats - 1 for repeats in there.values()),
        sum(state != {"last": share - 1} for state in states),
        sum(job.status != "finished" for job in jobs),
        faults,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="tilesmith-jobs-") as folder,
        Server.started(Path(folder)) as server,
    ):
        figures = measured(server.url, given.jobs, given.trials, given.batch)
    if given.json:
        print(json.dumps(asdict(figures)))
        return
    for name, value in asdict(figures).items():
        print(f"{name.replace('_', ' '):22} {value:10,.6g}")


if __name__ == "__main__":
    main()
