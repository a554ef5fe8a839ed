"""The live page over a large database: how long its pages take.

    python benchmarks/dashboard.py --database FILE_OR_URL [--jobs 3] [--trials 1000000]

An empty database is filled first: so many jobs, each with so many trials of 60 workloads. Then
every kind of page is asked for once, as a browser does, and the last job's until all its trials are
counted: a large job is read a part at a time.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import insert, select
from starlette.testclient import TestClient

from tilesmith.capabilities.dashboard.application import Dashboard
from tilesmith.codegen.programs.structures import default_of
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.records import Database, TuningRecord
from tilesmith.records.schema.models import SERIES, TRIALS
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.workloads.workload import Workload

WORKLOADS = [Workload.parse(f"matmul m={16 * (i + 1)} n=64 k=64") for i in range(60)]
_AT_ONCE = 20_000


def fill(database: Database, jobs: int, trials: int) -> None:
    """Jobs with trials, one in thirty of which failed."""
    target, rng = resolve_target("cpu"), random.Random(0)
    result = MeasureResult("ok", "simulator", (1e-4,))
    defaults = [TuningRecord.of(w, target, default_of(w, target), result) for w in WORKLOADS]
    for number in range(jobs):
        command = f"tilesmith tune model{number}.onnx --target cpu"
        job = database.start_job(command, seed=number, strategy="random", targets=[target])
        database.add(defaults, job=job)
        with database.reading() as connection:
            series = list(connection.execute(select(SERIES.c.id)).scalars())
        rows = _rows(job, series, trials, rng)
        while part := [row for row, _ in zip(rows, range(_AT_ONCE), strict=False)]:
            with database.writing() as connection:
                connection.execute(insert(TRIALS), part)
        database.finish_job(job)


def _rows(job: int, series: list[int], count: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    for number in range(count):
        latency = (20 + 80 * rng.random() - 10 * number / count) * 1e-6
        failed = rng.random() < 1 / 30
        yield {
            "series_id": series[number % len(series)],
            "config": f'{{"m_tile":{number}}}',
            "config_digest": f"{rng.getrandbits(64):016x}",
            "status": "crash" if failed else "ok",
            "message": "the worker died" if failed else "",
            "latency_s": None if failed else latency,
            "samples": "[]" if failed else f"[{latency}]",
            "warm_samples": "[]",
            "bound": "",
            "elapsed_s": 0.01,
            "latest": True,
            "job_id": job,
            "host": "box",
            "created_at": datetime.now(UTC),
        }


def main() -> None:
    """Fill, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--database", required=True)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--trials", type=int, default=1_000_000)
    asked = parser.parse_args()
    with Database.open(asked.database) as database:
        if not database.jobs(limit=1):
            fill(database, asked.jobs, asked.trials)
        last = database.jobs(limit=1)[0].id
    client = TestClient(Dashboard(asked.database).application())
    pages = ("/", "/?state=", f"/jobs/{last}", f"/jobs/{last}?show=failures", "/schedules",
             "/schedules?operator=matmul&workload=m=16", "/workers", "/records/1",
             f"/compare?a={max(1, last - 1)}&b={last}")  # fmt: skip
    for page in pages:
        print(f"{_timed(client, page) * 1e3:7.0f} ms  {page}", flush=True)
    looks, begun = 0, time.process_time()
    while "Counting its trials" in client.get(f"/jobs/{last}?show=tasks&q={looks}").text:
        looks += 1
    print(f"all trials of job {last} are counted after {looks} more looks "
          f"({time.process_time() - begun:.1f} s of a processor)")  # fmt: skip
    print(f"{_timed(client, f'/jobs/{last}') * 1e3:7.0f} ms  /jobs/{last}, counted")


def _timed(client: TestClient, page: str) -> float:
    begun = time.perf_counter()
    reply = client.get(page)
    assert reply.status_code == 200, (page, reply.status_code)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
