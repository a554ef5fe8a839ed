"""Batch normalisation behind a convolution or a product becomes part of its weights and bias.

    y = (conv(x, w) + b - mean) * f + shift,  f = scale / sqrt(variance + epsilon)
      = conv(x, w * f) + (b - mean) * f + shift

(Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-
Only Inference", section 3.2.) Computed in float64 and rounded once. Invariant: a node whose result
something else reads, or whose weights are not constant, is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

_EPSILON = 1e-5
"""ONNX's default."""


def with_batch_norm_folded(
    graph: onnx.GraphProto, constants: dict[str, NDArray[Any]], readers: Mapping[str, int]
) -> None:
    """Fold what can be; changes the graph and the constants.

    Args:
        readers: how often each tensor is read.
    """
    producers = {name: node for node in graph.node for name in node.output if name}
    left = []
    for node in graph.node:
        before = producers.get(node.input[0]) if node.input else None
        if before is None or not _foldable(node, before, constants, readers):
            left.append(node)
            continue
        _fold(node, before, constants, {*constants, *producers})
        producers[node.output[0]] = before
    del graph.node[:]
    graph.node.extend(left)


def _foldable(
    node: onnx.NodeProto,
    before: onnx.NodeProto,
    constants: Mapping[str, NDArray[Any]],
    readers: Mapping[str, int],
) -> bool:
    if (
        node.op_type != "BatchNormalization"
        or node.domain
        or before.op_type not in ("Conv", "Gemm")
    ):
        return False
    if len([name for name in node.output if name]) != 1 or readers.get(node.input[0]) != 1:
        return False
    stated = {a.name: helper.get_attribute_value(a) for a in (*node.attribute, *before.attribute)}
    if stated.get("training_mode", 0) or stated.get("alpha", 1.0) != 1.0:
        return False
    if stated.get("beta", 1.0) != 1.0:
        return False
    weights = (*node.input[1:], *before.input[1:])
    bias = constants.get(before.input[2]) if len(before.input) > 2 and before.input[2] else None
    if bias is not None and bias.size != constants[node.input[1]].size:
        return False
    return all(not n or (n in constants and constants[n].dtype == np.float32) for n in weights)


def _fold(
    node: onnx.NodeProto,
    before: onnx.NodeProto,
    constants: dict[str, NDArray[Any]],
    taken: set[str],
) -> None:
    scale, shift, mean, variance = (constants[name].astype(np.float64) for name in node.input[1:5])
    stated = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    factor = scale / np.sqrt(variance + stated.get("epsilon", _EPSILON))
    weights = constants[before.input[1]]
    held = len(before.input) > 2 and before.input[2]
    bias = constants[before.input[2]].astype(np.float64).reshape(-1) if held else 0.0
    along = [1] * weights.ndim
    along[0 if before.op_type == "Conv" or _transposed(before) else 1] = -1
    names = (_unused(f"{before.name}.weight", taken), _unused(f"{before.name}.bias", taken))
    constants[names[0]] = (weights * factor.reshape(along)).astype(np.float32)
    constants[names[1]] = ((bias - mean) * factor + shift).astype(np.float32)
    inputs = (before.input[0], *names)
    del before.input[:]
    before.input.extend(inputs)
    before.output[0] = node.output[0]


def _transposed(node: onnx.NodeProto) -> bool:
    return any(a.name == "transB" and a.i for a in node.attribute)


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name
