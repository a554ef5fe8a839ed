"""What `tilesmith tune --measure replay` looks results up in: the database's own records."""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.records.database import Database
from tilesmith.records.questions.queries import Filter
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.workloads.workload import Workload

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
