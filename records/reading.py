"""Rows become values: one `select` that joins all a trial points to, and what it gives."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from sqlalchemy import RowMapping, Select, bindparam, select

from records.models import SeriesRow, TargetRow, ToolchainRow, TrialRow, WorkloadRow
from records.record import TuningRecord
from records.toolchain import Toolchain
from search_space.config import Config
from search_space.measure import MeasureResult

Rows: TypeAlias = "Select[*tuple[Any, ...]]"

TOOLCHAIN_COLUMNS = tuple(
    getattr(ToolchainRow, name).label(f"toolchain_{name}")
    for name in ("tilesmith", "llvm", "codegen", "simulator", "space", "schema")
)

RECORD_COLUMNS = (
    TrialRow.id,
    TrialRow.config,
    TrialRow.status,
    TrialRow.message,
    TrialRow.samples,
    TrialRow.warm_samples,
    TrialRow.bound,
    TrialRow.elapsed_s,
    TrialRow.job_id,
    TrialRow.host,
    TrialRow.created_at,
    TrialRow.series_id,
    WorkloadRow.key.label("workload"),
    TargetRow.identity.label("target"),
    SeriesRow.threads,
    SeriesRow.measured_by,
    SeriesRow.input_layout,
    SeriesRow.output_layout,
    SeriesRow.calibration,
    *TOOLCHAIN_COLUMNS,
)


def select_records() -> Rows:
    """Every trial with all it points to; narrow it with `where`."""
    return (
        select(*RECORD_COLUMNS)
        .select_from(TrialRow)
        .join(SeriesRow, SeriesRow.id == TrialRow.series_id)
        .join(WorkloadRow, WorkloadRow.id == SeriesRow.workload_id)
        .join(TargetRow, TargetRow.id == SeriesRow.target_id)
        .join(ToolchainRow, ToolchainRow.id == SeriesRow.toolchain_id)
    )


SELECT_BY_NUMBER = select_records().where(TrialRow.id.in_(bindparam("numbers", expanding=True)))
"""`select_records` of the trials numbered `numbers`."""


def to_toolchain(row: RowMapping) -> Toolchain:
    """The toolchain of a row of `select_records` or of `bests.candidates`."""
    return Toolchain(*(row[column.name] for column in TOOLCHAIN_COLUMNS))


def to_record(row: RowMapping) -> TuningRecord:
    """The value of a row of `select_records`."""
    return TuningRecord(
        row["workload"],
        row["target"],
        Config.from_json(row["config"]),
        MeasureResult(
            row["status"],
            row["measured_by"],
            tuple(json.loads(row["samples"])),
            row["message"],
            tuple(json.loads(row["warm_samples"])),
            row["bound"],
            row["elapsed_s"],
        ),
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
