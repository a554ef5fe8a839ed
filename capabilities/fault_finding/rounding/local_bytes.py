"""How well a kernel of bytes rounds: local R of int8.

    local R = ||ours - exact here|| / ||reference here - exact here||        in steps of the bytes

`exact here` is computed in float32 from the compiled model's own tensors before it, saturated and
not rounded, pairs on the way passed by; `reference here` is with each rounding of the model. A
number between two bytes is half a step from both, so that a right kernel has 1 whichever way its
ties fall, and less where it rounds less often. One that cuts off where it should round has 2, one
whose zero point is off by one 3.6, and neither is more than a step from the reference anywhere.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.fault_finding.references.cones import nearest
from tilesmith.capabilities.fault_finding.references.evaluation import Evaluator
from tilesmith.capabilities.fault_finding.references.quantised import scales_of, without_rounding
from tilesmith.capabilities.fault_finding.rounding.local_ratios import HERE_LIKELY
from tilesmith.capabilities.fault_finding.rounding.ratios import FEW, LIKELY
from tilesmith.capabilities.fault_finding.stepping.errors import distance
from tilesmith.capabilities.fault_finding.stepping.report import TensorRow
from tilesmith.compiler.graph.graph import Graph
from tilesmith.search_space.support.errors import JobError

Array = NDArray[Any]

_BYTES = ("uint8", "int8")

_NOISE = 0.01
"""Steps that roundings of float32 move a number by."""


def byte_ratio(ours: Array, wanted: Array, exact: Array) -> float:
    """Local R of bytes.

    Args:
        wanted: the reference's.
        exact: numbers in steps, saturated and not rounded.
    """
    least = _NOISE * math.sqrt(max(1, exact.size))
    return distance(ours, exact) / max(distance(wanted, exact), least)


def byte_ratios(
    graph: Graph, inputs: Mapping[str, Any], tensors: Mapping[str, Any], names: Iterable[str]
) -> dict[str, float]:
    """Local R of tensors of bytes, by name; others, and those that the reference does not compute,
    are left out.

    Args:
        graph: the model as imported.
        tensors: the compiled model's tensors, bytes as bytes.
    """
    scales = scales_of(graph)
    mine = [n for n in names if n in scales and graph.info(n).dtype in _BYTES and n in tensors]
    reference, exact = Evaluator(graph), without_rounding(graph, tensors.keys())
    ratios = {}
    for name in mine:
        given = {**inputs, **{n: tensors[n] for n in tensors if n != name}}
        before = {n: given[n] for n in nearest(graph, name, given.keys())}
        try:
            wanted = reference.between(before, [name])[name]
            numbers = exact.between(before, [scales[name].source])[scales[name].source]
        except JobError:
            continue
        if np.shape(wanted) == np.shape(tensors[name]):
            ratios[name] = byte_ratio(tensors[name], wanted, scales[name].steps(numbers))
    return ratios


def misrounded(
    rows: Sequence[TensorRow], graph: Graph, inputs: Mapping[str, Any], tensors: Mapping[str, Any]
) -> list[TensorRow]:
    """Rows of a comparison, those of bytes bad that are within a step and not rounded rightly."""
    off = [row.name for row in rows if row.error.distance and row.verdict != "bad"]
    here = byte_ratios(graph, inputs, tensors, off)
    return [
        replace(row, local_ratio=here[row.name], verdict="bad")
        if here.get(row.name, 0.0) > bound_of(math.prod(row.shape))
        else row
        for row in rows
    ]


def bound_of(elements: int) -> float:
    """Local R up to which so many bytes may be rounded rightly: inner roundings that fall the other
    way are much of few."""
    return HERE_LIKELY if elements >= FEW else LIKELY
