"""The schema, as SQLAlchemy's tables: workloads, targets, jobs, workers, series, trials, ...

Tables, not mapped classes: nothing here is an object with a session, and the object-relational
half of SQLAlchemy would take a third of a short command's time to import.

A *series* is the set of trials that may be compared with one another: same workload, target,
threads, input and output layout, way of measuring, toolchain and calibration. Every best-of
question is a walk along the index `ix_trials_best` of one series (or of a few), so it costs the
same among a thousand trials and among millions. Failures have a small index of their own,
`ix_trials_failed`: a series' quarantine and the counts of `db stats` are read from it.

A trial's `latest` is false once the same configuration was measured again in the same series: the
last word counts (a lucky sample does not stay the best for ever), the history stays.

Invariants: `latency_s` is the median of `samples` and is null unless `status` is "ok"; `config` is
the canonical key and `config_digest` follows from it; exactly one trial of a configuration in a
series is `latest`. Migrations in `migrations/versions` build exactly this schema (a test
compares); of partial indexes they alone make the condition, which `info` repeats (SQLAlchemy, told
of it, would import every dialect at every start).
"""

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
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


class NoSecondsError(ValueError):
    """A column of seconds holds something else."""


class Seconds(TypeDecorator[float]):
    """A number of seconds. SQLite keeps texts in any column, where other programs put them."""

    impl = Double
    cache_ok = True

    def process_result_value(self, value: float | None, dialect: Dialect) -> float | None:
        if value is None or isinstance(value, float | int):
            return value
        raise NoSecondsError(f"a latency is {str(value)[:40]!r}, no number of seconds")


metadata = MetaData(naming_convention=NAMING)

WORKLOADS = Table(
    "workloads",
    metadata,
    Column("id", Number, primary_key=True),
    Column("key", Text, unique=True, nullable=False),
    Column("digest", String(16), index=True, nullable=False),
    Column("operator", String(64), index=True, nullable=False),
    Column("dtype", String(32), nullable=False),
)
"""A workload by its canonical key; `operator` and `dtype` are read off the key for queries."""

TARGETS = Table(
    "targets",
    metadata,
    Column("id", Number, primary_key=True),
    Column("identity", String(255), unique=True, nullable=False),
    Column("name", String(255), index=True, nullable=False),
    Column("family", String(64), nullable=False),
    Column("facts", Text, nullable=False),
)
"""A target by its identity; `facts` is its last known description as JSON, or ""."""

TOOLCHAINS = Table(
    "toolchains",
    metadata,
    Column("id", Number, primary_key=True),
    Column("tilesmith", String(64), nullable=False),
    Column("llvm", String(64), nullable=False),
    Column("codegen", String(64), nullable=False),
    Column("simulator", String(64), nullable=False),
    Column("space", String(64), nullable=False),
    Column("schema", String(64), nullable=False),
    UniqueConstraint("tilesmith", "llvm", "codegen", "simulator", "space", "schema"),
)
"""A set of versions; see `records.toolchain.Toolchain`."""

