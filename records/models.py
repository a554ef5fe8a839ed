"""The schema, as SQLAlchemy models: workloads, targets, toolchains, jobs, workers, series, trials.

A *series* is the set of trials that may be compared with one another: same workload, target,
threads, input and output layout, way of measuring, toolchain and calibration. Every best-of
question is a walk along the index `ix_trials_best` of one series (or of a few), so it costs the
same among a thousand trials and among millions. Failures have a small index of their own,
`ix_trials_failed`: a series' quarantine and the counts of `db stats` are read from it.

`Trial.latest` is false once the same configuration was measured again in the same series: the last
word counts (a lucky sample does not stay the best for ever), the history stays.

Invariants: `latency_s` is the median of `samples` and is null unless `status` is "ok"; `config` is
the canonical key and `config_digest` follows from it; exactly one trial of a configuration in a
series is `latest`. Migrations in `migrations/versions` build exactly this schema (a test
compares); of partial indexes they alone make the condition, which `info` repeats (SQLAlchemy, told
of it, would import every dialect at every start).
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_name)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
"""Names of constraints, so that migrations can speak of them on every server."""

Number = BigInteger().with_variant(Integer(), "sqlite")
"""Row numbers; SQLite counts by itself only in a column typed INTEGER."""


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time, stored in UTC, read back with its zone."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value if value is None else value.replace(tzinfo=UTC)


class Base(DeclarativeBase):
    """Root of the models."""

    metadata = MetaData(naming_convention=NAMING)


class WorkloadRow(Base):
    """A workload by its canonical key; `operator` and `dtype` are read off the key for queries."""

    __tablename__ = "workloads"

    id: Mapped[int] = mapped_column(Number, primary_key=True)
    key: Mapped[str] = mapped_column(Text, unique=True)
    digest: Mapped[str] = mapped_column(String(16), index=True)
    operator: Mapped[str] = mapped_column(String(64), index=True)
    dtype: Mapped[str] = mapped_column(String(32))


class TargetRow(Base):
    """A target by its identity; `facts` is its last known description as JSON, or ""."""

    __tablename__ = "targets"

    id: Mapped[int] = mapped_column(Number, primary_key=True)
    identity: Mapped[str] = mapped_column(String(255), unique=True)
    name: Mapped[str] = mapped_column(String(255), index=True)
    family: Mapped[str] = mapped_column(String(64))
    facts: Mapped[str] = mapped_column(Text)


class ToolchainRow(Base):
    """A set of versions; see `records.toolchain.Toolchain`."""

    __tablename__ = "toolchains"
    __table_args__ = (
        UniqueConstraint("tilesmith", "llvm", "codegen", "simulator", "space", "schema"),
    )

    id: Mapped[int] = mapped_column(Number, primary_key=True)
    tilesmith: Mapped[str] = mapped_column(String(64))
    llvm: Mapped[str] = mapped_column(String(64))
    codegen: Mapped[str] = mapped_column(String(64))
    simulator: Mapped[str] = mapped_column(String(64))
    space: Mapped[str] = mapped_column(String(64))
    schema: Mapped[str] = mapped_column(String(64))


class JobRow(Base):
    """A tuning job; `state` is the tuner's own text, written with the trials it follows.

    `lease` is the token of who may write for the job, null when nobody runs it; `step` counts its
    commits; `owner` and `process` (`records.processes`) say who holds the lease, or held it last.
    `known_until` is the highest number of a trial when it began: what it learnt from at its start
    it finds again when it is resumed. Null in jobs of older versions.
    """

    __tablename__ = "jobs"

    id: Mapped[int] = mapped_column(Number, primary_key=True)
    uid: Mapped[str] = mapped_column(String(32), unique=True)
    command: Mapped[str] = mapped_column(Text)
    seed: Mapped[int] = mapped_column(BigInteger)
    strategy: Mapped[str] = mapped_column(String(64))
    state: Mapped[str | None] = mapped_column(Text)
    status: Mapped[str] = mapped_column(String(16), index=True)
    message: Mapped[str] = mapped_column(Text)
    host: Mapped[str] = mapped_column(String(255))
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    owner: Mapped[str | None] = mapped_column(String(255))
    process: Mapped[str | None] = mapped_column(String(255))
    heartbeat_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    lease: Mapped[str | None] = mapped_column(String(32))
    step: Mapped[int] = mapped_column(BigInteger, server_default="0")
    progress: Mapped[str | None] = mapped_column(Text)
    known_until: Mapped[int | None] = mapped_column(BigInteger)


class WorkerRow(Base):
    """What one worker of a job last told; `pace` is null where nobody watches it."""

    __tablename__ = "workers"
    __table_args__ = (UniqueConstraint("job_id", "name"),)

    id: Mapped[int] = mapped_column(Number, primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"))
    name: Mapped[str] = mapped_column(String(255))
    host: Mapped[str] = mapped_column(String(255))
    machine: Mapped[str] = mapped_column(String(255))
    state: Mapped[str] = mapped_column(String(32))
    message: Mapped[str] = mapped_column(Text)
    trials: Mapped[int] = mapped_column(BigInteger)
    failures: Mapped[int] = mapped_column(BigInteger)
    pace: Mapped[float | None] = mapped_column(Double)
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)


class AboutRow(Base):
    """What a database says about itself: `uid`, and from which schema on clients may use it."""

    __tablename__ = "about"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class MachineRow(Base):
    """A machine that trials are measured on; `facts` and `calibration` are JSON objects, or ""."""

    __tablename__ = "machines"

    id: Mapped[int] = mapped_column(Number, primary_key=True)
    name: Mapped[str] = mapped_column(String(255), unique=True)
    host: Mapped[str] = mapped_column(String(255))
    target: Mapped[str] = mapped_column(String(255))
    facts: Mapped[str] = mapped_column(Text)
    calibration: Mapped[str] = mapped_column(Text)
    seen_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class SeriesRow(Base):
    """Trials that may be compared with one another. See the module's docstring."""

    __tablename__ = "series"
    __table_args__ = (
        UniqueConstraint(
            "workload_id",
            "target_id",
            "threads",
            "measured_by",
            "input_layout",
            "output_layout",
            "toolchain_id",
            "calibration",
        ),
    )

    id: Mapped[int] = mapped_column(Number, primary_key=True)
    workload_id: Mapped[int] = mapped_column(ForeignKey("workloads.id"))
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"), index=True)
    threads: Mapped[int]
    measured_by: Mapped[str] = mapped_column(String(16))
    input_layout: Mapped[str] = mapped_column(String(64))
    output_layout: Mapped[str] = mapped_column(String(64))
    toolchain_id: Mapped[int] = mapped_column(ForeignKey("toolchains.id"))
    calibration: Mapped[str] = mapped_column(String(16))


