"""Norms and logarithms of sums: ReduceL1, ReduceL2, ReduceSumSquare, ReduceLogSum, ReduceLogSumExp.

ReduceL2(x) = sqrt(sum(x * x))
ReduceLogSumExp(x) = log(sum(exp(x - m))) + m  with m = max(x), so that nothing overflows
"""

from __future__ import annotations

import numpy as np

from tilesmith.compiler.decomposition import Composer, decompositions
from tilesmith.compiler.graph import Node
from tilesmith.compiler.onnx.access import axes


def _reduce(composer: Composer, node: Node, operator: str, source: str) -> str | None:
    """A reduction of `source` over the node's axes; None if they are not constant, or empty."""
    shape = composer.dims(source)
    over = axes(node, len(shape), composer.value)
    if over is None or (not over and node.attribute("noop_with_empty_axes", 0)):
        return None
    over = over or tuple(range(len(shape)))
    keep = int(node.attribute("keepdims", 1))
    kept = [1 if axis in over else extent for axis, extent in enumerate(shape)]
    if not keep:
        kept = [extent for axis, extent in enumerate(shape) if axis not in over]
    if composer.opset < (13 if operator == "ReduceSum" else 18):
        return composer.apply(operator, source, shape=tuple(kept), axes=over, keepdims=keep)
    where = composer.constant(np.array(over, np.int64))
    return composer.apply(operator, source, where, shape=tuple(kept), keepdims=keep)


@decompositions.register("ReduceL1")
def reduce_l1(composer: Composer, node: Node) -> str | None:
    return _reduce(composer, node, "ReduceSum", composer.pointwise("Abs", node.inputs[0]))


@decompositions.register("ReduceSumSquare")
def reduce_sum_square(composer: Composer, node: Node) -> str | None:
    x = node.inputs[0]
    return _reduce(composer, node, "ReduceSum", composer.pointwise("Mul", x, x))


@decompositions.register("ReduceL2")
def reduce_l2(composer: Composer, node: Node) -> str | None:
    total = reduce_sum_square(composer, node)
    return None if total is None else composer.pointwise("Sqrt", total)


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
    finite = composer.pointwise("Max", top, composer.number(float(np.finfo(np.float32).min)))
    over = axes(node, len(composer.dims(x)), composer.value) or range(len(composer.dims(x)))
    kept = [1 if axis in over else extent for axis, extent in enumerate(composer.dims(x))]
    centred = composer.pointwise("Sub", x, composer.view(finite, tuple(kept)))
    total = _reduce(composer, node, "ReduceSum", composer.pointwise("Exp", centred))
    assert total is not None
    return composer.pointwise("Add", composer.pointwise("Log", total), finite)
