"""The first schema: workloads, targets, toolchains, jobs, series, trials.

Revision: 0001. A migration never imports the models: they move on, it must not.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make every table and index."""
    _nouns()
    op.create_table(
        "jobs",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("uid", sa.String(32), nullable=False),
        sa.Column("command", sa.Text, nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("strategy", sa.String(64), nullable=False),
        sa.Column("state", sa.Text),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("started_at", sa.DateTime, nullable=False),
        sa.Column("ended_at", sa.DateTime),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("uid", name="uq_jobs_uid"),
    )
    op.create_index("ix_jobs_status", "jobs", ["status"])
    _series()
    _trials()


def _nouns() -> None:
    op.create_table(
        "workloads",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("digest", sa.String(16), nullable=False),
        sa.Column("operator", sa.String(64), nullable=False),
        sa.Column("dtype", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workloads"),
        sa.UniqueConstraint("key", name="uq_workloads_key"),
    )
    op.create_index("ix_workloads_digest", "workloads", ["digest"])
    op.create_index("ix_workloads_operator", "workloads", ["operator"])
    op.create_table(
        "targets",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("identity", sa.String(255), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("family", sa.String(64), nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_targets"),
        sa.UniqueConstraint("identity", name="uq_targets_identity"),
    )
    op.create_index("ix_targets_name", "targets", ["name"])
    versions = ("tilesmith", "llvm", "codegen", "simulator", "space", "schema")
    op.create_table(
        "toolchains",
        sa.Column("id", NUMBER, nullable=False),
        *(sa.Column(name, sa.String(64), nullable=False) for name in versions),
        sa.PrimaryKeyConstraint("id", name="pk_toolchains"),
        sa.UniqueConstraint(*versions, name="uq_toolchains_tilesmith"),
    )


def _series() -> None:
    op.create_table(
        "series",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("workload_id", NUMBER, nullable=False),
        sa.Column("target_id", NUMBER, nullable=False),
        sa.Column("threads", sa.Integer, nullable=False),
        sa.Column("measured_by", sa.String(16), nullable=False),
        sa.Column("input_layout", sa.String(64), nullable=False),
        sa.Column("output_layout", sa.String(64), nullable=False),
        sa.Column("toolchain_id", NUMBER, nullable=False),
        sa.Column("calibration", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_series"),
        _foreign("series", "workload_id", "workloads"),
        _foreign("series", "target_id", "targets"),
        _foreign("series", "toolchain_id", "toolchains"),
        sa.UniqueConstraint(
            "workload_id",
            "target_id",
            "threads",
            "measured_by",
            "input_layout",
            "output_layout",
            "toolchain_id",
            "calibration",
            name="uq_series_workload_id",
        ),
    )
    op.create_index("ix_series_target_id", "series", ["target_id"])


def _trials() -> None:
    op.create_table(
        "trials",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("series_id", NUMBER, nullable=False),
        sa.Column("config", sa.Text, nullable=False),
        sa.Column("config_digest", sa.String(16), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("latency_s", sa.Double),
        sa.Column("samples", sa.Text, nullable=False),
        sa.Column("warm_samples", sa.Text, nullable=False),
        sa.Column("bound", sa.String(64), nullable=False),
        sa.Column("elapsed_s", sa.Double, nullable=False),
        sa.Column("latest", sa.Boolean, nullable=False),
        sa.Column("job_id", NUMBER),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("created_at", sa.DateTime, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        _foreign("trials", "series_id", "series"),
        _foreign("trials", "job_id", "jobs"),
    )
    op.create_index(
        "ix_trials_best", "trials", ["series_id", "latest", "latency_s", "config_digest"]
    )
    op.create_index("ix_trials_config", "trials", ["series_id", "config_digest"])
    op.create_index("ix_trials_job", "trials", ["job_id"])


def _foreign(table: str, column: str, other: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{other}.id"], name=f"fk_{table}_{column}_{other}")
