"""Views for people who write plain SQL: `trial_details` and `bests`.

Revision: 0002.
"""

from alembic import op

revision = "0002"
down_revision = "0001"

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
    c.simulator AS simulator, c.space AS space, s.calibration AS calibration
"""

_NOUNS = """
    JOIN workloads w ON w.id = s.workload_id
    JOIN targets g ON g.id = s.target_id
    JOIN toolchains c ON c.id = s.toolchain_id
"""


def upgrade() -> None:
    """Make both views."""
    op.execute(
        f"CREATE VIEW trial_details AS SELECT {_COLUMNS} "
        f"FROM trials t JOIN series s ON s.id = t.series_id {_NOUNS}"
    )
    op.execute(
        f"CREATE VIEW bests AS SELECT {_COLUMNS} FROM series s {_NOUNS} JOIN trials t ON t.id = ("
        "SELECT b.id FROM trials b WHERE b.series_id = s.id AND b.latest = TRUE "
        "AND b.latency_s IS NOT NULL ORDER BY b.latency_s, b.config_digest LIMIT 1)"
    )
