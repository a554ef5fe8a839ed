"""Rows become values: one `select` that joins all a trial points to, and what it gives."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, RowMapping, Select, bindparam, select, true

from tilesmith.records.models import (
    MACHINES,
    SERIES,
    TARGETS,
    TOOLCHAINS,
    TRIALS,
    WORKLOADS,
)
from tilesmith.records.record import TuningRecord
from tilesmith.records.toolchain import Toolchain
from tilesmith.search_space.errors import DatabaseError
from tilesmith.search_space.measure import STATUSES, MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config

Rows: TypeAlias = "Select[*tuple[Any, ...]]"

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

RECORD_COLUMNS = (
    *TRIAL_COLUMNS,
    TRIALS.c.series_id,
    MACHINES.c.name.label("machine"),
    WORKLOADS.c.key.label("workload"),
    TARGETS.c.identity.label("target"),
    SERIES.c.threads,
    SERIES.c.measured_by,
    SERIES.c.input_layout,
    SERIES.c.output_layout,
    SERIES.c.calibration,
    *TOOLCHAIN_COLUMNS,
)


SERIES_COLUMNS = (
    SERIES.c.id,
    WORKLOADS.c.key,
    TARGETS.c.identity,
    SERIES.c.threads,
    SERIES.c.measured_by,
    SERIES.c.input_layout,
    SERIES.c.output_layout,
    SERIES.c.calibration,
    *TOOLCHAIN_COLUMNS,
)


def select_series(*more: ColumnElement[Any]) -> Rows:
    """Every series with all it points to, and `more` columns; narrow it with `where`."""
    return _with_subjects(select(*SERIES_COLUMNS, *more))


def select_records() -> Rows:
    """Every trial with all it points to; narrow it with `where`."""
    trials = select(*RECORD_COLUMNS).select_from(TRIALS)
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
    found = first.with_only_columns(*(trial.c[name] for name in columns)).lateral()
    rows = select(*(found.c[name] for name in columns)).select_from(SERIES)
    return rows.join(found, true())


def to_toolchain(row: RowMapping) -> Toolchain:
    """The toolchain of a row of `select_records` or of `bests.candidates`."""
    return Toolchain(*(row[column.name] for column in TOOLCHAIN_COLUMNS))


def to_record(row: RowMapping) -> TuningRecord:
    """The value of a row of `select_records`.

    Raises:
        DatabaseError: the row is damaged, or of a status that only a newer Tilesmith knows.
    """
    return TuningRecord(
        row["workload"],
        row["target"],
        Config.from_json(row["config"]),
        to_result(row, row["measured_by"]),
        row["threads"],
        row["input_layout"],
        row["output_layout"],
        row["calibration"],
        to_toolchain(row),
        row["job_id"],
        row["host"],
        row["created_at"],
        row["id"],
    )


def to_result(row: RowMapping, measured_by: MeasuredBy) -> MeasureResult:
    """What came of the trial of a row with `TRIAL_COLUMNS`; errors as of `to_record`."""
    if row["status"] not in STATUSES:
        raise DatabaseError(
            f"record {row['id']} has the status '{row['status']}', which this Tilesmith does not "
            "know; upgrade with 'pip install -U tilesmith'"
        )
    try:
        samples, warm = json.loads(row["samples"]), json.loads(row["warm_samples"])
    except ValueError as error:
        raise DatabaseError(
            f"record {row['id']} is damaged: its samples are no JSON list"
        ) from error
    return MeasureResult(
        row["status"],
        measured_by,
        tuple(samples),
        row["message"],
        tuple(warm),
        row["bound"],
        row["elapsed_s"],
        row["machine"] or "",
    )
