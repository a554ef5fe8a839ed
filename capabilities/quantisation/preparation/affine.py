"""What follows a convolution or product and is affine by channel becomes part of its constants.

    y = (conv(x, w) + b) * f + s  =  conv(x, w * f) + b * f + s

Batch normalisation has f = scale / sqrt(variance + epsilon) and s = shift - mean * f (Jacob et al.
2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference", section 3.2); a multiplication or sum with a constant of one number a channel has one of
the two. Computed in float64 and rounded once. Invariant: a node whose result something else reads,
or whose weights are not constant, is left alone.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

_EPSILON = 1e-5
"""ONNX's default."""

Constants = Mapping[str, NDArray[Any]]
Map = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Factor and summand of each channel."""


def with_affine_folded(
    graph: onnx.GraphProto, constants: dict[str, NDArray[Any]], readers: Mapping[str, int]
) -> None:
    """Fold what can be; changes the graph and the constants.

    Args:
        readers: how often each tensor is read.
    """
    producers = {name: node for node in graph.node for name in node.output if name}
    left = []
    for node in graph.node:
        data = next((name for name in node.input if name not in constants), "")
        before = producers.get(data)
        if before is None or readers.get(data) != 1 or not _takes(before, constants):
            left.append(node)
            continue
        weights, channels = constants[before.input[1]], _channels(before, constants)
        affine = _map_of(node, constants, weights.ndim, channels)
        if affine is None:
            left.append(node)
            continue
        _fold(before, affine, constants, {*constants, *producers})
        before.output[0] = node.output[0]
        producers[node.output[0]] = before
    del graph.node[:]
    graph.node.extend(left)


def _takes(layer: onnx.NodeProto, constants: Constants) -> bool:
    """Whether a node is a layer whose constants can take a map."""
    if layer.op_type not in ("Conv", "Gemm") or layer.domain:
        return False
    stated = {a.name: helper.get_attribute_value(a) for a in layer.attribute}
    if stated.get("alpha", 1.0) != 1.0 or stated.get("beta", 1.0) != 1.0:
        return False
    own = [name for name in layer.input[1:] if name]
    if layer.input[0] in constants or not own:
        return False
    if any(name not in constants or constants[name].dtype != np.float32 for name in own):
        return False
    return len(own) == 1 or constants[own[1]].size == _channels(layer, constants)


def _axis(layer: onnx.NodeProto) -> int:
    """The axis of the output channels in the weights."""
    turned = any(a.name == "transB" and a.i for a in layer.attribute)
    return 0 if layer.op_type == "Conv" or turned else 1


def _channels(layer: onnx.NodeProto, constants: Constants) -> int:
    return int(constants[layer.input[1]].shape[_axis(layer)])


def _map_of(node: onnx.NodeProto, constants: Constants, rank: int, channels: int) -> Map | None:
    """The factor and summand of each channel of a node's data; None where it does other things.

    Args:
        rank: of the data, whose channels lie along axis 1.
    """
    given = [name for name in node.input if name in constants]
    if node.domain or any(constants[name].dtype != np.float32 for name in given):
        return None
    if node.op_type == "BatchNormalization":
        return _normalised(node, constants) if len(given) == 4 else None
    if node.op_type not in ("Mul", "Add") or len(given) != 1:
        return None
    value = _by_channel(constants[given[0]].astype(np.float64), rank, channels)
    if value is None:
        return None
    if node.op_type == "Mul":
        return value, np.zeros(channels)
    return np.ones(channels), value


def _normalised(node: onnx.NodeProto, constants: Constants) -> Map | None:
    stated = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if stated.get("training_mode", 0) or len([name for name in node.output if name]) != 1:
        return None
    scale, shift, mean, variance = (constants[name].astype(np.float64) for name in node.input[1:5])
    factor = scale / np.sqrt(variance + stated.get("epsilon", _EPSILON))
    return factor, shift - mean * factor


def _by_channel(value: NDArray[np.float64], rank: int, channels: int) -> NDArray[np.float64] | None:
    """A constant that broadcasts as one number a channel; None where it varies elsewhere."""
    if value.ndim > rank:
        return None
    shape = (1,) * (rank - value.ndim) + value.shape
    if any(extent != 1 for axis, extent in enumerate(shape) if axis != 1):
        return None
    return np.broadcast_to(value.reshape(-1), (channels,)) if shape[1] in (1, channels) else None


def _fold(
    layer: onnx.NodeProto, affine: Map, constants: dict[str, NDArray[Any]], taken: set[str]
) -> None:
    factor, summand = affine
    weights = constants[layer.input[1]]
    held = len(layer.input) > 2 and layer.input[2]
    bias = constants[layer.input[2]].astype(np.float64).reshape(-1) if held else 0.0
    along = [1] * weights.ndim
    along[_axis(layer)] = -1
    names = (_unused(f"{layer.name}.weight", taken), _unused(f"{layer.name}.bias", taken))
    constants[names[0]] = (weights * factor.reshape(along)).astype(np.float32)
    constants[names[1]] = (bias * factor + summand).astype(np.float32)
    inputs = (layer.input[0], *names)
    del layer.input[:]
    layer.input.extend(inputs)


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name
