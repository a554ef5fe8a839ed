"""A tuning job in a process of its own, to be killed: `tune_to_end.py DATABASE SLOWNESS_S MOST`."""

from __future__ import annotations

import sys
import time

from problems import JUDGED, TARGET, judge

from tilesmith.records.database import Database
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.ledgers.database_ledger import DatabaseLedger
from tilesmith.tuner.measurement.runner import RunnerOptions, runners
from tilesmith.tuner.session.progress import Progress
from tilesmith.tuner.session.session import tune
from tilesmith.tuner.tasks.options import TuneOptions
from tilesmith.tuner.tasks.task import TuningTask

TASKS = [
    TuningTask(Workload.parse("matmul m=128 n=128 k=128 const=b"), 3.0),
    TuningTask(Workload.parse("matmul m=32 n=64 k=48")),
]
OPTIONS = TuneOptions(trials=48, seed=7)


def main(path: str, slowness: float, most: int) -> None:
    """Start the job, or resume it if it was begun; every chunk takes `slowness` seconds longer, and
    after `most` trials none comes any more: whoever is to kill it may take his time."""

    def dawdle(progress: Progress) -> None:
        time.sleep(3600 if progress.trials >= most else slowness)

    with Database.open(path) as database:
        ledger = DatabaseLedger.resume(
            database, TARGET, 1, command="kill me"
        ) or DatabaseLedger.start(
            database, TARGET, 1, command="kill me", seed=7, strategy="evolutionary"
        )
        runner = runners["simulator"](RunnerOptions(TARGET, judge=judge))
        tune(
            TASKS,
            TARGET,
            ledger,
            [runner],
            OPTIONS,
            JUDGED,
            on_progress=dawdle,
        )


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