class TrialRow(Base):
    """One trial: seconds for latencies, JSON lists for samples, text for why it failed."""

    __tablename__ = "trials"
    __table_args__ = (
        Index("ix_trials_best", "series_id", "latest", "latency_s", "config_digest"),
        Index("ix_trials_config", "series_id", "config_digest"),
        Index("ix_trials_job", "job_id"),
        Index(
            "ix_trials_machine",
            "machine_id",
            "latency_s",
            info={"where": "machine_id IS NOT NULL"},
        ),
        Index(
            "ix_trials_failed",
            "status",
            "series_id",
            info={"where": "latency_s IS NULL"},
        ),
    )

    id: Mapped[int] = mapped_column(Number, primary_key=True)
    series_id: Mapped[int] = mapped_column(ForeignKey("series.id"))
    config: Mapped[str] = mapped_column(Text)
    config_digest: Mapped[str] = mapped_column(String(16))
    status: Mapped[str] = mapped_column(String(16))
    message: Mapped[str] = mapped_column(Text)
    latency_s: Mapped[float | None] = mapped_column(Double)
    samples: Mapped[str] = mapped_column(Text)
    warm_samples: Mapped[str] = mapped_column(Text)
    bound: Mapped[str] = mapped_column(String(64))
    elapsed_s: Mapped[float] = mapped_column(Double)
    latest: Mapped[bool]
    job_id: Mapped[int | None] = mapped_column(ForeignKey("jobs.id"))
    host: Mapped[str] = mapped_column(String(255))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    machine_id: Mapped[int | None] = mapped_column(BigInteger, ForeignKey("machines.id"))


class CostModelRow(Base):
    """A pretrained cost model made from trials of this database; see `records.cost_models`.

    `target` is an identity, or "" for all of the family; `model`, `workloads` and `scores` are JSON
    texts; of a family, target and way of measuring one at most is `active`.
    """

    __tablename__ = "cost_models"
    __table_args__ = (Index("ix_cost_models_family", "family", "target", "measured_by"),)

    id: Mapped[int] = mapped_column(Number, primary_key=True)
    family: Mapped[str] = mapped_column(String(64))
    target: Mapped[str] = mapped_column(String(255))
    measured_by: Mapped[str] = mapped_column(String(16))
    toolchain_id: Mapped[int] = mapped_column(ForeignKey("toolchains.id"))
    features: Mapped[str] = mapped_column(String(64))
    recipe: Mapped[str] = mapped_column(String(255))
    trials: Mapped[int] = mapped_column(BigInteger)
    workloads: Mapped[str] = mapped_column(Text)
    scores: Mapped[str] = mapped_column(Text)
    model: Mapped[str] = mapped_column(Text)
    active: Mapped[bool]
    host: Mapped[str] = mapped_column(String(255))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
