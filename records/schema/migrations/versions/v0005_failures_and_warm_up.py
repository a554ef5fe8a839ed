"""An index of failures, and up to which trial a job knew others' results when it began.

Revision: 0005. Both are additions: an older Tilesmith does not need to know them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the index and the column."""
    op.add_column("jobs", sa.Column("known_until", sa.BigInteger))
    failed = sa.text("latency_s IS NULL")
    op.create_index(
        "ix_trials_failed",
        "trials",
        ["status", "series_id"],
        sqlite_where=failed,
        postgresql_where=failed,
    )
