"""What only moves numbers moves the bytes they came from.

A byte is a quarter of a float to read and write, and what moves bytes stands between no product of
bytes and the next: the passes behind this one then see one behind the other.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from tilesmith.compiler.graph.access import clip_bounds
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.graph.operator_traits import having
from tilesmith.compiler.numerics.quantised import (
    RANGES,
    Coding,
    coding_of,
    dequantise,
    is_dequantise,
    quantise,
)
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule

_GIVES = having("moves", "picks")
"""Operators that give numbers of their first operand: as bytes these are the same ones."""

_EARLIER = (*having("reorders"), "MaxPool", "Concat")
"""Operators that numbers become bytes before, rather than behind: no number is quantised twice."""


@dataclass(frozen=True)
class MoveBytes(RulePass):
    """Operators that only move or pick numbers do so with bytes.

        y = Quantise(MaxPool(Dequantise(q, s, z)), s, z)          before
        y = MaxPool(q)                                            after
        y = Transpose(Dequantise(q, s, z))                        before
        y = Dequantise(Transpose(q), s, z)                        after

    Numbers become bytes before they are moved, too; bytes that become numbers only to become the
    same bytes stay bytes; and bounds that the bytes keep anyhow are not looked at.

    Contract: a graph of one spelling (`spell-quantised`); values equal.
    """

    name = "move-bytes"

    def visit(self, rewriter: Rewriter, node: Node) -> None:
        super().visit(rewriter, node)
        _later(rewriter, node)

    @rule("tilesmith.Quantise")
    def _earlier(self, rewriter: Rewriter, node: Node) -> None:
        coding = coding_of(rewriter, node)
        before = rewriter.producer(node.inputs[0])
        if before is None:
            return
        if is_dequantise(before):
            _cancelled(rewriter, node, before, coding)
        elif rewriter.only_consumer(node.inputs[0]) is not node:
            return
        elif before.is_onnx("Relu", "Clip"):
            if _within(rewriter, before, coding) and not rewriter.captured(before.inputs[0]):
                inputs = (before.inputs[0], *node.inputs[1:])
                rewriter.replace((before, node), replace(node, inputs=inputs))
        elif before.is_onnx(*_EARLIER):
            _hoist(rewriter, node, before, coding)


# -- bytes become numbers later -------------------------------------------------------------------
def _later(rewriter: Rewriter, node: Node) -> None:
    """Move the bytes of what `node` moves; what it gives becomes numbers behind it."""
    if node.domain or node.workload is not None or not rewriter.shapes_known(node):
        return
    if node.is_onnx("Relu", "Clip"):
        _bounded_already(rewriter, node)
        return
    sources = _moved_operands(rewriter, node)
    if not sources:
        return
    befores = [rewriter.producer(name) for name in sources]
    codings = {coding_of(rewriter, n) for n in befores if n is not None and is_dequantise(n)}
    if len(codings) != 1 or not all(map(is_dequantise, befores)):
        return
    (coding,) = codings
    renamed = {name: n.inputs[0] for name, n in zip(sources, befores, strict=True) if n}
    inputs = [renamed.get(name, name) for name in node.inputs]
    if node.is_onnx("Pad") and not _pad_with_zero(rewriter, node, inputs, coding):
        return
    outputs: list[str] = []
    after: list[Node] = []
    for name in node.outputs:
        if not name:
            outputs.append(name)
            continue
        moved = rewriter.add_tensor(name, coding.dtype, rewriter.info(name).dims)
        outputs.append(moved)
        after.append(dequantise(rewriter, moved, name, coding, f"{node.name}.numbers"))
    rewriter.replace(node, replace(node, inputs=tuple(inputs), outputs=tuple(outputs)), *after)


def _moved_operands(rewriter: Rewriter, node: Node) -> list[str]:
    """The operands whose numbers are given; empty where they are not given as they are."""
    if node.operator in _GIVES:
        single = node.operator != "MaxPool" or len(node.writes) == 1
        return [node.inputs[0]] if single else []
    if node.operator == "Concat":
        return list(dict.fromkeys(node.inputs))
    if node.operator in having("samples"):
        nearest = node.attribute("mode", "nearest") == "nearest"
        inside = node.attribute("coordinate_transformation_mode", "") != "tf_crop_and_resize"
        return [node.inputs[0]] if nearest and inside else []
    if node.operator == "Pad":
        return [node.inputs[0]] if rewriter.graph.opset >= 11 else []
    return []


def _pad_with_zero(rewriter: Rewriter, node: Node, inputs: list[str], coding: Coding) -> bool:
    """Let a Pad write the byte of the number that it writes; False where that is no byte."""
    if node.attribute("mode", "constant") != "constant":
        return True
    value = rewriter.constant(node.input(2)) if node.input(2) else np.zeros(())
    if value is None or value.size != 1:
        return False
    number = float(value.reshape(-1)[0])
    byte = coding.byte(number)
    if (byte - coding.zero) * coding.scale != number:
        return False
    fill = rewriter.add_constant(f"{node.writes[0]}.fill", np.array(byte, coding.dtype),
                                 coding.dtype)  # fmt: skip
    inputs[2:3] = [fill]
    return True


def _bounded_already(rewriter: Rewriter, node: Node) -> None:
    """Drop bounds that every number of some bytes is within."""
    before = rewriter.producer(node.inputs[0])
    if before is None or not is_dequantise(before):
        return
    if _within(rewriter, node, coding_of(rewriter, before)):
        rewriter.bypass(node, node.inputs[0])


def bounds_of(rewriter: Rewriter, node: Node) -> tuple[float, float] | None:
    """Bounds of a Relu or Clip; None where they vary."""
    if node.is_onnx("Relu"):
        return 0.0, math.inf
    return clip_bounds(node, rewriter.constant)


def _within(rewriter: Rewriter, node: Node, coding: Coding) -> bool:
    """Whether no byte stands for a number outside a Relu's or Clip's bounds."""
    bounds = bounds_of(rewriter, node)
    if bounds is None:
        return False
    low, high = RANGES[coding.dtype]
    return coding.byte(bounds[0]) == low and coding.byte(bounds[1]) == high


# -- numbers become bytes earlier -----------------------------------------------------------------


def _cancelled(rewriter: Rewriter, node: Node, before: Node, coding: Coding) -> None:
    """Bytes that become the same bytes again."""
    if coding_of(rewriter, before) == coding:
        rewriter.bypass(node, before.inputs[0])


def _hoist(rewriter: Rewriter, node: Node, before: Node, coding: Coding) -> None:
    if not rewriter.shapes_known(before) or len(before.writes) != 1:
        return
    if any(rewriter.info(name).dtype != "float32" for name in before.writes):
        return
    count = len(before.inputs) if before.is_onnx("Concat") else 1
    quantised: dict[str, str] = {}
    parts: list[Node] = []
    for name in before.inputs[:count]:
        if name in quantised:
            continue
        if name in rewriter.constants or rewriter.captured(name):
            return
        quantised[name] = rewriter.add_tensor(name, coding.dtype, rewriter.info(name).dims)
        parts.append(quantise(rewriter, name, quantised[name], coding, f"{node.name}.earlier"))
    inputs = tuple(quantised.get(name, name) for name in before.inputs)
    moved = replace(before, inputs=inputs, outputs=node.outputs)
    rewriter.replace((before, node), *parts, moved)