JOBS = Table(
    "jobs",
    metadata,
    Column("id", Number, primary_key=True),
    Column("uid", String(32), unique=True, nullable=False),
    Column("command", Text, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("strategy", String(64), nullable=False),
    Column("state", Text),
    Column("status", String(16), index=True, nullable=False),
    Column("message", Text, nullable=False),
    Column("host", String(255), nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime),
    Column("owner", String(255)),
    Column("process", String(255)),
    Column("heartbeat_at", UtcDateTime),
    Column("lease", String(32)),
    Column("step", BigInteger, server_default="0", nullable=False),
    Column("progress", Text),
    Column("known_until", BigInteger),
)
"""A tuning job; `state` is the tuner's own text, written with the trials it follows.

`lease` is the token of who may write for the job, null when nobody runs it; `step` counts its
commits; `owner` and `process` (`records.jobs.processes`) say who holds the lease, or held it last.
`known_until` is the highest number of a trial when it began: what it learnt from at its start
it finds again when it is resumed. Null in jobs of older versions.
"""

WORKERS = Table(
    "workers",
    metadata,
    Column("id", Number, primary_key=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("name", String(255), nullable=False),
    Column("host", String(255), nullable=False),
    Column("machine", String(255), nullable=False),
    Column("state", String(32), nullable=False),
    Column("message", Text, nullable=False),
    Column("trials", BigInteger, nullable=False),
    Column("failures", BigInteger, nullable=False),
    Column("pace", Double),
    Column("started_at", UtcDateTime, nullable=False),
    Column("seen_at", UtcDateTime, nullable=False),
    UniqueConstraint("job_id", "name"),
)
"""What one worker of a job last told; `pace` is null where nobody watches it."""

ABOUT = Table(
    "about",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("value", Text, nullable=False),
)
"""What a database says about itself: `uid`, and from which schema on clients may use it."""

MACHINES = Table(
    "machines",
    metadata,
    Column("id", Number, primary_key=True),
    Column("name", String(255), unique=True, nullable=False),
    Column("host", String(255), nullable=False),
    Column("target", String(255), nullable=False),
    Column("facts", Text, nullable=False),
    Column("calibration", Text, nullable=False),
    Column("seen_at", UtcDateTime),
)
"""A machine that trials are measured on; `facts` and `calibration` are JSON objects, or ""."""

SERIES = Table(
    "series",
    metadata,
    Column("id", Number, primary_key=True),
    Column("workload_id", ForeignKey("workloads.id"), nullable=False),
    Column("target_id", ForeignKey("targets.id"), index=True, nullable=False),
    Column("threads", Integer, nullable=False),
    Column("measured_by", String(16), nullable=False),
    Column("input_layout", String(64), nullable=False),
    Column("output_layout", String(64), nullable=False),
    Column("toolchain_id", ForeignKey("toolchains.id"), nullable=False),
    Column("calibration", String(16), nullable=False),
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
"""Trials that may be compared with one another. See the module's docstring."""

TRIALS = Table(
    "trials",
    metadata,
    Column("id", Number, primary_key=True),
    Column("series_id", ForeignKey("series.id"), nullable=False),
    Column("config", Text, nullable=False),
    Column("config_digest", String(16), nullable=False),
    Column("status", String(16), nullable=False),
    Column("message", Text, nullable=False),
    Column("latency_s", Seconds),
    Column("samples", Text, nullable=False),
    Column("warm_samples", Text, nullable=False),
    Column("bound", String(64), nullable=False),
    Column("elapsed_s", Double, nullable=False),
    Column("latest", Boolean, nullable=False),
    Column("job_id", ForeignKey("jobs.id")),
    Column("host", String(255), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("machine_id", BigInteger, ForeignKey("machines.id")),
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
"""One trial: seconds for latencies, JSON lists for samples, text for why it failed."""

COST_MODELS = Table(
    "cost_models",
    metadata,
    Column("id", Number, primary_key=True),
    Column("family", String(64), nullable=False),
    Column("target", String(255), nullable=False),
    Column("measured_by", String(16), nullable=False),
    Column("toolchain_id", ForeignKey("toolchains.id"), nullable=False),
    Column("features", String(64), nullable=False),
    Column("recipe", String(255), nullable=False),
    Column("trials", BigInteger, nullable=False),
    Column("workloads", Text, nullable=False),
    Column("scores", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("active", Boolean, nullable=False),
    Column("host", String(255), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Index("ix_cost_models_family", "family", "target", "measured_by"),
)
"""A pretrained cost model made from trials of this database; see `records.learning.cost_models`.

`target` is an identity, or "" for all of the family; `model`, `workloads` and `scores` are JSON
texts; of a family, target and way of measuring one at most is `active`.
"""
