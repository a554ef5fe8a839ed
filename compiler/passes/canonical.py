"""Canonicalisation: later passes then know one form of each thing, not the exporters' many."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.access import integers, permutation, uniform
from tilesmith.compiler.graph.graph import CHECK, INTERNAL_DOMAIN, Node, attributes_of, view
from tilesmith.compiler.graph.operator_traits import having
from tilesmith.compiler.numerics.rounding import is_power_of_two
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule

_OF_MANY = ("Sum", "Max", "Min", "Mean")


@dataclass(frozen=True)
class Canonicalise(RulePass):
    """Operators that compute nothing at inference disappear, variants become one form.

        y = Dropout(x); z = Sum(y, b, c)          before
        t = Add(x, b); z = Add(t, c)              after

    Identity, Dropout, casts to the same dtype, padding by nothing, concatenation of one tensor,
    slices of everything, `x * 1` and `x + 0` are dropped; a Softmax of before opset 13, which
    flattened what follows its axis, becomes today's between views; two transposes become one;
    `Sum`/`Max`/`Min`/`Mean` of many become binary; `x - c` and `x / c` with a floating constant
    become `x + -c` and `x * (1/c)`.

    Contract: any graph in; same values out, up to one rounding of `1/c`, which no step function
    reads.
    """

    name = "canonicalise"

    def visit(self, rewriter: Rewriter, node: Node) -> None:
        if node.kind != "host" or not node.input(0) or not node.writes:
            return
        if not _does_nothing(rewriter, node) or len(node.writes) != 1:
            super().visit(rewriter, node)
            return
        source = _passed_on(rewriter, node)
        if not rewriter.bypass(node, source) and node.is_onnx(*_WITHOUT_KERNEL):
            rewriter.replace(node, Node("Identity", (source,), node.writes, node.name))

    @rule(*_OF_MANY)
    def _make_binary(self, rewriter: Rewriter, node: Node) -> None:
        """Sum(a, b, c) -> Add(Add(a, b), c); a Mean is a scaled sum."""
        operator = "Add" if node.operator in ("Sum", "Mean") else node.operator
        if len(node.inputs) == 2 and node.operator != "Mean":
            if node.operator == "Sum":
                rewriter.replace(node, replace(node, operator=operator))
            return
        result = rewriter.info(node.writes[0])
        if result.dtype != "float32" or len(node.inputs) < 2 or not rewriter.shapes_known(node):
            return
        shapes = [rewriter.info(name).dims for name in node.inputs]
        new: list[Node] = []
        running, shape = node.inputs[0], shapes[0]
        for step, name in enumerate(node.inputs[1:], start=1):
            shape = np.broadcast_shapes(shape, shapes[step])
            last = step == len(node.inputs) - 1 and node.operator != "Mean"
            target = node.writes[0] if last else rewriter.add_tensor(running, result.dtype, shape)
            new.append(Node(operator, (running, name), (target,), f"{node.name}.{step}"))
            running = target
        if node.operator == "Mean":
            share = rewriter.add_constant(
                "share", np.array(1 / len(node.inputs), np.float32), "float32"
            )
            new.append(Node("Mul", (running, share), node.outputs, node.name))
        rewriter.replace(node, *new)

    @rule("Softmax", "LogSoftmax")
    def _modern_softmax(self, rewriter: Rewriter, node: Node) -> None:
        """Before opset 13: over all axes from `axis` (default 1) on, taken as one."""
        info = rewriter.info(node.inputs[0])
        if not info.known or rewriter.graph.opset >= 13:
            return
        axis = int(node.attribute("axis", 1)) % max(1, len(info.dims))
        flat = (math.prod(info.dims[:axis]), math.prod(info.dims[axis:]))
        before = rewriter.add_tensor(node.inputs[0], info.dtype, flat)
        after = rewriter.add_tensor(node.writes[0], info.dtype, flat)
        attributes = attributes_of(axis=-1)
        rewriter.replace(
            node,
            view(node.inputs[0], before),
            Node(node.operator, (before,), (after,), node.name, INTERNAL_DOMAIN, attributes),
            view(after, node.writes[0]),
        )

    @rule("Transpose")
    def _compose_transposes(self, rewriter: Rewriter, node: Node) -> None:
        """Transpose(Transpose(x, p), q) -> Transpose(x, p[q])."""
        before = rewriter.producer(node.inputs[0], "Transpose")
        if before is None:
            return
        info = rewriter.info(before.inputs[0])
        if not info.known:
            return
        first, second = (permutation(part, len(info.dims)) for part in (before, node))
        order = attributes_of(perm=tuple(first[axis] for axis in second))
        rewriter.replace(node, replace(node, inputs=before.inputs, attributes=order))

    @rule("Sub", "Div")
    def _invert_constant(self, rewriter: Rewriter, node: Node) -> None:
        """x - c -> x + (-c); x / c -> x * (1/c), unless a step tells 41 (1/41) from 1."""
        value = rewriter.constant(node.inputs[1])
        if value is None or value.dtype != np.float32 or node.inputs[0] in rewriter.constants:
            return
        if node.operator == "Div" and not (
            _has_reciprocals(value)
            and (np.all(is_power_of_two(value)) or not _reaches_step(rewriter, node.writes[0]))
        ):
            return
        inverse = -value if node.operator == "Sub" else (1.0 / value.astype(np.float64))
        constant = rewriter.add_constant(
            node.inputs[1], np.asarray(inverse, dtype=np.float32), "float32"
        )
        operator = "Add" if node.operator == "Sub" else "Mul"
        rewriter.replace(node, replace(node, operator=operator, inputs=(node.inputs[0], constant)))


_REDUCTIONS = having("folds")

_WITHOUT_KERNEL = (*_REDUCTIONS, *_OF_MANY, "Clip", "Dropout")
"""What does nothing between an input and an output is handed on, where no kernel copies it."""


def _does_nothing(rewriter: Rewriter, node: Node) -> bool:
    source, result = rewriter.info(_passed_on(rewriter, node)), rewriter.info(node.writes[0])
    if node.is_onnx("Identity"):
        return True
    if node.is_onnx("Dropout"):
        training = rewriter.constant(node.input(2)) if node.input(2) else np.array(False)
        return training is not None and not bool(training)
    if not source.known or source.shape != result.shape or source.dtype != result.dtype:
        return False
    if node.operator == CHECK and node.domain == INTERNAL_DOMAIN:
        return True  # another pass has found out what was only declared
    if node.is_onnx("Cast", "CastLike", "Expand", "Tile"):
        return True
    if node.is_onnx("Clip"):
        return len(node.reads) == 1 and not {"min", "max"} & dict(node.attributes).keys()
    if node.is_onnx(*_REDUCTIONS):
        noop = bool(node.attribute("noop_with_empty_axes", 0))
        return noop and integers(node, "axes", 1, rewriter.constant) == ()
    if node.is_onnx("Slice"):
        return _in_order(rewriter, node)
    if node.is_onnx("Pad"):
        sides = integers(node, "pads", 1, rewriter.constant)
        return sides is not None and not any(sides)  # as much cut off as added shifts
    if node.is_onnx("Concat", *_OF_MANY):
        return len(node.inputs) == 1
    if node.is_onnx("Mul", "Add"):
        other = _other_constant(rewriter, node)
        return other is not None and other == (1.0 if node.operator == "Mul" else 0.0)
    return False


def _in_order(rewriter: Rewriter, node: Node) -> bool:
    """Whether a Slice of everything keeps its order: steps backwards over an axis reverse it."""
    steps = integers(node, "", 4, rewriter.constant)
    axes = integers(node, "axes", 3, rewriter.constant)
    if steps is None or axes is None:
        return False
    dims = rewriter.info(node.inputs[0]).dims
    order = axes or range(len(steps))
    return all(s > 0 or dims[axis] == 1 for s, axis in zip(steps, order, strict=False))


def _passed_on(rewriter: Rewriter, node: Node) -> str:
    """The input that a node doing nothing passes on."""
    if node.is_onnx("Mul", "Add") and node.inputs[0] in rewriter.constants:
        return node.inputs[1]
    return node.inputs[0]


def _other_constant(rewriter: Rewriter, node: Node) -> float | None:
    other = node.inputs[1] if _passed_on(rewriter, node) == node.inputs[0] else node.inputs[0]
    return uniform(rewriter.constant, other)


def _has_reciprocals(value: NDArray[Any]) -> bool:
    """Whether single precision holds what numbers are the reciprocals of, in all its digits."""
    limits, sizes = np.finfo(np.float32), np.abs(value.astype(np.float64))
    return bool(np.all((sizes <= 1 / float(limits.tiny)) & (sizes * float(limits.max) >= 1)))


def _reaches_step(rewriter: Rewriter, name: str, depth: int = 4) -> bool:
    """Whether one rounding of a tensor may be a whole number of what is soon made of it."""
    for reader in rewriter.consumers(name):
        if reader.is_onnx(*having("step")):
            return True
        if reader.is_onnx("Cast", "CastLike"):
            if rewriter.info(reader.writes[0]).dtype not in ("float32", "float64"):
                return True
        elif not reader.is_onnx(*having("smooth")):
            continue
        if depth and _reaches_step(rewriter, reader.writes[0], depth - 1):
            return True
    return False
