"""Which machine measured each trial; the view `trial_details` tells it.

Revision: 0004. Additive: trials of clients of the schema before are of no machine.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

_COLUMNS = """
    t.id AS id, t.series_id AS series_id,
    w.key AS workload, w.operator AS operator, w.dtype AS dtype,
    g.name AS target, g.identity AS target_identity,
    s.threads AS threads, s.measured_by AS measured_by,
    s.input_layout AS input_layout, s.output_layout AS output_layout,
    t.config AS config, t.config_digest AS config_digest,
    t.status AS status, t.latency_s AS latency_s, t.message AS message,
    t.samples AS samples, t.warm_samples AS warm_samples, t.bound AS bound,
    t.elapsed_s AS elapsed_s, t.latest AS latest, t.job_id AS job_id, t.host AS host,
    t.created_at AS created_at, c.tilesmith AS tilesmith, c.llvm AS llvm, c.codegen AS codegen,
    c.simulator AS simulator, c.space AS space, s.calibration AS calibration, m.name AS machine
"""


def upgrade() -> None:
    """Make `machines`, point trials at it, and make the view anew."""
    op.create_table(
        "machines",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("target", sa.String(255), nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("calibration", sa.Text, nullable=False),
        sa.Column("seen_at", sa.DateTime),
        sa.PrimaryKeyConstraint("id", name="pk_machines"),
        sa.UniqueConstraint("name", name="uq_machines_name"),
    )
    op.execute(  # Alembic adds no reference to a table of SQLite
        "ALTER TABLE trials ADD COLUMN machine_id BIGINT "
        "CONSTRAINT fk_trials_machine_id_machines REFERENCES machines (id)"
    )
    condition = sa.text("machine_id IS NOT NULL")
    op.create_index(
        "ix_trials_machine",
        "trials",
        ["machine_id", "latency_s"],
        sqlite_where=condition,
        postgresql_where=condition,
    )
    op.execute("DROP VIEW trial_details")
    op.execute(
        f"CREATE VIEW trial_details AS SELECT {_COLUMNS} "
        "FROM trials t JOIN series s ON s.id = t.series_id "
        "JOIN workloads w ON w.id = s.workload_id JOIN targets g ON g.id = s.target_id "
        "JOIN toolchains c ON c.id = s.toolchain_id LEFT JOIN machines m ON m.id = t.machine_id"
    )
