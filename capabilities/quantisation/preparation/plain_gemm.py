"""A Gemm with constant weights becomes a product and one number for each of its columns.

    y = alpha x w + beta c  =  x (alpha w) + beta c

ONNX lets `c` broadcast from anywhere, a number for each row included, and be computed at run time;
biases of quantised layers are one number for each output channel. Invariant of what comes out: such
a Gemm has no factors, and its bias, if it has one, is a constant of as many numbers as there are
columns; any other is added behind it.
"""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

Constants = dict[str, NDArray[Any]]


def with_plain_gemms(graph: onnx.GraphProto, constants: Constants) -> None:
    """Make every Gemm with constant weights a plain one; changes the graph and the constants."""
    taken = {name for node in graph.node for name in (node.name, *node.input, *node.output)}
    taken |= constants.keys()
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        if node.op_type != "Gemm" or node.domain or len(node.input) < 2:
            continue
        weights = constants.get(node.input[1])
        if weights is not None and weights.dtype == np.float32 and weights.ndim == 2:
            nodes[-1:] = _Plain(node, constants, taken).nodes()
    del graph.node[:]
    graph.node.extend(nodes)


class _Plain:
    """One Gemm."""

    def __init__(self, node: onnx.NodeProto, constants: Constants, taken: set[str]) -> None:
        self._node, self._constants, self._taken = node, constants, taken
        stated = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self._alpha = np.float32(stated.get("alpha", 1.0))
        self._beta = np.float32(stated.get("beta", 1.0))
        self._columns = constants[node.input[1]].shape[0 if stated.get("transB", 0) else 1]

    def nodes(self) -> list[onnx.NodeProto]:
        """What stands for it, its own node among them."""
        node = self._node
        if self._alpha != 1:
            node.input[1] = self._constant("weight", self._constants[node.input[1]] * self._alpha)
        own = [a for a in node.attribute if a.name not in ("alpha", "beta")]
        del node.attribute[:]
        node.attribute.extend(own)
        bias = node.input.pop() if len(node.input) > 2 else ""
        if not bias:
            return [node]
        value = self._constants.get(bias)
        if value is None:
            return self._added_behind(bias)
        if self._beta == 1 and value.shape == (self._columns,):
            node.input.append(bias)
            return [node]
        value = value * self._beta
        if value.size == 1 or (value.size == self._columns == value.shape[-1]):
            value = np.broadcast_to(value.reshape(-1), (self._columns,))
            node.input.append(self._constant("bias", value))
            return [node]
        return self._added_behind(self._constant("bias", value), scaled=True)

    def _added_behind(self, bias: str, scaled: bool = False) -> list[onnx.NodeProto]:
        """The product and a sum with a bias; `scaled`: it has been multiplied by beta."""
        node, before = self._node, []
        if self._beta != 1 and not scaled:
            factor = self._constant("beta", np.array(self._beta))
            name = self._unused("scaled_bias")
            before.append(helper.make_node("Mul", [bias, factor], [name], self._unused("Mul")))
            bias = name
        result, node.output[0] = node.output[0], self._unused("product")
        total = helper.make_node("Add", [node.output[0], bias], [result], self._unused("Add"))
        return [node, *before, total]

    def _constant(self, what: str, value: NDArray[Any]) -> str:
        name = self._unused(what)
        self._constants[name] = np.ascontiguousarray(value, np.float32)
        return name

    def _unused(self, what: str) -> str:
        name = f"{self._node.name}.{what}"
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name
