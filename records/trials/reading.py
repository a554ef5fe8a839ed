"""Rows become values: one `select` that joins all a trial points to, and what it gives."""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, bindparam, select, true

from tilesmith.records.schema.models import MACHINES, SERIES, TARGETS, TOOLCHAINS, TRIALS, WORKLOADS
from tilesmith.records.trials.incoming import SeriesKey
from tilesmith.records.trials.record import TuningRecord
from tilesmith.records.trials.toolchain import Toolchain
from tilesmith.search_space.results.measure import STATUSES, MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import ConfigError, DatabaseError

Rows: TypeAlias = "Select[*tuple[Any, ...]]"

Told = Callable[[str], None]
"""Is told a sentence."""

TOOLCHAIN_COLUMNS = tuple(
    TOOLCHAINS.c[name].label(f"toolchain_{name}")
    for name in ("tilesmith", "llvm", "codegen", "simulator", "space", "schema")
)

TRIAL_COLUMNS = (
    TRIALS.c.id,
    TRIALS.c.config,
    TRIALS.c.status,
    TRIALS.c.message,
    TRIALS.c.samples,
    TRIALS.c.warm_samples,
    TRIALS.c.bound,
    TRIALS.c.elapsed_s,
    TRIALS.c.job_id,
    TRIALS.c.host,
    TRIALS.c.created_at,
)

SERIES_COLUMNS = (
    SERIES.c.id.label("series_id"),
    WORKLOADS.c.key.label("workload"),
    TARGETS.c.identity.label("target"),
    SERIES.c.threads,
    SERIES.c.measured_by,
    SERIES.c.input_layout,
    SERIES.c.output_layout,
    SERIES.c.calibration,
    *TOOLCHAIN_COLUMNS,
)

MACHINE = MACHINES.c.name.label("machine")


def select_series(*more: ColumnElement[Any]) -> Rows:
    """Every series with all it points to, and `more` columns; narrow it with `where`."""
    return _with_subjects(select(*SERIES_COLUMNS, *more))


def select_records() -> Rows:
    """Every trial with all it points to; narrow it with `where`."""
    trials = select(*TRIAL_COLUMNS, MACHINE, *SERIES_COLUMNS).select_from(TRIALS)
    return _with_subjects(
        trials.join(SERIES, SERIES.c.id == TRIALS.c.series_id).outerjoin(
            MACHINES, MACHINES.c.id == TRIALS.c.machine_id
        )
    )


def _with_subjects(series: Rows) -> Rows:
    return (
        series.join(WORKLOADS, WORKLOADS.c.id == SERIES.c.workload_id)
        .join(TARGETS, TARGETS.c.id == SERIES.c.target_id)
        .join(TOOLCHAINS, TOOLCHAINS.c.id == SERIES.c.toolchain_id)
    )


SELECT_BY_NUMBER = select_records().where(TRIALS.c.id.in_(bindparam("numbers", expanding=True)))
"""`select_records` of the trials numbered `numbers`."""


def first_of_each_series(dialect: str, first: Rows, trial: Any) -> Rows:
    """Trials of `first`, a statement about one series, for each of the (joined) series.

    Args:
        dialect: of the connection. PostgreSQL takes `first` as LATERAL: asked for numbers `IN` a
            limited subquery it would join every trial with every series before it asks. SQLite
            knows no LATERAL, and seeks the numbers.
        first: selects the number of `trial`, correlated with `SERIES`, ordered and limited.
        trial: the alias of `TRIALS` that `first` selects from.

    Returns:
        Columns `series_id`, `id`, `latency_s`, `config`, `config_digest`.
    """
    columns = ("series_id", "id", "latency_s", "config", "config_digest")
    if dialect == "sqlite":
        rows = select(*(TRIALS.c[name] for name in columns)).select_from(SERIES)
        return rows.join(TRIALS, TRIALS.c.id.in_(first))
    lateral = first.with_only_columns(*(trial.c[name] for name in columns)).lateral()
    rows = select(*(lateral.c[name] for name in columns)).select_from(SERIES)
    return rows.join(lateral, true())


def to_toolchain(row: RowMapping) -> Toolchain:
    """The toolchain of a row of `select_records` or of `bests.candidates`."""
    return Toolchain(*(row[column.name] for column in TOOLCHAIN_COLUMNS))


def to_series(row: RowMapping) -> SeriesKey:
    """What the series of a row with `SERIES_COLUMNS` has in common."""
    subject = (row[name] for name in SeriesKey._fields[:6])
    return SeriesKey._make((*subject, to_toolchain(row), row["calibration"]))


def to_record(row: RowMapping, series: SeriesKey | None = None) -> TuningRecord:
    """The value of a row of `select_records`, or of a trial's own columns and its series.

    Raises:
        DatabaseError: the row is damaged, or of a status that only a newer Tilesmith knows.
    """
    series = series or to_series(row)
    return TuningRecord(
        series.workload,
        series.target,
        _to_config(row),
        _to_result(row, series.measured_by),
        series.threads,
        series.input_layout,
        series.output_layout,
        series.calibration,
        series.toolchain,
        row["job_id"],
        row["host"],
        row["created_at"],
        row["id"],
    )


def by_number(
    connection: Connection, numbers: Sequence[int], damaged: Told | None = None
) -> list[TuningRecord]:
    """Records by their numbers, in the order of the numbers.

    Args:
        damaged: is told what is wrong with a row that cannot be read, which is then left out;
            without it the first such row is the `DatabaseError` that ends the question.
    """
    records: dict[int, TuningRecord] = {}
    for start in range(0, len(numbers), 5000):
        rows = connection.execute(SELECT_BY_NUMBER, {"numbers": numbers[start : start + 5000]})
        for row in rows.mappings():
            try:
                records[row["id"]] = to_record(row)
            except DatabaseError as error:
                if damaged is None:
                    raise
                damaged(str(error))
    return [records[number] for number in numbers if number in records]


def _to_config(row: RowMapping) -> Config:
    """The configuration of a row with `TRIAL_COLUMNS`; `DatabaseError` if it is none."""
    try:
        return Config.from_json(row["config"])
    except ConfigError as error:
        raise _damaged(row, str(error)) from error


def _to_result(row: RowMapping, measured_by: MeasuredBy) -> MeasureResult:
    """What came of the trial of a row with `TRIAL_COLUMNS`; errors as of `to_record`."""
    if row["status"] not in STATUSES:
        raise DatabaseError(
            f"record {row['id']} has the status '{row['status']}', which this Tilesmith does not "
            "know; upgrade with 'pip install -U tilesmith'"
        )
    samples, warm = _seconds(row, "samples"), _seconds(row, "warm_samples")
    if row["status"] == "ok" and not samples:
        raise _damaged(row, "it worked, but has no samples")
    return MeasureResult(
        row["status"],
        measured_by,
        samples,
        row["message"],
        warm,
        row["bound"],
        row["elapsed_s"],
        row["machine"] or "",
    )


def _seconds(row: RowMapping, column: str) -> tuple[float, ...]:
    """The samples that a column holds as a JSON list of numbers; `DatabaseError` if it does not."""
    try:
        samples = json.loads(row[column])
    except (ValueError, RecursionError) as error:
        raise _damaged(row, "its samples are no JSON list") from error
    if not isinstance(samples, list) or not all(map(_is_time, samples)):
        raise _damaged(row, "its samples are no JSON list of seconds")
    return tuple(samples)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _damaged(row: RowMapping, why: str) -> DatabaseError:
    return DatabaseError(f"record {row['id']} is damaged: {why}")
