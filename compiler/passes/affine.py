"""Scales and shifts by constants: joined, and taken into weights, they cost nothing at run time.

What cancels keeps its order: `(x - c) k` is small where x is near c, and `x k - c k` is the
rounding of c k there. So a scale passes a shift only where the shifted value was rounded before the
shift, as a product's is, and the shift is small (`LARGEST_SHIFT`); everything else stays as it is
written.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.numerics.rounding import (
    in_range,
    is_exact_sum,
    is_ordinary,
    is_power_of_two,
    is_small_shift,
)
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rounds import Rounds
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule

Array = NDArray[Any]


@dataclass(frozen=True)
class FoldAffine(RulePass):
    """Scales and shifts by constants move together, and into the weights before them.

        y = Mul(Add(x, b), a)            before: x is Mul(z, c) or MatMul(z, w)
        y = Add(Mul(x, a), a b)          after: scales first, so that they meet
        y = Mul(Mul(x, a), c)            before
        y = Mul(x, a c)                  after; likewise for Add, where the sum is exact
        y = Mul(Conv(x, w, b), a)        before: a varies along the output channels at most
        y = Conv(x, a w, a b)            after; Add joins the bias; likewise for Gemm and MatMul

    Contract: any graph in; every intermediate value had one reader; products are taken in double
    precision. Results differ by roundings of what was rounded before, and of shifts that are at
    most `LARGEST_SHIFT`; no value becomes infinite, or nothing, that was not
    (`rounding.is_ordinary`).
    """

    name = "fold-affine"

    def run(self, graph: Graph) -> Graph:
        rounds = Rounds(f"the pass {self.name} of '{graph.title}'", len(graph.nodes) + 1)
        while (after := super().run(graph)) is not graph:
            rounds.another()
            graph = after
        return graph

    @rule("Mul", "Add")
    def _fold(self, rewriter: Rewriter, node: Node) -> None:
        split = constant_operand(rewriter, node)
        if split is None:
            return
        source, value = split
        before = rewriter.producer(source)
        if rewriter.only_consumer(source) is not node or rewriter.captured(source):
            return
        if before is not None and before.is_onnx("Mul", "Add"):
            _merge(rewriter, before, node, value)
        elif before is not None and before.is_onnx("Conv", "ConvTranspose", "Gemm", "MatMul"):
            _into_weights(rewriter, before, node, value)


def constant_operand(rewriter: Rewriter, node: Node) -> tuple[str, Array] | None:
    """(variable input, constant) of a float32 Mul or Add that keeps the variable's shape."""
    if len(node.inputs) != 2:
        return None
    first, second = node.inputs
    constants = [rewriter.constant(first), rewriter.constant(second)]
    if (constants[0] is None) == (constants[1] is None):
        return None
    source, value = (second, constants[0]) if constants[1] is None else (first, constants[1])
    info, result = rewriter.info(source), rewriter.info(node.writes[0])
    if not info.known or info.dtype != "float32" or info.shape != result.shape or value is None:
        return None
    return source, value


def _merge(rewriter: Rewriter, before: Node, node: Node, value: Array) -> None:
    split = constant_operand(rewriter, before)
    if split is None:
        return
    source, first = split
    name = before.inputs[1] if before.inputs[0] == source else before.inputs[0]
    if before.operator == node.operator:
        merged, alike = _run(rewriter, before, node, first)
        if len(alike) > 1:
            inputs = (source, _add(rewriter, name, merged))
            rewriter.replace(alike, replace(alike[-1], inputs=inputs))
    elif node.operator == "Mul" and _distributes(rewriter, source, first, value):
        factor = _add(rewriter, name, value)
        shift = _add(rewriter, name, first.astype(np.float64) * value)
        old = rewriter.info(before.outputs[0])  # its values are another's name from now on
        middle = rewriter.add_tensor(old.name, old.dtype, old.dims)
        rewriter.replace(
            (before, node),
            replace(
                before,
                operator="Mul",
                inputs=(source, factor),
                outputs=(middle,),
                name=node.name,
            ),
            replace(node, operator="Add", inputs=(middle, shift), name=before.name),
        )


def _run(rewriter: Rewriter, before: Node, node: Node, first: Array) -> tuple[Array, list[Node]]:
    """The constants of a row of one operator as one, from the first on, and the nodes that it is
    the constant of. They are replaced at once: one by one, each would copy all sources before."""
    is_harmless, joined = (
        (is_ordinary, np.multiply) if node.operator == "Mul" else (is_exact_sum, np.add)
    )
    merged, alike, following = first, [before], node
    while following.is_onnx(node.operator) and not rewriter.captured(alike[-1].writes[0]):
        split = constant_operand(rewriter, following)
        if split is None or split[0] != alike[-1].writes[0] or not is_harmless(merged, split[1]):
            break
        merged = joined(merged.astype(np.float64), split[1]).astype(np.float32)
        alike.append(following)
        reader = rewriter.only_consumer(following.writes[0])
        if reader is None:
            break
        following = reader
    return merged, alike


