"""What jobs that run at the same time have of each other: trials of the same series since a start.

Asked before every batch is measured: two walks along indexes, however large the database.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, or_, select

from tilesmith.records.models import JobRow, SeriesRow, TargetRow, TrialRow, WorkloadRow
from tilesmith.records.reading import select_records, select_series, to_record, to_toolchain
from tilesmith.records.record import TuningRecord
from tilesmith.records.toolchain import Toolchain

_SERIES = select_series().where(
    WorkloadRow.key == bindparam("workload"),
    TargetRow.identity == bindparam("target"),
    SeriesRow.threads == bindparam("threads"),
    SeriesRow.measured_by == bindparam("measured_by"),
)

_BEGAN = select(JobRow.known_until).where(JobRow.id == bindparam("job")).scalar_subquery()

_SINCE = (
    select_records()
    .where(
        TrialRow.series_id.in_(bindparam("series", expanding=True)),
        TrialRow.config_digest.in_(bindparam("digests", expanding=True)),
        TrialRow.latest,
        TrialRow.id + 0 > _BEGAN,  # a sum: the index on configurations is the one to walk
        or_(TrialRow.job_id.is_(None), TrialRow.job_id != bindparam("job")),
    )
    .order_by(TrialRow.id)
)


def series(
    connection: Connection, workload: str, target: str, threads: int, measured_by: str
) -> list[tuple[int, Toolchain, str]]:
    """Number, versions and calibration of the series of a workload on a target."""
    asked = {
        "workload": workload,
        "target": target,
        "threads": threads,
        "measured_by": measured_by,
    }
    rows = connection.execute(_SERIES, asked).mappings()
    return [(row["id"], to_toolchain(row), row["calibration"]) for row in rows]


def since(
    connection: Connection, job: int, numbers: Sequence[int], digests: Sequence[str]
) -> list[TuningRecord]:
    """Last words on configurations in series, of other jobs, since a job began; oldest first."""
    if not numbers or not digests:
        return []
    asked = {"job": job, "series": list(numbers), "digests": list(digests)}
    return [to_record(row) for row in connection.execute(_SINCE, asked).mappings()]
