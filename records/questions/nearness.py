"""Where a search may start: at the bests of workloads near in shape, and of machines alike.

What is best on one CPU is seldom far from the best on another of its family with registers and
caches of about that size.
"""

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from sqlalchemy import Connection, exists, select

from tilesmith.records.opened.store import Store
from tilesmith.records.questions.bests import Scope, candidates, pick
from tilesmith.records.questions.likeness import distance, unlikeness
from tilesmith.records.schema.models import SERIES, TARGETS, WORKLOADS
from tilesmith.records.trials.record import Best
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy

if TYPE_CHECKING:
    from tilesmith.search_space.workloads.workload import Workload


def nearest_keys(
    connection: Connection, workload: "Workload", target: str, limit: int
) -> list[str]:
    """Keys of the workloads tried on a target that are nearest to one, itself left out."""
    tried = (
        select(SERIES.c.id)
        .join(TARGETS, TARGETS.c.id == SERIES.c.target_id)
        .where(SERIES.c.workload_id == WORKLOADS.c.id, TARGETS.c.identity == target)
    )
    keys = connection.execute(
        select(WORKLOADS.c.key).where(WORKLOADS.c.operator == workload.operator, exists(tried))
    ).scalars()
    measured = ((distance(workload, key), key) for key in keys if key != workload.key)
    return [key for far, key in sorted(measured) if math.isfinite(far)][:limit]


MACHINES = 3
"""Other machines asked: no more trials may be lost where none of their bests is any good."""

_MOST_MACHINES = 1000
"""Descriptions compared."""


def bests_elsewhere(
    store: Store, workload: "Workload", target: Target, threads: int, measured_by: MeasuredBy | None
) -> list[Best]:
    """The best of each of the machines most like `target`, itself left out.

    Args:
        measured_by: only such records; None prefers hardware.
    """
    with store.reading() as connection:
        scope = Scope([workload.key], None, threads, measured_by=measured_by)
        members = candidates(connection, scope, store.toolchain, None)
        others = {
            c.of.target for c in members if c.of.target != target.identity and c.fastest is not None
        }
        alike = _most_alike(connection, others, target)
        picked = pick(connection, [c for c in members if c.of.target in alike], ("target",))
    return [picked[(name,)] for name in alike if (name,) in picked]


def _most_alike(connection: Connection, others: Collection[str], target: Target) -> list[str]:
    """Identities of the machines that are most like one, nearest first."""
    if not others:
        return []
    query = select(TARGETS.c.identity, TARGETS.c.facts).where(
        TARGETS.c.identity.in_(sorted(others)[:_MOST_MACHINES]),
        TARGETS.c.family == target.family,
        TARGETS.c.facts != "",
    )
    far = ((unlikeness(target, row.facts), row.identity) for row in connection.execute(query))
    return [name for distance, name in sorted(far) if math.isfinite(distance)][:MACHINES]
