"""What is added to the scores of an attention: a tensor, and how it is spread over them.

Exporters write masks and position biases as additions of broadcast tensors: [b, 1, 1, keys] for
padding, [1, 1, queries, keys] for causality, [1, heads, queries, keys] for positions. Here such a
tensor is read as a kind of mask of the operator `attention`, by the steps with which it walks as
scores do: 0 where it is spread.
"""

import math
from dataclasses import dataclass
from math import prod

import numpy as np

from tilesmith.compiler.graph.access import uniform
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.expressions.scalar import call
from tilesmith.search_space.operator_parts.formula import formula_text, number, operand
from tilesmith.search_space.operators.attention import LOWEST
from tilesmith.search_space.workloads.workload import Workload, shape_text

Axis = tuple[int, int]
"""Extent, and elements that a step moves in the source."""


@dataclass(frozen=True)
class Mask:
    """A tensor and its kind; sequences and heads, whose product is the scores' batch."""

    name: str
    kind: str
    batch: int
    heads: int


def dense(dims: tuple[int, ...]) -> list[Axis]:
    """A row-major tensor's axes."""
    axes: list[Axis] = []
    step = 1
    for extent in reversed(dims):
        axes.insert(0, (extent, step))
        step *= extent
    return axes


def grouped(axes: list[Axis], wanted: tuple[int, ...]) -> list[list[Axis]] | None:
    """Axes split and grouped so that each group is one axis of the shape `wanted`."""
    left = list(axes)
    groups: list[list[Axis]] = []
    for extent in reversed(wanted):
        group: list[Axis] = []
        while extent > 1:
            if not left:
                return None
            size, step = left.pop()
            if extent % size == 0:
                group.insert(0, (size, step))
                extent //= size
            elif size % extent == 0:
                group.insert(0, (extent, step))
                left.append((size // extent, step * extent))
                extent = 1
            else:
                return None
        groups.insert(0, group)
    return groups if all(size == 1 for size, _ in left) else None


def added(node: Node) -> list[tuple[str, str, list[Axis]]]:
    """(summand, other, steps of the other over the sum) of an addition of two tensors."""
    workload = node.workload
    if workload is None or workload.operator != "elementwise" or len(node.inputs) != 2:
        return []
    if workload.text("expression") not in ("add(x0,x1)", "add(x1,x0)"):
        return []
    shape = workload.shape("shape")
    results = []
    for summand, other in ((0, 1), (1, 0)):
        whole = not workload.text(f"x{summand}") or workload.shape(f"x{summand}") == shape
        own = workload.shape(f"x{other}") if workload.text(f"x{other}") else shape
        if whole:
            axes = spread(own, shape)
            results.append((node.inputs[summand], node.inputs[other], axes))
    return results


_SELECTION = formula_text(call("where", operand(2), operand(1), call("add", *map(operand, (0, 1)))))


def selected(rewriter: Rewriter, node: Node) -> list[tuple[str, str, list[Axis]]]:
    """As `added`, of a sum that stands where the mask leaves something; elsewhere the mask does
    (`selections.AddSelections`)."""
    workload = node.workload
    if workload is None or workload.operator != "elementwise" or len(node.inputs) != 3:
        return []
    shape = workload.shape("shape")
    if workload.text("expression") != _SELECTION or workload.text("x0") not in (
        "",
        shape_text(shape),
    ):
        return []
    scores, mask, left = node.inputs
    value, flags, below = rewriter.constant(mask), rewriter.constant(left), rewriter.producer(left)
    if value is not None and flags is not None:
        exact = value.size == flags.size and np.array_equal(value.ravel() <= LOWEST, flags.ravel())
    else:
        exact = below is not None and below.inputs[0] == mask and _is_below(rewriter, below)
    own = workload.shape("x1") if workload.text("x1") else shape
    return [(scores, mask, spread(own, shape))] if exact else []


def _is_below(rewriter: Rewriter, node: Node) -> bool:
    """Whether a kernel says where its operand is the least number, or below it."""
    workload = node.workload
    if workload is None or workload.operator != "elementwise":
        return False
    expression = workload.text("expression")
    if len(node.inputs) == 2 and expression == "less_equal(x0,x1)":
        return uniform(rewriter.constant, node.inputs[1]) in (LOWEST, -math.inf)
    return expression == formula_text(call("less_equal", operand(0), number(LOWEST)))


def spread(own: tuple[int, ...], shape: tuple[int, ...]) -> list[Axis]:
    """Axes of `shape` with the steps of a tensor that broadcasts to it."""
    steps = dense((1,) * (len(shape) - len(own)) + own)
    return [
        (extent, step if size > 1 else 0) for extent, (size, step) in zip(shape, steps, strict=True)
    ]


def mask_of(name: str, axes: list[Axis], scores: Workload) -> Mask | None:
    """The mask that a tensor is, added to scores [batch, queries, keys] with these steps."""
    batch, queries, keys = (scores.integer(axis) for axis in ("batch", "m", "n"))
    groups = grouped(axes, (batch, queries, keys))
    if groups is None:
        return None
    lead, rows, columns = (merged(group) for group in groups)
    if columns not in ([(keys, 1)], []) or rows not in ([(queries, keys)], [(queries, 0)], []):
        return None
    each_row = rows != [(queries, 0)]
    size = queries * keys if each_row else keys
    return _kind(name, lead, batch, size, each_row)


def _kind(name: str, lead: list[Axis], batch: int, size: int, each_row: bool) -> Mask | None:
    """By how sequences and heads walk: all spread, sequences, heads, or each."""
    varying = [step != 0 for _, step in lead]
    if not any(varying):
        return Mask(name, "shared" if each_row else "row", 1, batch)
    if lead == [(batch, size)]:
        return Mask(name, "each", 1, batch) if each_row else Mask(name, "row", batch, 1)
    if len(lead) != 2 or sum(varying) != 1:
        return None
    (first, step), (second, other) = lead
    if varying[0] and step == size:
        return Mask(name, "full" if each_row else "row", first, second)
    return Mask(name, "heads", first, second) if each_row and other == size else None


def merged(axes: list[Axis]) -> list[Axis]:
    """Neighbouring axes that one walks as one."""
    walked: list[Axis] = []
    for extent, step in axes:
        if extent == 1:
            continue
        if walked and walked[-1][1] == step * extent:
            walked[-1] = (walked[-1][0] * extent, step)
        else:
            walked.append((extent, step))
    assert prod(e for e, _ in walked) == prod(e for e, _ in axes)
    return walked
