"""A quantised model without its rounding: what R of int8 is taken against.

    QuantizeLinear -> DequantizeLinear        becomes        Identity

Weights keep the values that were chosen for them, so that what is left between both is the rounding
of activations, which an implementation has a part in. Tensors of bytes are compared as the numbers
they stand for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph import Graph, Node

Array = NDArray[Any]


@dataclass(frozen=True)
class Scale:
    """What bytes stand for: (byte - zero) * scale, along an axis.

    Attributes:
        source: the tensor that was quantised.
    """

    source: str
    scale: Array
    zero: Array
    axis: int

    def numbers(self, values: Array) -> Array:
        """Bytes as float32 numbers."""
        shape = [1] * values.ndim
        if self.scale.size > 1:
            shape[self.axis] = self.scale.size
        zero, scale = self.zero.astype(np.float32), self.scale.astype(np.float32)
        wide = values.astype(np.float32)
        return np.asarray((wide - zero.reshape(shape)) * scale.reshape(shape), np.float32)


def scales_of(graph: Graph) -> dict[str, Scale]:
    """By tensor of bytes: what its bytes stand for, where that is known."""
    found = {}
    for node in graph.nodes:
        scale = graph.constants.get(node.input(1))
        if node.is_onnx("QuantizeLinear") and scale is not None:
            zero = graph.constants.get(node.input(2), np.zeros(scale.shape, np.uint8))
            axis = int(node.attribute("axis", 1))
            found[node.outputs[0]] = Scale(node.inputs[0], scale, np.asarray(zero), axis)
    return found


def without_rounding(graph: Graph) -> Graph:
    """The model with each pair of a quantisation and its opposite passed by."""
    nodes = []
    for node in graph.nodes:
        quantised = graph.producers.get(node.input(0)) if node.inputs else None
        pair = node.is_onnx("DequantizeLinear") and quantised is not None
        if pair and quantised is not None and quantised.is_onnx("QuantizeLinear"):
            node = Node("Identity", (quantised.inputs[0],), node.outputs, node.name)
        nodes.append(node)
    return graph.with_(nodes=tuple(nodes))


def as_numbers(values: Mapping[str, Array], scales: Mapping[str, Scale]) -> dict[str, Array]:
    """Tensors by name, those of bytes as the numbers they stand for."""
    return {
        name: scales[name].numbers(np.asarray(value)) if name in scales else value
        for name, value in values.items()
    }
