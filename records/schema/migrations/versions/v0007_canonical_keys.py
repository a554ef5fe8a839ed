"""Workloads that say a parameter's default in words have the key of those that leave it out.

Revision: 0007. Changes rows alone: clients of the schema before go on reading and writing.
"""

import hashlib

import sqlalchemy as sa
from alembic import op

from tilesmith.records.schema.models import SERIES, TRIALS, WORKLOADS
from tilesmith.search_space.workloads.workload import canonical_key

revision = "0007"
down_revision = "0006"

_OPERATORS = ("attention", "elementwise", "gather_packed", "reduce", "slice")
"""Those of which one default had two spellings."""


def upgrade() -> None:
    """Give each workload the key of today, and put those together that have one."""
    asked = sa.select(WORKLOADS).where(WORKLOADS.c.operator.in_(_OPERATORS))
    for row in op.get_bind().execute(asked.order_by(WORKLOADS.c.id)).all():
        if (key := canonical_key(row.key)) != row.key:
            _rename(row.id, key)


def _rename(number: int, key: str) -> None:
    """Give the workload of this number a key that another one may have already."""
    connection, mine = op.get_bind(), WORKLOADS.c.id == number
    other = connection.execute(sa.select(WORKLOADS.c.id).where(WORKLOADS.c.key == key)).scalar()
    if other is None:
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        connection.execute(sa.update(WORKLOADS).where(mine).values(key=key, digest=digest))
        return
    of_other = sa.select(SERIES).where(SERIES.c.workload_id == other)
    known = {tuple(row)[2:]: row.id for row in connection.execute(of_other)}
    own = sa.select(SERIES).where(SERIES.c.workload_id == number)
    for row in connection.execute(own).all():
        same = SERIES.c.id == row.id
        if tuple(row)[2:] in known:
            _join(row.id, known[tuple(row)[2:]])
            connection.execute(sa.delete(SERIES).where(same))
        else:
            connection.execute(sa.update(SERIES).where(same).values(workload_id=other))
    connection.execute(sa.delete(WORKLOADS).where(mine))


def _join(series: int, other: int) -> None:
    """Move a series' trials to another, where the last one of a configuration counts."""
    connection, both = op.get_bind(), TRIALS.c.series_id.in_((series, other))
    latest = sa.select(TRIALS.c.id, TRIALS.c.config_digest).where(both, TRIALS.c.latest)
    counted: dict[str, int] = {}
    for row in connection.execute(latest.order_by(TRIALS.c.created_at, TRIALS.c.id)).all():
        if earlier := counted.get(row.config_digest):
            old = sa.update(TRIALS).where(TRIALS.c.id == earlier)
            connection.execute(old.values(latest=False))
        counted[row.config_digest] = row.id
    moved = sa.update(TRIALS).where(TRIALS.c.series_id == series)
    connection.execute(moved.values(series_id=other))
