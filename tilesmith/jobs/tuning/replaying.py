"""A search in a recorded space: nothing is compiled or measured, and nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tilesmith.jobs.tuning.ending import JobStopped
from tilesmith.jobs.tuning.recorded_file import read_recorded
from tilesmith.jobs.tuning.summaries import report_of
from tilesmith.search_space.hardware.target import Target
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
    observer: Observer | None = None,
    cancel: CancelToken | None = None,
) -> TuneReport:
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
