"""Which workloads are near one another in shape: their schedules are starting points."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sqlalchemy import Connection, exists, select

from tilesmith.records.schema.models import SERIES, TARGETS, WORKLOADS

if TYPE_CHECKING:
    from tilesmith.search_space.workloads.workload import Workload

_OTHER_WORD = math.log(8.0)  # a differing name (layout, mode) counts like an eightfold extent
_OTHER_FUSION = math.log(1.5)  # a differing epilogue or constness matters little to a schedule


def nearest_keys(connection: Connection, workload: Workload, target: str, limit: int) -> list[str]:
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


def distance(workload: Workload, key: str) -> float:
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
