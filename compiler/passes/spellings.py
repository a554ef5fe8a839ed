"""Operators that frameworks without them write in smaller ones: one spelling for later passes."""

import math
from dataclasses import dataclass, replace

import numpy as np

from tilesmith.compiler.graph.access import axes
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.patterns import Patterns
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule

_QUOTIENTS = Patterns(("1 / (1 + Exp(-x))", "Sigmoid"))


@dataclass(frozen=True)
class UnifySpellings(RulePass):
    """What is written in smaller operators gets the operator that ONNX has for it.

        s = Max(x, -inf); m = Div(ReduceSum(s, [1]), 8); y = Max(m, 0)      before: x is 4 x 8
        m = ReduceMean(x, [1]); y = Relu(m)                                 after

    Likewise Clip of Min and Max, Sigmoid of 1 / (1 + exp(-x)), and a product in which a row's
    factor is multiplied last becomes one in which it is first: x * (1/d * g) as (x * 1/d) * g.

    Contract: any graph in; float32 only; same values, up to roundings; dead code is left behind.
    """

    name = "unify-spellings"

    def applies(self, rewriter: Rewriter, node: Node) -> bool:
        return rewriter.is_float(node) and rewriter.shapes_known(node)

    @rule("Max")
    def _maximum(self, rewriter: Rewriter, node: Node) -> None:
        operands = _beside(rewriter, node)
        if operands is None:
            return
        x, number = operands
        if number == -math.inf:
            rewriter.bypass(node, x)
        elif number == 0.0:
            rewriter.replace(node, Node("Relu", (x,), node.outputs, node.name))
        else:
            _clipped(rewriter, node, x, number)

    @rule("Min")
    def _minimum(self, rewriter: Rewriter, node: Node) -> None:
        operands = _beside(rewriter, node)
        if operands is None:
            return
        x, number = operands
        if number == math.inf:
            rewriter.bypass(node, x)
        else:
            _clipped(rewriter, node, x, number)

    @rule("Div", "Reciprocal")
    def _quotient(self, rewriter: Rewriter, node: Node) -> None:
        for operator, match in _QUOTIENTS.matches(rewriter, node):
            inputs = (match.tensors["x"],)
            if rewriter.info(inputs[0]).shape == rewriter.info(node.writes[0]).shape:
                rewriter.replace(node, Node(operator, inputs, node.outputs, node.name))
                return
        divisor = _number(rewriter, node.inputs[-1])
        if divisor and node.operator == "Div":
            _mean(rewriter, node, node.inputs[0], divisor)

    @rule("Mul")
    def _product(self, rewriter: Rewriter, node: Node) -> None:
        share = _beside(rewriter, node)
        count = _count(share[1]) if share is not None else None
        if share is not None and count is not None:
            _mean(rewriter, node, share[0], count)
            return
        for x, factor in (node.inputs, node.inputs[::-1]):
            scaled = rewriter.producer(factor, "Mul")
            if (
                scaled is None
                or rewriter.only_consumer(factor) is not node
                or rewriter.captured(factor)
            ):
                continue
            for inverse, scale in (scaled.inputs, scaled.inputs[::-1]):
                if _is_of_rows(rewriter, inverse, x, scale):
                    info = rewriter.info(x)
                    first = rewriter.add_tensor(node.writes[0], info.dtype, info.dims)
                    rewriter.replace(
                        (scaled, node),
                        Node("Mul", (x, inverse), (first,), scaled.name),
                        Node("Mul", (first, scale), node.outputs, node.name),
                    )
                    return


def _number(rewriter: Rewriter, name: str) -> float | None:
    """The one number of a constant that keeps the other operand's shape, infinite ones too."""
    array = rewriter.constant(name)
    if array is None or array.size != 1 or array.dtype != np.float32:
        return None
    return float(array.reshape(-1)[0])


