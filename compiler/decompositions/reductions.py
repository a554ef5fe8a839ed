"""Norms and logarithms of sums: ReduceL1, ReduceL2, ReduceSumSquare, ReduceLogSum, ReduceLogSumExp;
reductions of flags, means of whole numbers.

ReduceL2(x) = sqrt(sum(x * x))
ReduceLogSumExp(x) = log(sum(exp(x - m))) + m  with m = max(x), made finite: nothing overflows
"""

import math

import numpy as np

from tilesmith.compiler.graph.access import axes
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import (
    Composer,
    decompositions,
    typed_decompositions,
)
from tilesmith.search_space.expressions.dtypes import is_floating


def _reduce(composer: Composer, node: Node, operator: str, source: str) -> str | None:
    """A reduction of `source` over the node's axes; None if they are not constant, or empty."""
    shape = composer.dims(source)
    over = axes(node, len(shape), composer.value)
    if over is None or (not over and node.attribute("noop_with_empty_axes", 0)):
        return None
    keep = bool(node.attribute("keepdims", 1))
    return composer.reduce(operator, source, over or range(len(shape)), keep=keep)


_SUMMED = ("float32", "float64", "int64", "int32", "uint64", "uint32")


def _summed(composer: Composer, node: Node, operator: str, *sources: str) -> str | None:
    """The sum of what an elementwise operator makes, whatever the numbers are."""
    dtype = composer.dtype(sources[0])
    if dtype not in _SUMMED:
        return None
    return _reduce(composer, node, "ReduceSum", composer.pointwise(operator, *sources, dtype=dtype))


@typed_decompositions.register("ReduceL1")
def reduce_l1(composer: Composer, node: Node) -> str | None:
    return _summed(composer, node, "Abs", node.inputs[0])


@typed_decompositions.register("ReduceSumSquare")
def reduce_sum_square(composer: Composer, node: Node) -> str | None:
    return _summed(composer, node, "Mul", node.inputs[0], node.inputs[0])


@typed_decompositions.register("ReduceL2")
def reduce_l2(composer: Composer, node: Node) -> str | None:
    x, dtype = node.inputs[0], composer.dtype(node.inputs[0])
    total = _summed(composer, node, "Mul", x, x) if is_floating(dtype) else None
    return None if total is None else composer.pointwise("Sqrt", total, dtype=dtype)


@typed_decompositions.register("ReduceMax")
@typed_decompositions.register("ReduceMin")
def reduce_flags(composer: Composer, node: Node) -> str | None:
    """Whether one of several flags is set, or all are: as bytes."""
    if composer.dtype(node.inputs[0]) != "bool":
        return None
    reduced = _reduce(composer, node, node.operator, composer.cast(node.inputs[0], "uint8"))
    return None if reduced is None else composer.cast(reduced, "bool")


@typed_decompositions.register("ReduceMean")
def reduce_mean(composer: Composer, node: Node) -> str | None:
    """Of whole numbers, cut towards zero."""
    x = node.inputs[0]
    if composer.dtype(x) not in ("int64", "int32", "uint64", "uint32"):
        return None
    wide = x if composer.dtype(x) == "uint64" else composer.cast(x, "int64")
    total = _reduce(composer, node, "ReduceSum", wide)
    if total is None:
        return None
    dtype, result = composer.dtype(wide), composer.dims(node.writes[0])
    count = math.prod(composer.dims(x)) // math.prod(result)
    share = composer.cast(composer.constant(np.array(count)), dtype)
    return composer.cast(composer.pointwise("Div", total, share, dtype=dtype), composer.dtype(x))


@decompositions.register("ReduceLogSum")
def reduce_log_sum(composer: Composer, node: Node) -> str | None:
    total = _reduce(composer, node, "ReduceSum", node.inputs[0])
    return None if total is None else composer.pointwise("Log", total)


@decompositions.register("ReduceLogSumExp")
def reduce_log_sum_exp(composer: Composer, node: Node) -> str | None:
    x = node.inputs[0]
    top = _reduce(composer, node, "ReduceMax", x)
    if top is None:
        return None
    limits = np.finfo(np.float32)
    finite = composer.pointwise("Max", top, composer.number(float(limits.min)))
    finite = composer.pointwise("Min", finite, composer.number(float(limits.max)))
    over = axes(node, len(composer.dims(x)), composer.value) or range(len(composer.dims(x)))
    kept = [1 if axis in over else extent for axis, extent in enumerate(composer.dims(x))]
    centred = composer.pointwise("Sub", x, composer.view(finite, tuple(kept)))
    total = _reduce(composer, node, "ReduceSum", composer.pointwise("Exp", centred))
    assert total is not None
    return composer.pointwise("Add", composer.pointwise("Log", total), finite)
