"""What a lower precision loses at one tensor, beside what it has to: R of what arises there.

    local R = ||ours - exact here|| / ||rounded here - exact here||

`exact here` is computed by the reference in float32 from the compiled model's own tensors before
it, with inputs and weights as the kernel has them (`local_ratios`); `rounded here` likewise, each
tensor on the way rounded. What came before has no part in either, so that a right kernel has 1
(less where it rounds less often), however deep it stands: measured 1.000 on convolutional networks
and an encoder in both precisions. A wrong rounding mode has 2.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.fault_finding.references.cones import nearest
from tilesmith.capabilities.fault_finding.references.evaluation import Evaluator, Rounding
from tilesmith.capabilities.fault_finding.references.folded_constants import (
    constants_of,
    folded_constants,
)
from tilesmith.capabilities.fault_finding.rounding.ratios import (
    FEW,
    LIKELY,
    limited,
    ratio,
    rounding_to,
)
from tilesmith.capabilities.fault_finding.stepping.report import Verdict
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.passes.narrow_kernels import largest
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import JobError

HERE_FINE, HERE_LIKELY = 1.2, 1.5
"""Local R up to which nothing is wrong, and from which on something is."""

_NARROW = [to_numpy(name) for name in ("float32", "float16", "bfloat16")]


def local_ratios(
    graph: Graph,
    inputs: Mapping[str, Any],
    tensors: Mapping[str, Any],
    dtype: str,
    names: Iterable[str],
) -> dict[str, float]:
    """Local R of tensors, by name; those that the reference does not compute are left out.

    A kernel may have operands and weights rounded or as the model has them, and weights rounded
    with the factors that are folded into them. It is judged with those with which it is right, if
    there are any; what it gives has to be rounded once from these, so that a small defect is one
    with any of them.

    Args:
        graph: the model as imported.
        tensors: the compiled model's tensors.
        dtype: of the precision.
    """
    rounded = rounding_to(dtype)

    def narrow(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: rounded(name, value) for name, value in values.items()}

    given = dict(inputs)
    for name, value in tensors.items():
        widened = isinstance(value, np.ndarray) and value.dtype in _NARROW
        given[name] = value.astype(np.float32) if widened else value
    names = [n for n in names if getattr(given.get(n), "dtype", None) == np.float32]
    ours = {name: given[name] for name in names}
    here = _Here(graph, dtype, ours)
    ratios: dict[str, float] = {}
    doubted = list(names)
    for constants in _as_kernels_have_them(graph, rounded):
        if not doubted:
            break
        for operands in (narrow(given), given):
            other = here.ratios(doubted, {**constants, **operands})
            ratios |= {name: min(ratios.get(name, math.inf), other[name]) for name in other}
            doubted = [name for name in other if ratios[name] > HERE_FINE]
    return ratios


def _as_kernels_have_them(graph: Graph, rounded: Rounding) -> Iterator[dict[str, Any]]:
    """The model's constants: rounded, folded and rounded, as they are."""
    fixed = constants_of(graph)
    yield {name: rounded(name, value) for name, value in fixed.items()}
    yield folded_constants(graph, fixed, rounded)
    yield fixed


@dataclass(frozen=True)
class _Here:
    """Tensors from those before them.

    Attributes:
        graph: the model as imported.
        dtype: of the precision.
        ours: the compiled model's, in float32.
    """

    graph: Graph
    dtype: str
    ours: Mapping[str, NDArray[Any]]

    def ratios(self, names: Sequence[str], operands: Mapping[str, Any]) -> dict[str, float]:
        """Local R with given operands: inputs, constants and tensors."""
        rounded = rounding_to(self.dtype)
        kept: set[str] = set()

        def results(name: str, value: Any) -> Any:
            return value if name in kept else rounded(name, value)

        exact, least = Evaluator(self.graph), Evaluator(self.graph, results)
        ratios: dict[str, float] = {}
        for name in names:
            given = {n: operands[n] for n in nearest(self.graph, name, operands.keys())}
            kept.clear()
            kept.update(given)
            try:
                wanted, narrow = (
                    np.asarray(one.between(given, [name])[name]) for one in (exact, least)
                )
            except JobError:
                continue
            if wanted.shape == self.ours[name].shape and wanted.dtype.kind == "f":
                exact_here = limited(wanted, self.dtype)
                ours = _within(self.ours[name], exact_here, self.dtype)
                ratios[name] = ratio(ours, exact_here, narrow, self.dtype)
        return ratios


def _within(ours: NDArray[Any], exact: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Infinities where the exact number is as large as the type has any, as that number."""
    same = np.isinf(ours) & (np.sign(ours) == np.sign(exact))
    return np.where(same & (np.abs(exact) >= largest(dtype)), exact, ours)


def verdict_here(verdict: Verdict, here: float, elements: int) -> Verdict:
    """What a tensor is, by its R (`verdict`) and by what of it arises there."""
    if elements < FEW:
        wrong: Verdict = "likely" if here >= LIKELY else "ok"
    elif here > LIKELY:
        wrong = "missing"
    elif here > HERE_LIKELY:
        wrong = "likely"
    else:
        wrong = "possible" if here > HERE_FINE else "ok"
    if wrong != "ok":
        return wrong
    return verdict if verdict in ("ok", "upcast") else "inherited"
