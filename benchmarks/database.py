"""The tuning database under load: many writers, bulk import, questions among millions of trials.

    python benchmarks/database.py [--trials 2000000] [--folder FOLDER] [--json]

Writers: 8 processes add 5,000 trials each, in transactions of 50, to one SQLite file; every row
must be there and no writer may meet a lock. Import: an export of generated trials is read into an
empty database (per second of wall time, and of processor time: they differ where others use the
cores). Questions: `--trials` trials of 60 workloads (three layout pairs, both ways to measure),
then the best schedule of one workload, of all 60 at once, and what `tilesmith db top` asks; medians
of repeated questions, statement building and value construction included.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tilesmith.records import Database, Toolchain, TuningRecord
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config

TARGET = "cpu-0123abcd"
TOOLCHAIN = Toolchain("0.1.0", "22", "1", "1", "1")
LAYOUTS = ("NCHW", "NCHW16c", "NHWC")


def workloads(count: int) -> list[str]:
    """Keys of `count` matmuls."""
    return [f"matmul m={64 + i} n=512 k=512 const=b" for i in range(count)]


def write(path: str, writer: int, count: int, batch: int) -> float:
    """One writer process: `count` trials of one workload, `batch` in a transaction; seconds."""
    start = time.perf_counter()
    key = workloads(4)[writer % 4]
    with Database.open(path, toolchain=TOOLCHAIN) as database:
        for first in range(0, count, batch):
            database.add(
                TuningRecord(
                    key,
                    TARGET,
                    Config.of(m_tile=i, n_tile=writer, order="mnk"),
                    MeasureResult("ok", "hardware", (1e-4 + i * 1e-9,) * 5),
                )
                for i in range(first, min(first + batch, count))
            )
    return time.perf_counter() - start


def many_writers(folder: Path, processes: int = 8, each: int = 5000) -> dict[str, float]:
    """Rows written by concurrent processes, and the seconds it took."""
    path = str(folder / "writers.db")
    start = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.starmap(write, [(path, writer, each, 50) for writer in range(processes)])
    seconds = time.perf_counter() - start
    with Database.open(path) as database:
        rows, faults = database.stats()["trials"], database.check()
    assert rows == processes * each and not faults, (rows, faults)
    return {"writers": processes, "rows": rows, "seconds": seconds, "rows_per_s": rows / seconds}


def lines(trials: int, keys: list[str], seed: int) -> Iterator[str]:
    """An export of generated trials, by workload."""
    rng = np.random.default_rng(seed)
    yield json.dumps({"format": "tilesmith-records", "version": 1})
    for number, key in enumerate(keys):
        share = trials // len(keys) + (number < trials % len(keys))
        latency = rng.lognormal(-9, 0.5, share)
        for i in range(share):
            layout, hardware = LAYOUTS[i % 3], i % 10 == 0
            failed = i % 50 == 7
            trial = {
                "workload": key,
                "target": TARGET,
                "threads": 1,
                "measured_by": "hardware" if hardware else "simulator",
                "input_layout": layout,
                "output_layout": layout,
                "toolchain": TOOLCHAIN.to_dict(),
                "config": {"k_tile": 64, "m_tile": i % 997, "n_tile": i, "order": "mnk"},
                "status": "compile" if failed else "ok",
                "message": "too many registers" if failed else "",
                "host": "generated",
                "created_at": "2026-01-01T00:00:00+00:00",
            }
            if not failed:
                trial["samples"] = [float(latency[i])] * (5 if hardware else 1)
            yield json.dumps(trial)


def bulk_import(folder: Path, trials: int) -> dict[str, float]:
    """Seconds to import a file of generated trials into an empty database."""
    source = folder / "export.jsonl"
    with source.open("w") as file:
        file.writelines(f"{line}\n" for line in lines(trials, workloads(60), 1))
    with Database.open(str(folder / "import.db")) as database, source.open() as file:
        start, busy = time.perf_counter(), time.process_time()
        report = database.import_lines(file, name=str(source))
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
    assert report.added == trials, report
    return {
        "rows": trials,
        "seconds": seconds,
        "rows_per_s": trials / seconds,
        "rows_per_processor_s": trials / busy,
    }


def median_ms(question: Callable[[], object], repeats: int) -> float:
    """Median milliseconds of asking a question, after once to warm up."""
    question()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        question()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def questions(folder: Path, trials: int) -> dict[str, float]:
    """Milliseconds of each question among `trials` trials."""
    path = str(folder / "millions.db")
    keys = workloads(60)
    with Database.open(path, toolchain=TOOLCHAIN) as database:
        if not database.stats()["trials"]:
            database.import_lines(lines(trials, keys, 2))
        one = iter(keys * 100)
        return {
            "trials": database.stats()["trials"],
            "megabytes": database.stats()["bytes"] / 1e6,
            "best_ms": median_ms(lambda: database.best(next(one), TARGET), 200),
            "bests_of_60_ms": median_ms(lambda: database.bests(keys, TARGET), 20),
            "layout_bests_of_60_ms": median_ms(lambda: database.layout_bests(keys, TARGET), 20),
            "db_top_ms": median_ms(database.overview, 10),
            "db_top_of_workload_ms": median_ms(lambda: database.top(keys[7], limit=20), 10),
            "newest_20_ms": median_ms(lambda: database.query(limit=20), 10),
            "fastest_20_ms": median_ms(lambda: database.query(sort="fastest", limit=20), 3),
            "tried_ms": median_ms(lambda: database.tried(keys[3], TARGET), 3),
            "stats_ms": median_ms(database.stats, 3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2_000_000)
    parser.add_argument("--folder", type=Path, help="keep the databases here (default: nowhere)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        figures = {
            "many_writers": many_writers(folder),
            "bulk_import": bulk_import(folder, 100_000),
            "questions": questions(folder, arguments.trials),
        }
    if arguments.json:
        print(json.dumps(figures))
        return
    for title, values in figures.items():
        print(title)
        for name, value in values.items():
            print(f"  {name:24} {value:14,.2f}")


if __name__ == "__main__":
    main()
