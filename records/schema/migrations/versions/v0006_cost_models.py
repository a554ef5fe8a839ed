"""Pretrained cost models made from the trials.

Revision: 0006. Additive: clients of the schema before go on reading and writing.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make `cost_models`."""
    op.create_table(
        "cost_models",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("family", sa.String(64), nullable=False),
        sa.Column("target", sa.String(255), nullable=False),
        sa.Column("measured_by", sa.String(16), nullable=False),
        sa.Column("toolchain_id", NUMBER, nullable=False),
        sa.Column("features", sa.String(64), nullable=False),
        sa.Column("recipe", sa.String(255), nullable=False),
        sa.Column("trials", sa.BigInteger, nullable=False),
        sa.Column("workloads", sa.Text, nullable=False),
        sa.Column("scores", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("active", sa.Boolean, nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("created_at", sa.DateTime, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_cost_models"),
        sa.ForeignKeyConstraint(
            ["toolchain_id"], ["toolchains.id"], name="fk_cost_models_toolchain_id_toolchains"
        ),
    )
    op.create_index("ix_cost_models_family", "cost_models", ["family", "target", "measured_by"])
