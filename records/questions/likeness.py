"""How far apart two workloads are in shape, and two machines in what they are made of.

What is best for one shape, or on one CPU, is seldom far from the best of its like. Needs no
database.
"""

import json
import math
from typing import TYPE_CHECKING

from tilesmith.search_space.hardware.target import Target

if TYPE_CHECKING:
    from tilesmith.search_space.workloads.workload import Workload

_OTHER_WORD = math.log(8.0)  # a differing name (layout, mode) counts like an eightfold extent
_OTHER_FUSION = math.log(1.5)  # a differing epilogue or constness matters little to a schedule


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
    other.pop("sums", "")  # a space says by itself which configurations it has
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
