"""Which float32 tensors hold whole numbers only, and of what range.

Quantised models compute with bytes; here those are float32 that hold whole numbers, which is exact
as long as every number and every sum stays below 2^24. Invariant: what is said holds of every
value of the tensor; what is not sure is None.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.access import clip_bounds
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.graph.operator_traits import having
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.expressions.dtypes import to_numpy

Range = tuple[float, float]
"""Least and greatest."""

EXACT = float(2**24)
"""Up to here float32 holds every whole number."""

NARROW = ("uint8", "int8", "uint16", "int16")
"""Element types whose numbers all are float32 numbers."""

MOVES = frozenset((*having("moves", "picks", "joins", "samples", "bounds"), "Pad", "View"))
"""Operators that give numbers they are given (or 0), whatever these are."""

_DEPTH = 24
"""Operators looked back through."""


def limits(dtype: str) -> Range:
    """Range of an element type."""
    info = np.iinfo(to_numpy(dtype))
    return float(info.min), float(info.max)


def whole_range(rewriter: Rewriter, name: str, depth: int = _DEPTH) -> Range | None:
    """The range of a float32 tensor that holds whole numbers only, None where it may hold others
    (infinite bounds: no range is known)."""
    value = rewriter.constant(name)
    if value is not None:
        return _of_array(value)
    node = rewriter.producer(name)
    if node is None or depth == 0:
        return None
    if node.operator in MOVES:
        return _of_move(rewriter, node, depth)
    match node.operator:
        case "Cast":
            return _cast(rewriter, node, depth)
        case "Round":
            return _round(rewriter, node, depth)
        case "Clip":
            return _clip(rewriter, node, depth)
        case "Add" | "Sub":
            return _sum(rewriter, node, depth)
        case "MatMul":
            return _product(rewriter, node, depth)
    return None


def _of_array(value: NDArray[Any]) -> Range | None:
    if value.dtype.kind not in "fiu" or value.size == 0:
        return None
    if value.dtype.kind == "f" and not bool(np.all(value == np.rint(value))):
        return None
    return float(value.min()), float(value.max())


def _of_move(rewriter: Rewriter, node: Node, depth: int) -> Range | None:
    dtype = rewriter.info(node.writes[0]).dtype
    sources = [n for n in node.inputs if n and rewriter.info(n).dtype == dtype]
    if node.operator in having("samples"):
        if node.attribute("mode", "nearest") != "nearest":
            return None
        sources = node.inputs[:1]  # type: ignore[assignment]
    ranges = [whole_range(rewriter, n, depth - 1) for n in sources]
    low, high = (0.0, 0.0) if node.operator == "Pad" else (math.inf, -math.inf)
    for one in ranges:
        if one is None:
            return None
        low, high = min(low, one[0]), max(high, one[1])
    return low, high


def _cast(rewriter: Rewriter, node: Node, depth: int) -> Range | None:
    dtype = rewriter.info(node.inputs[0]).dtype
    if dtype in (*NARROW, "int32"):
        return limits(dtype)
    return whole_range(rewriter, node.inputs[0], depth - 1) if dtype == "float32" else None


def _round(rewriter: Rewriter, node: Node, depth: int) -> Range | None:
    """What is rounded may be a convolution of whole numbers that was transformed."""
    before = rewriter.producer(node.inputs[0])
    bounds = whole_range(rewriter, node.inputs[0], depth - 1)
    if before is not None and before.operator == "Conv" and len(before.reads) == 2:
        bounds = _product(rewriter, before, depth)
    return bounds or (-math.inf, math.inf)


def _product(rewriter: Rewriter, node: Node, depth: int) -> Range | None:
    """Of a product or convolution whose sums are exact."""
    one, other = (whole_range(rewriter, name, depth - 1) for name in node.inputs[:2])
    if one is None or other is None:
        return None
    weight, dims = rewriter.constant(node.inputs[1]), rewriter.info(node.inputs[1]).dims
    if node.operator == "Conv":
        length = math.prod(dims[1:])
        rows = None if weight is None else np.abs(weight).reshape(dims[0], -1).sum(axis=1)
    else:
        length = dims[-2] if len(dims) > 1 else dims[0]
        rows = None if weight is None else np.abs(weight).sum(axis=-2 if weight.ndim > 1 else 0)
    most = max(map(abs, one))
    worst = max(map(abs, other)) * length if rows is None else float(np.max(rows, initial=0))
    return (-most * worst, most * worst) if most * worst <= EXACT else None


def _clip(rewriter: Rewriter, node: Node, depth: int) -> Range | None:
    inner, bounds = (
        whole_range(rewriter, node.inputs[0], depth - 1), clip_bounds(node, rewriter.constant)
    )  # fmt: skip
    if inner is None or bounds is None or any(b != round(b) for b in bounds if math.isfinite(b)):
        return None
    low, high = bounds
    return max(low, min(inner[0], high)), min(high, max(inner[1], low))


def _sum(rewriter: Rewriter, node: Node, depth: int) -> Range | None:
    a, b = (whole_range(rewriter, name, depth - 1) for name in node.inputs)
    if a is None or b is None:
        return None
    return (a[0] + b[0], a[1] + b[1]) if node.operator == "Add" else (a[0] - b[1], a[1] - b[0])
