"""One spelling of quantised models: nodes of their own stand between bytes and numbers."""

from dataclasses import dataclass, replace

import numpy as np

from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Node, attributes_of
from tilesmith.compiler.numerics import quantised
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule


@dataclass(frozen=True)
class SpellQuantised(RulePass):
    """Quantised operators are their float32 operator between Dequantise and Quantise.

        y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz)                          before
        y = Quantise(Conv(Dequantise(x, xs, xz), DequantizeLinear(w, ws, wz)), ys, yz)     after

    Likewise QLinearMatMul; QuantizeLinear and DequantizeLinear of bytes with one constant scale
    and zero point become Quantise and Dequantise. Those of constants stay as they are.

    Contract: a graph whose constants are folded, but for dequantised ones; values as far apart as
    sums of rounded products are from rounded sums.
    """

    name = "spell-quantised"

    revisits = False

    @rule("QLinearConv", "QLinearMatMul")
    def _product(self, rewriter: Rewriter, node: Node) -> None:
        _spell_product(rewriter, node)

    @rule("QuantizeLinear")
    def _to_bytes(self, rewriter: Rewriter, node: Node) -> None:
        _spell(rewriter, node, node.writes[0])

    @rule("DequantizeLinear")
    def _to_numbers(self, rewriter: Rewriter, node: Node) -> None:
        if node.inputs[0] not in rewriter.constants:
            _spell(rewriter, node, node.inputs[0])


def _spell(rewriter: Rewriter, node: Node, coded: str) -> None:
    """QuantizeLinear or DequantizeLinear, whose bytes are `coded`."""
    numbers = node.writes[0] if coded == node.inputs[0] else node.inputs[0]
    infos = [rewriter.info(name) for name in (coded, numbers)]
    if not all(info.known and info.elements for info in infos) or infos[1].dtype != "float32":
        return
    if node.attribute("precision", 0) not in (0, 1):
        return
    coding = quantised.stated_coding(rewriter, node.inputs[1], node.input(2), infos[0].dtype)
    if coding is None:
        return
    make = quantised.quantise if coded == node.writes[0] else quantised.dequantise
    new = make(rewriter, node.inputs[0], node.writes[0], coding, node.name)
    rewriter.replace(node, new)


def _spell_product(rewriter: Rewriter, node: Node) -> None:
    """QLinearConv or QLinearMatMul, where weights are constant and fit."""
    x, xs, xz, w, ws, wz, ys, yz = node.inputs[:8]
    infos = [rewriter.info(name) for name in (x, w, node.writes[0])]
    if not all(info.known and info.elements and info.dtype in quantised.BYTES for info in infos):
        return
    before = quantised.stated_coding(rewriter, xs, xz, infos[0].dtype)
    after = quantised.stated_coding(rewriter, ys, yz, infos[2].dtype)
    values, scale, zero = (rewriter.constant(name) for name in (w, ws, wz))
    if before is None or after is None or values is None or scale is None or zero is None:
        return
    convolution = node.operator == "QLinearConv"
    axis = 0 if convolution else values.ndim - 1
    if isinstance(quantised.coded_weights(values, scale, zero, axis), str):
        return
    result, name = infos[2], node.name or node.writes[0]
    numbers = rewriter.add_tensor(x, "float32", infos[0].dims)
    weights = rewriter.add_tensor(w, "float32", infos[1].dims)
    parts = [
        quantised.dequantise(rewriter, x, numbers, before, f"{name}.numbers"),
        Node(
            "DequantizeLinear", (w, ws, wz), (weights,), f"{name}.weights",
            INTERNAL_DOMAIN, attributes_of(axis=axis),
        ),
    ]  # fmt: skip
    inputs = [numbers, weights]
    if node.input(8):
        inputs.append(_spell_bias(rewriter, node, before.scale, parts))
    product = rewriter.add_tensor(result.name, "float32", result.dims)
    operator = node.operator.removeprefix("QLinear")
    parts.append(replace(node, operator=operator, inputs=tuple(inputs), outputs=(product,)))
    parts.append(quantised.quantise(rewriter, product, result.name, after, f"{name}.bytes"))
    rewriter.replace(node, *parts)


def _spell_bias(rewriter: Rewriter, node: Node, scale: float, parts: list[Node]) -> str:
    """The bias of a QLinearConv: int32, in steps of both scales."""
    bias, weight_scales = node.inputs[8], rewriter.constants[node.inputs[4]]
    steps = (weight_scales.reshape(-1) * np.float32(scale)).astype(np.float32)
    steps = steps.reshape(()) if steps.size == 1 else steps
    name = rewriter.add_constant(bias, steps, "float32")
    numbers = rewriter.add_tensor(bias, "float32", rewriter.info(bias).dims)
    stated = attributes_of(axis=0)
    parts.append(
        Node("DequantizeLinear", (bias, name), (numbers,), numbers, INTERNAL_DOMAIN, stated)
    )
    return numbers