def _distributes(rewriter: Rewriter, source: str, shift: Array, factor: Array) -> bool:
    """Whether a scale may pass a shift: what is shifted was rounded before, so that where it
    cancels the roundings of shift and scale are no more than those that are there."""
    producer = rewriter.producer(source)
    if producer is None or not is_small_shift(shift, factor):
        return False
    if producer.is_onnx("MatMul"):
        weight = rewriter.constant(producer.inputs[1])
        return weight is not None and weight.ndim >= 2 and weight.shape[-2] > 1
    scaled = constant_operand(rewriter, producer) if producer.is_onnx("Mul") else None
    return scaled is not None and not bool(np.any(is_power_of_two(scaled[1])))


def _add(rewriter: Rewriter, base: str, value: Array) -> str:
    return rewriter.add_constant(base, np.array(value, dtype=np.float32), "float32")


def per_channel(value: Array, shape: tuple[int, ...], axis: int) -> Array | None:
    """`value`, broadcast to `shape`, as one number a channel; None if it varies elsewhere."""
    padded = value.reshape((1,) * (len(shape) - value.ndim) + value.shape)
    channels = shape[axis]
    if padded.size == 1:
        return np.full(channels, padded.reshape(-1)[0], dtype=np.float64)
    if padded.size == channels == padded.shape[axis]:
        return padded.reshape(-1).astype(np.float64)
    return None


def _into_weights(rewriter: Rewriter, before: Node, node: Node, value: Array) -> None:
    shape = rewriter.info(node.writes[0]).dims
    convolution = before.operator in ("Conv", "ConvTranspose")
    weight = rewriter.constant(before.inputs[1])
    if weight is None:
        return
    if before.operator == "MatMul" and (node.operator == "Add" or weight.ndim < 2):
        return  # a product has no bias of its own (lowering fuses the Add), a vector no channels
    bias_name = before.input(2)
    bias = rewriter.constant(bias_name) if bias_name else None
    channels = per_channel(value, shape, 1 if convolution else len(shape) - 1)
    if channels is None or (bias_name and bias is None):
        return
    if before.operator == "Gemm" and bias is not None:
        bias = per_channel(bias * float(before.attribute("beta", 1.0)), shape, 1)
        if bias is None:
            return
    offset = np.zeros(len(channels)) if bias is None else bias.astype(np.float64)
    inputs = [before.inputs[0], before.inputs[1]]
    if node.operator == "Mul":
        scaled = _scale_weight(before, weight, channels)
        if not _scales_harmlessly(before, weight, scaled, offset, channels):
            return
        inputs[1] = _add(rewriter, inputs[1], scaled)
        offset = offset * channels
    elif not np.any(offset) or (is_small_shift(offset) and is_small_shift(channels)):
        offset = offset + channels
    else:
        return
    if bias_name or node.operator == "Add":
        inputs.append(_add(rewriter, bias_name or inputs[1], offset))
    attributes = tuple(pair for pair in before.attributes if pair[0] != "beta")
    rewriter.replace(
        (before, node),
        replace(before, inputs=tuple(inputs), outputs=node.outputs, attributes=attributes),
    )


def _scales_harmlessly(
    before: Node, weight: Array, scaled: Array, offset: Array, channels: Array
) -> bool:
    """Whether a product with scaled weights and bias rounds as the scaled product does: no weight
    leaves the range of its type, and what the bias cancels are sums, which were rounded. A sum of
    one product is a formula: its bias stays before the scale."""
    fan_in = weight.size // len(channels)
    if before.operator == "ConvTranspose":
        fan_in = weight.shape[0] // int(before.attribute("group", 1))
    single = fan_in == 1 and not np.all(is_power_of_two(channels)) and bool(np.any(offset))
    return (
        is_ordinary(channels)
        and in_range(weight, scaled)
        and not single
        and is_small_shift(offset, channels)
    )


def _scale_weight(before: Node, weight: Array, channels: Array) -> Array:
    """The weight with each output channel scaled."""
    wide = weight.astype(np.float64)
    if before.operator == "Conv" or (before.operator == "Gemm" and before.attribute("transB", 0)):
        return wide * channels.reshape((-1,) + (1,) * (weight.ndim - 1))
    if before.operator == "ConvTranspose":
        group = int(before.attribute("group", 1))
        grouped = wide.reshape(group, -1, *weight.shape[1:])
        factors = channels.reshape((group, 1, weight.shape[1]) + (1,) * (weight.ndim - 2))
        return (grouped * factors).reshape(weight.shape)
    return wide * channels