def _beside(rewriter: Rewriter, node: Node) -> tuple[str, float] | None:
    """(x, number) of a binary operator on both, whichever comes first, that keeps x's shape."""
    if len(node.inputs) != 2:
        return None
    for x, other in (node.inputs, node.inputs[::-1]):
        number = _number(rewriter, other)
        if number is not None and rewriter.info(x).shape == rewriter.info(node.writes[0]).shape:
            return x, number
    return None


def _clipped(rewriter: Rewriter, node: Node, x: str, bound: float) -> None:
    """Min(Max(x, low), high), and the other way round, where low is not above high."""
    before = rewriter.producer(x)
    if before is None or rewriter.only_consumer(x) is not node or rewriter.captured(x):
        return
    if before.is_onnx("Relu"):
        source, other = before.inputs[0], 0.0
    elif before.is_onnx("Min" if node.operator == "Max" else "Max"):
        inner = _beside(rewriter, before)
        if inner is None:
            return
        source, other = inner
    else:
        return
    if before.is_onnx("Relu") and node.operator == "Max":
        return
    low, high = (bound, other) if node.operator == "Max" else (other, bound)
    if low <= high:
        bounds = (
            rewriter.add_constant(f"{node.writes[0]}.bound", np.array(n, np.float32), "float32")
            for n in (low, high)
        )
        rewriter.replace((before, node), Node("Clip", (source, *bounds), node.outputs, node.name))


# -- quotients ----------------------------------------------------------------------------------


def _mean(rewriter: Rewriter, node: Node, total: str, divisor: float) -> None:
    """A sum over axes, divided by how many were summed."""
    views: list[Node] = []
    reduction = rewriter.producer(total)
    if reduction is not None and reduction.is_onnx("Reshape"):
        views.append(reduction)
        reduction = rewriter.producer(reduction.inputs[0])
    if reduction is None or not reduction.is_onnx("ReduceSum"):
        return
    source, summed = rewriter.info(reduction.inputs[0]), rewriter.info(reduction.writes[0])
    over = axes(reduction, len(source.dims), rewriter.constant) if source.known else None
    if not over or not summed.known or rewriter.info(total).shape != rewriter.info(
        node.writes[0]
    ).shape:  # fmt: skip
        return
    if math.prod(source.dims[axis] for axis in over) != divisor:
        return
    if any(rewriter.only_consumer(name) is None for name in (total, reduction.writes[0])):
        return
    averaged = replace(reduction, operator="ReduceMean")
    if rewriter.graph.opset < _AXES_ARE_AN_INPUT:
        kept = dict(reduction.attributes) | {"axes": over}
        averaged = replace(
            averaged, inputs=reduction.inputs[:1], attributes=tuple(sorted(kept.items()))
        )
    if not views:
        rewriter.replace((reduction, node), replace(averaged, outputs=node.outputs))
        return
    mean = rewriter.add_tensor(f"{reduction.writes[0]}.mean", summed.dtype, summed.dims)
    rewriter.replace(
        (reduction, *views, node),
        replace(averaged, outputs=(mean,)),
        replace(views[0], inputs=(mean, *views[0].inputs[1:]), outputs=node.outputs),
    )


_AXES_ARE_AN_INPUT = 18
"""Opset from which ReduceMean takes its axes as ReduceSum does since 13."""


# -- products -----------------------------------------------------------------------------------


def _count(share: float) -> float | None:
    """The whole number that `share` is one part of; None if there is none, as of what is no
    number or whose inverse is too large for one."""
    inverse = 1 / share if share else math.inf
    if not math.isfinite(inverse) or not math.isclose(round(inverse), inverse):
        return None
    return float(round(inverse))


def _is_of_rows(rewriter: Rewriter, inverse: str, x: str, scale: str) -> bool:
    """Whether `inverse` is one number of each row of x, as an inverted deviation is, and `scale`
    one of each column."""
    node = rewriter.producer(inverse, "Reciprocal")
    if node is None:
        return False
    dims, width = rewriter.info(x).dims, rewriter.info(x).dims[-1:]
    return rewriter.info(inverse).shape == (*dims[:-1], 1) and rewriter.info(scale).shape == width
