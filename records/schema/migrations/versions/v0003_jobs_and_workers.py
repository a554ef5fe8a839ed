"""Jobs that somebody owns, workers, and what a database says about itself.

Revision: 0003. Additive: clients of the schema before go on reading and writing.
"""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add columns to `jobs`; make `workers` and `about`."""
    for column in (
        sa.Column("owner", sa.String(255)),
        sa.Column("process", sa.String(255)),
        sa.Column("heartbeat_at", sa.DateTime),
        sa.Column("lease", sa.String(32)),
        sa.Column("step", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("progress", sa.Text),
    ):
        op.add_column("jobs", column)
    op.create_table(
        "workers",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("job_id", NUMBER, nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("machine", sa.String(255), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("trials", sa.BigInteger, nullable=False),
        sa.Column("failures", sa.BigInteger, nullable=False),
        sa.Column("pace", sa.Double),
        sa.Column("started_at", sa.DateTime, nullable=False),
        sa.Column("seen_at", sa.DateTime, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_workers_job_id_jobs"),
        sa.UniqueConstraint("job_id", "name", name="uq_workers_job_id"),
    )
    about = op.create_table(
        "about",
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_about"),
    )
    facts = {"uid": secrets.token_hex(16), "readable_from": "0003", "writable_from": "0003"}
    op.bulk_insert(about, [{"name": name, "value": value} for name, value in facts.items()])
