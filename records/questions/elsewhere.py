"""What is best for a workload on other machines of a family, the most alike first.

Their configurations are starting points: what is best on one CPU is seldom far from the best on
another with registers and caches of about that size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from tilesmith.records.opened.store import Store
from tilesmith.records.questions.bests import Scope, candidates, pick
from tilesmith.records.schema.models import TARGETS
from tilesmith.records.trials.record import Best
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy

if TYPE_CHECKING:
    from tilesmith.search_space.workloads.workload import Workload

MACHINES = 3
"""Other machines asked: no more trials may be lost where none of their bests is any good."""

_OTHER_WORD = math.log(8.0)  # another name, or a fact that only one of them has
_MOST_MACHINES = 1000
"""Descriptions compared."""


def bests_elsewhere(
    store: Store, workload: Workload, target: Target, threads: int, measured_by: MeasuredBy | None
) -> list[Best]:
    """The best of each of the machines most like `target`, itself left out.

    Args:
        measured_by: only such records; None prefers hardware.
    """
    with store.reading() as connection:
        scope = Scope([workload.key], None, threads, measured_by=measured_by)
        members = candidates(connection, scope, store.toolchain, None)
        others = {
            c.target for c in members if c.target != target.identity and c.fastest is not None
        }
        alike = _most_alike(connection, others, target)
        picked = pick(connection, [c for c in members if c.target in alike], ("target",))
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


def unlikeness(target: Target, facts: str) -> float:
    """How unlike another machine is: the sum of |ln(number / number)| over the facts that
    calibration leaves alone; a name that differs counts like a number that is eight times as large.

    Args:
        facts: the other's (`Target.to_json`); infinite where they are damaged.
    """
    try:
        theirs = {name: fact["value"] for name, fact in json.loads(facts)["facts"].items()}
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return math.inf
    total = 0.0
    for name, fact in target.facts:
        if not fact.calibratable:
            total += _apart(fact.value, theirs.get(name))
    return total


def _apart(ours: object, theirs: object) -> float:
    if ours == theirs:
        return 0.0
    numbers = isinstance(ours, int | float) and isinstance(theirs, int | float)
    if not numbers or isinstance(ours, bool) or isinstance(theirs, bool):
        return _OTHER_WORD
    if ours <= 0 or theirs <= 0 or not math.isfinite(theirs):  # type: ignore[operator, arg-type]
        return _OTHER_WORD
    return abs(math.log(ours / theirs))  # type: ignore[operator]
