"""Searches whose results are looked up, not measured: in a recorded space, or in the database.

`tilesmith tune --space` searches a file that others measured in full: nothing is compiled or
measured, and nothing is written. `tilesmith tune --measure replay` looks results up among the
database's own records.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilesmith.jobs.tuning.ending import JobStopped
from tilesmith.jobs.tuning.recorded_file import read_recorded
from tilesmith.jobs.tuning.summaries import report_of
from tilesmith.records.database import Database
from tilesmith.records.questions.queries import Filter
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.measurement.runner import RunnerOptions, runners
from tilesmith.tuner.session.session import tune
from tilesmith.tuner.tasks.cancel import CancelToken, cancel_on_signals
from tilesmith.tuner.tasks.ledger import MemoryLedger
from tilesmith.tuner.tasks.options import TuneOptions

if TYPE_CHECKING:
    from tilesmith.jobs.tuning.heartbeat import Observer
    from tilesmith.jobs.tuning.tune_reports import TuneReport


NOWHERE = Target("recorded", "recorded", ())
"""Where the results of a recorded space are from is not asked: nothing here runs for it."""


def replayed(
    path: str | Path,
    options: TuneOptions,
    objective: str = "",
    observer: "Observer | None" = None,
    cancel: CancelToken | None = None,
) -> "TuneReport":
    """Search a recorded space with its results for measurements.

    Args:
        path: of a T4 file or a Kernel Tuner cache, see `tilesmith.jobs.tuning.recorded_file`.
        objective: as `RecordedFile.space`.

    Raises:
        InputError: the file is not what it should be, or an option names nothing.
        JobStopped: by a signal or by `cancel`.
    """
    space = read_recorded(path).space(objective)
    token = cancel or CancelToken()
    runner = runners["replay"](RunnerOptions(NOWHERE, recorded=space.recorded))
    with cancel_on_signals(token):
        summary = tune(
            [space.task], NOWHERE, MemoryLedger(), [runner], options,
            on_progress=observer, cancel=token,
        )  # fmt: skip
    report = report_of(summary)
    if summary.ending == "cancelled":
        message = f"stopped by {token.reason} after {summary.trials} trials; a replay keeps nothing"
        raise JobStopped(report, message, token.reason)
    return report


Recorded = dict[str, dict[Config, MeasureResult]]
"""The last result of each configuration, by workload key."""


def recorded_results(
    database: Database, workloads: Sequence[Workload], target: Target, threads: int
) -> Recorded:
    """What the database holds of the workloads: the hardware's word where all have it.

    Raises:
        InputError: a workload has no results.
    """
    keys = [workload.key for workload in workloads]
    labels: tuple[MeasuredBy, ...] = ("hardware", "simulator")
    for label in labels:
        results = {key: _results(database, key, target, threads, label) for key in keys}
        if all(results.values()):
            return results
    raise InputError(
        f"database '{database.name}' cannot be replayed: it lacks results of "
        f"'{next(key for key in keys if not results[key])}' for target '{target.identity}' and "
        f"threads {threads}, or not all workloads were measured in the same way"
    )


def _results(
    database: Database, key: str, target: Target, threads: int, label: MeasuredBy
) -> dict[Config, MeasureResult]:
    where = Filter(key, target=target.identity, threads=threads, measured_by=label, latest=True)
    records = database.query(where, sort="oldest", limit=None)
    return {record.config: record.result for record in records if record.workload_key == key}
