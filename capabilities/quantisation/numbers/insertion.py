"""Write a quantised model with Q/DQ pairs, which is plain ONNX for any runtime.

    x -> QuantizeLinear -> x in bytes -> DequantizeLinear -> whoever reads bytes
    int8 weights, one scale a channel -> DequantizeLinear -> the layer
    int32 bias, one scale a channel   -> DequantizeLinear -> the layer

The float32 tensor stays for those that do not read bytes.
"""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tilesmith.capabilities.quantisation.numbers.parameters import Parameters
from tilesmith.capabilities.quantisation.numbers.ranges import Affine
from tilesmith.capabilities.quantisation.numbers.weights import ByteWeights
from tilesmith.capabilities.quantisation.preparation.float_model import (
    FloatModel,
    readers_of,
    with_constants,
)
from tilesmith.capabilities.quantisation.preparation.plan import WeightedLayer


def with_pairs(model: FloatModel, chosen: Parameters) -> onnx.ModelProto:
    """The quantised model."""
    return _Insertion(model, chosen).proto


class _Insertion:
    """Writes one model."""

    def __init__(self, model: FloatModel, chosen: Parameters) -> None:
        self.proto = onnx.ModelProto()
        self.proto.CopyFrom(model.proto)
        self._model = model
        self._chosen = chosen
        graph = self.proto.graph
        self._names = set(model.constants) | {node.name for node in graph.node}
        self._names |= {value.name for value in (*graph.input, *graph.output)}
        self._names |= {name for node in graph.node for name in (*node.input, *node.output)}
        self._constants: dict[str, NDArray[Any]] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._bytes = {tensor: self._unused(f"{tensor}_bytes") for tensor in chosen.tensors}
        self._read = {tensor: self._unused(f"{tensor}_rounded") for tensor in chosen.tensors}
        self._scales: dict[str, tuple[str, str]] = {}
        self._write(graph)

    def _write(self, graph: onnx.GraphProto) -> None:
        reads = {(read.node, read.position): read.tensor for read in self._chosen.plan.reads}
        layers = {layer.node: layer for layer in self._chosen.plan.layers}
        for value in self._model.inputs:
            self._pair(value.name)
        for node in list(graph.node):
            for position in range(len(node.input)):
                if (node.name, position) in reads:
                    node.input[position] = self._read[node.input[position]]
            if node.name in layers:
                self._quantise_constants(node, layers[node.name])
            self._nodes.append(node)
            for name in node.output:
                self._pair(name)
        del graph.node[:]
        graph.node.extend(self._nodes)
        read = readers_of(graph)
        kept = {name: value for name, value in self._model.constants.items() if read[name]}
        with_constants(self.proto, {**kept, **self._constants})

    def _pair(self, tensor: str) -> None:
        """The pair behind a tensor, where it is one in bytes."""
        if tensor not in self._bytes:
            return
        names = self._scale(tensor, self._chosen.tensors[tensor])
        inner, outer = self._bytes[tensor], self._read[tensor]
        self._add("QuantizeLinear", (tensor, *names), inner)
        self._add("DequantizeLinear", (inner, *names), outer)

    def _scale(self, tensor: str, affine: Affine) -> tuple[str, str]:
        """The constants of a tensor's scale, which those of its group share."""
        group = self._chosen.plan.groups[tensor]
        if group not in self._scales:
            zero = np.array(affine.zero, affine.dtype)
            scale = self._constant(f"{group}_scale", np.array(affine.scale, np.float32))
            self._scales[group] = scale, self._constant(f"{group}_zero_point", zero)
        return self._scales[group]

    def _quantise_constants(self, node: onnx.NodeProto, layer: WeightedLayer) -> None:
        weights = self._chosen.layers[layer.node]
        assert isinstance(weights, ByteWeights)  # whoever calibrates has no other
        node.input[1] = self._weights(layer, weights)
        if weights.bias is None:
            return
        whole = self._constant(f"{layer.node}_bias_int32", weights.bias)
        scales = self._constant(f"{layer.node}_bias_scale", weights.bias_scales)
        zeros = self._constant(f"{layer.node}_bias_zero_point", np.zeros_like(weights.bias))
        name = self._unused(f"{layer.node}_bias_rounded")
        self._add("DequantizeLinear", (whole, scales, zeros), name, axis=0)
        node.input[2] = name

    def _weights(self, layer: WeightedLayer, weights: ByteWeights) -> str:
        whole = self._constant(f"{layer.node}_weights_int8", weights.values)
        scales = self._constant(f"{layer.node}_weights_scale", weights.scales)
        zeros = np.zeros(weights.scales.shape, np.int8)
        zero = self._constant(f"{layer.node}_weights_zero_point", zeros)
        name = self._unused(f"{layer.node}_weights_rounded")
        self._add("DequantizeLinear", (whole, scales, zero), name, axis=weights.axis)
        return name

    def _add(self, operator: str, inputs: tuple[str, ...], output: str, **stated: Any) -> None:
        name = self._unused(f"{output}/{operator}")
        self._nodes.append(helper.make_node(operator, inputs, [output], name, **stated))

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        name = self._unused(name)
        self._constants[name] = value
        return name

    def _unused(self, name: str) -> str:
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name
