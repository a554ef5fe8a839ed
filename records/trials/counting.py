"""What counts as a trial: the one definition behind every number of trials that is shown.

A *trial* is a configuration of a workload that a job tried by the way of measuring it is about
(hardware, where it has both), whatever came of it: the default is one, a failure is one. It is what
`--trials` limits. Not trials, and told apart: what the simulator judged first where hardware
measures (*simulated*), measurements of a trial again, whose samples take the place of the first
(*measured again*), whole models, and kernels timed inside the untuned model before they had a trial
of their own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection, case, func, select

from tilesmith.records.schema.models import SERIES, TRIALS, WORKLOADS
from tilesmith.records.trials.record import MODEL
from tilesmith.search_space.support.json_object import JsonObject

if TYPE_CHECKING:
    from tilesmith.records.trials.record import Job
    from tilesmith.search_space.results.measure import MeasuredBy

TIMED_IN_MODEL = "timed inside the untuned model"
"""What the message of a result says that had no trial."""

MEASURED_AGAIN = "measured again"
"""What the message of a result begins with that takes the place of a trial's."""

_ASKED = re.compile(r" --measure (\w+)")


@dataclass(frozen=True)
class TrialCounts(JsonObject):
    """What a job did, counted. See the module's docstring."""

    trials: int = 0
    simulated: int = 0
    measured_again: int = 0

    @classmethod
    def of(cls, by_label: Mapping[str, int], measured_again: int, command: str) -> "TrialCounts":
        """From first measurements by way of measuring, for a job that was asked for so."""
        way = way_of(command)
        if way is None:
            way = "hardware" if by_label.get("hardware") else "simulator"
        others = sum(number for label, number in by_label.items() if label != way)
        return cls(by_label.get(way, 0), others, measured_again)

    def __str__(self) -> str:
        plural = "" if self.trials == 1 else "s"
        more = [
            f"{count} {what}"
            for count, what in (
                (self.simulated, "simulated before"),
                (self.measured_again, "measured again"),
            )
            if count
        ]
        details = f" ({', '.join(more)})" if more else ""
        return f"{self.trials} trial{plural}{details}"


def way_of(command: str) -> "MeasuredBy | None":
    """The way of measuring that a job's command is about; None where it does not say."""
    asked = _ASKED.search(command)
    if asked is None:
        return None
    return "simulator" if asked[1] == "simulator" else "hardware"


def told_by(job: "Job") -> TrialCounts | None:
    """Return a job's own counts; None if it reported none, or was lost and may have done more."""
    counts = job.progress.get("counts")
    if job.lost or not isinstance(counts, Mapping):
        return None
    numbers = {name: counts.get(name) for name in TrialCounts.__dataclass_fields__}
    whole = (type(n) is int and 0 <= n < 1e15 for n in numbers.values())
    return TrialCounts(**numbers) if all(whole) else None  # type: ignore[arg-type]


def is_trial(message: str) -> bool:
    """Whether a row with that message is a trial: rows of anything else begin by what they are."""
    return not message.startswith((TIMED_IN_MODEL, MEASURED_AGAIN))


def count(connection: Connection, job: int, command: str) -> TrialCounts:
    """Count a job's trials by its rows in the database."""
    again = TRIALS.c.message.startswith(MEASURED_AGAIN)
    rows = connection.execute(
        select(SERIES.c.measured_by, func.count(), func.sum(case((again, 1), else_=0)))
        .select_from(TRIALS)
        .join(SERIES, SERIES.c.id == TRIALS.c.series_id)
        .join(WORKLOADS, WORKLOADS.c.id == SERIES.c.workload_id)
        .where(TRIALS.c.job_id == job, ~TRIALS.c.message.startswith(TIMED_IN_MODEL))
        .where(WORKLOADS.c.operator != MODEL)
        .group_by(SERIES.c.measured_by)
    )
    counts = {label: (int(number), int(repeated)) for label, number, repeated in rows}
    by_label = {label: number - repeated for label, (number, repeated) in counts.items()}
    return TrialCounts.of(by_label, sum(repeated for _, repeated in counts.values()), command)
