"""A lower precision judged by the measure of the field: is the error as large as it has to be?

    R = ||ours - fp32|| / ||reference in the precision - fp32||        for each tensor

The reference in the precision is the model with every tensor rounded to it after each node, sums
in fp32. An R of 1 is what the precision costs whoever computes in it; far more means that something
beside the precision is lost, and far less that something is computed in a wider one.

A tensor whose R rises above that of the tensors it is computed from is a deviation. One from which
R returns at once is a *spike* (a tensor that cancels, or that nothing depends on); one from which
it stays is a *step*, and the first step is the suspect.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.fault_finding.references.cones import followers
from tilesmith.capabilities.fault_finding.references.evaluation import Rounding
from tilesmith.capabilities.fault_finding.stepping.errors import distance, rms
from tilesmith.capabilities.fault_finding.stepping.report import Deviation, TensorRow, Verdict
from tilesmith.capabilities.fault_finding.stepping.steps import Arrays
from tilesmith.compiler.passes.narrow_kernels import as_narrow, largest
from tilesmith.search_space.expressions.dtypes import to_numpy


def left_range(rows: Sequence[TensorRow], tensors: Arrays, exact: Arrays, dtype: str) -> str:
    """A sentence on the first tensor that is infinite where fp32 has a finite number too large for
    the type, if infinities or what is no number come of it; else "".

    Float16 ends at 65,504. What is larger in fp32 becomes infinite, infinities less infinities are
    no numbers, and from there on nothing says where they came from.

    Args:
        rows: in topological order.
        exact: tensors in fp32, cut to the type's range.
    """
    if not any(row.error.nan or row.error.inf for row in rows):
        return ""
    for row in rows:
        wanted = exact[row.name]
        if wanted.dtype != np.float32:
            continue
        over = np.abs(wanted) >= largest(dtype)
        lost = int((over & np.isinf(np.asarray(tensors[row.name], np.float32))).sum())
        if lost:
            return (
                f"{row.operator} '{row.node}' leaves the range of {dtype}: {lost:,} of the "
                f"{wanted.size:,} elements of '{row.name}' are over {largest(dtype):,.0f} in fp32 "
                "and infinite here, and what is computed of them may be no number; scale its "
                "weights down, or use another precision (int8)"
            )
    return ""


FINE, POSSIBLE, LIKELY = 1.2, 3.0, 10.0
"""R up to which nothing is wrong, something may be, and something likely is; above, an algorithm is
missing."""

UPCAST = 0.5
"""R below which a tensor is clearly more exact than the precision is: fused kernels round a little
less often than the reference."""

FEW = 32
"""Elements: the errors of fewer say little, and R of them is nothing but chance."""

_WRONG = ("possible", "likely", "missing")

_RISE = 1.3
"""An R so many times those of the tensors before is news."""

_LOOK = 5
"""How many tensors behind a deviation tell whether it stays."""

_FLOATS = tuple(to_numpy(name) for name in ("float32", "float16", "bfloat16"))

_UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "int8": 2.0**-8}
"""Half the distance between neighbours, relative to their size."""


def rounding_to(dtype: str) -> Rounding:
    """Every floating tensor rounded to an element type, single numbers left out: an epsilon that
    float16 has not would make quotients of zeros."""

    def rounded(name: str, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype in _FLOATS and value.size > 1:
            return as_narrow(value.astype(np.float32), dtype).astype(value.dtype)
        return value

    return rounded


def limited(exact: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Finite numbers too large for an element type as the largest that it has: as kernels take
    them."""
    most = largest(dtype)
    return exact if math.isinf(most) else np.where(np.isinf(exact), exact, exact.clip(-most, most))


def ratio(tensor: NDArray[Any], exact: NDArray[Any], narrow: NDArray[Any], dtype: str) -> float:
    """R of a tensor; what the reference loses is at least what rounding once costs."""
    ours, theirs = distance(tensor, exact), distance(narrow, exact)
    once = _UNITS[dtype] / math.sqrt(3) / 2 * rms(exact) * math.sqrt(max(1, exact.size))
    bound = max(theirs, once)
    if bound == 0.0 or not math.isfinite(bound):  # the reference has no numbers where fp32 has
        return 1.0 if ours <= bound else math.inf
    return ours / bound


def verdict_of(r: float, elements: int) -> Verdict:
    """What an R means, of a tensor of so many elements."""
    if elements < FEW:
        return "ok" if r < LIKELY else "likely"
    if r < UPCAST:
        return "upcast"
    if r < FINE:
        return "ok"
    if r < POSSIBLE:
        return "possible"
    return "likely" if r < LIKELY else "missing"


def with_deviations(
    rows: Sequence[TensorRow], parents: Mapping[str, Sequence[str]]
) -> list[TensorRow]:
    """Rows, each deviation named.

    Args:
        rows: with their R, in topological order.
        parents: the nearest rows that each is computed from.
    """
    ratios = {row.name: row.ratio for row in rows if row.ratio is not None}
    named = []
    for row in rows:
        own = ratios.get(row.name) if row.verdict in _WRONG else None
        before = max((ratios.get(name, 1.0) for name in parents.get(row.name, ())), default=1.0)
        rises = own is not None and own >= _RISE * before
        if own is None or not (rises or row.looked_at):
            named.append(row)
            continue
        behind = [ratios[n] for n in followers(parents, row.name) if n in ratios]
        named.append(replace(row, deviation=_named(own, _until_news(own, behind)[:_LOOK])))
    return named


def _until_news(own: float, behind: Sequence[float]) -> list[float]:
    """The ratios behind a deviation up to the next rise, which is another's."""
    ratios: list[float] = []
    for ratio_behind in behind:
        if ratio_behind > _RISE * (ratios[-1] if ratios else own):
            break
        ratios.append(ratio_behind)
    return ratios


def _named(own: float, behind: Sequence[float]) -> Deviation:
    """A step stays above half way (of the exponents) between 1 and itself."""
    if not behind:
        return "step"
    return "step" if statistics.median(behind) >= min(math.sqrt(own), POSSIBLE) else "spike"


def suspect_of(rows: Sequence[TensorRow]) -> str | None:
    """The first step that is likely wrong; without one, the first likely spike, then any step."""
    steps = [row for row in rows if row.deviation == "step"]
    spikes = [row for row in rows if row.deviation == "spike"]
    likely = [row for row in (*steps, *spikes) if row.verdict in ("likely", "missing")]
    here = [row for row in rows if row in likely and row.looked_at]
    if here:  # each is wrong by itself
        return here[0].name
    return next((row.name for row in (*likely, *steps)), None)
