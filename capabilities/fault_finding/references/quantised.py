"""A quantised model without its rounding: what R of int8 is taken against.

    QuantizeLinear -> DequantizeLinear        becomes        Identity, within the range of the bytes

Weights keep the values that were chosen for them, and ranges stay (a range that ends at zero is a
Relu), so that what is left between both is the rounding of activations, which an implementation has
a part in. Tensors of bytes are compared as the numbers they stand for.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.fault_finding.references.evaluation import Evaluator
from tilesmith.compiler.graph.graph import Graph, Node

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
        scale, zero = self._along(values)
        return np.asarray((values.astype(np.float32) - zero) * scale, np.float32)

    def steps(self, numbers: Array) -> Array:
        """Numbers as bytes, saturated and not rounded, in float64."""
        scale, zero = self._along(numbers)
        limits = np.iinfo(self.zero.dtype)
        steps = numbers.astype(np.float64) / scale + zero
        return np.asarray(np.clip(steps, limits.min, limits.max))

    def within(self, numbers: Array) -> Array:
        """Numbers that leave the range as its ends."""
        scale, zero = self._along(numbers)
        limits = np.iinfo(self.zero.dtype)
        low, high = (limits.min - zero) * scale, (limits.max - zero) * scale
        return np.asarray(np.clip(numbers, low, high), numbers.dtype)

    def _along(self, values: Array) -> tuple[Array, Array]:
        """Scale and zero point in shapes that broadcast."""
        shape = [1] * values.ndim
        if self.scale.size > 1:
            shape[self.axis] = self.scale.size
        return tuple(  # type: ignore[return-value]
            part.astype(np.float32).reshape(shape) for part in (self.scale, self.zero)
        )


def scales_of(graph: Graph) -> dict[str, Scale]:
    """By tensor of bytes: what its bytes stand for, where that is known."""
    scales = {}
    for node in graph.nodes:
        scale = graph.constants.get(node.input(1))
        if node.is_onnx("QuantizeLinear") and scale is not None:
            zero = np.asarray(graph.constants.get(node.input(2), np.zeros(scale.shape, np.uint8)))
            if zero.dtype.kind in "iu" and zero.size == scale.size and scale.ndim < 2:
                axis = int(node.attribute("axis", 1))
                scales[node.outputs[0]] = Scale(node.inputs[0], scale, zero, axis)
    return scales


def without_rounding(graph: Graph, kept: Collection[str] = ()) -> Evaluator:
    """The model with each pair of a quantisation and its opposite passed by, within the range of
    the bytes.

    Args:
        kept: tensors of bytes that are given: what dequantises them stays.
    """
    scales = scales_of(graph)
    passed: dict[str, Scale] = {}
    nodes = []
    for node in graph.nodes:
        scale = scales.get(node.input(0)) if node.inputs else None
        if scale is not None and node.is_onnx("DequantizeLinear") and node.inputs[0] not in kept:
            passed[node.outputs[0]] = scale
            node = Node("Identity", (scale.source,), node.outputs, node.name)
        nodes.append(node)

    def within(name: str, value: Any) -> Any:
        return passed[name].within(value) if name in passed else value

    return Evaluator(graph.with_(nodes=tuple(nodes)), within)


def as_numbers(values: Mapping[str, Array], scales: Mapping[str, Scale]) -> dict[str, Array]:
    """Tensors by name, those of bytes as the numbers they stand for."""
    return {
        name: scales[name].numbers(np.asarray(value)) if name in scales else value
        for name, value in values.items()
    }
