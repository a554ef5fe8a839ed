"""Where a search may start: at the bests of workloads near in shape, and of machines alike.

What is best on one CPU is seldom far from the best on another of its family with registers and
caches of about that size.
"""

import json
import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from sqlalchemy import Connection, exists, select

from tilesmith.records.opened.store import Store
from tilesmith.records.questions.bests import Scope, candidates, pick
from tilesmith.records.schema.models import SERIES, TARGETS, WORKLOADS
from tilesmith.records.trials.record import Best
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy

if TYPE_CHECKING:
    from tilesmith.search_space.workloads.workload import Workload


_OTHER_WORD = math.log(8.0)  # a differing name (layout, mode) counts like an eightfold extent
_OTHER_FUSION = math.log(1.5)  # a differing epilogue or constness matters little to a schedule


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


def distance(workload: "Workload", key: str) -> float:
    """How far another workload's shape is: sum of |ln(extent / extent)| over the parameters.

    A parameter that is a name and differs counts like an eightfold extent, a shape text by its
    extents; epilogue and constness count little. Infinite for another operator or
    dtype, and for old keys that name a type of sums, which nothing ever summed in.
    """
    operator, *words = key.split()
    other = dict(word.partition("=")[::2] for word in words)
    same_types = (
        operator == workload.operator
        and other.pop("dtype", "float32") == workload.dtype
        and "accumulate" not in other
    )
    if not same_types:
        return math.inf
    epilogue, const = other.pop("epilogue", ""), other.pop("const", "")
    total = _OTHER_FUSION * (epilogue != ",".join(map(str, workload.epilogue)))
    total += _OTHER_FUSION * (const != ",".join(workload.constants))
    from tilesmith.search_space.workloads.template import template_of

    defaults = {p.name: p.default for p in template_of(operator).parameters}
    for name, value in workload.parameters:
        total += _word_distance(str(value), str(other.pop(name, defaults.get(name))))
    return total + _OTHER_WORD * len(other)


def _word_distance(here: str, there: str) -> float:
    if here == there:
        return 0.0
    ours, theirs = here.split("x"), there.split("x")
    if len(ours) != len(theirs) or not all(part.isdigit() for part in ours + theirs):
        return _OTHER_WORD
    extents = zip(map(int, ours), map(int, theirs), strict=True)
    return sum(abs(math.log((a + 1) / (b + 1))) for a, b in extents)


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
