"""A model in float64: what it computes when no rounding of float32 is in the way."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tilesmith.compiler.graph.graph import AttributeValue, Graph, Node, Subgraph, TensorInfo
from tilesmith.search_space.expressions.dtypes import is_floating, to_numpy

_TYPES = ("to", "dtype", "output_dtype")
"""Attributes that name an element type."""

_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}


def in_float64(graph: Graph) -> Graph:
    """The model with every floating tensor, weight and cast in float64.

    Casts to 16 bits, too: their rounding is no part of what the model means to compute.
    """
    tensors = {name: _info(info) for name, info in graph.tensors.items()}
    return graph.with_(
        inputs=tuple(map(_info, graph.inputs)),
        outputs=tuple(map(_info, graph.outputs)),
        nodes=tuple(map(_node, graph.nodes)),
        constants={name: wide(value) for name, value in graph.constants.items()},
        tensors=tensors,
    )


def wide(value: Any) -> Any:
    """An array of floats in float64, anything else as it is."""
    if isinstance(value, np.ndarray) and value.dtype in _NARROWER:
        return value.astype(np.float64)
    return value


_NARROWER = [to_numpy(name) for name in ("float32", "float16", "bfloat16")]


def _info(info: TensorInfo) -> TensorInfo:
    narrower = is_floating(info.dtype) and info.dtype in ("float32", "float16", "bfloat16")
    return replace(info, dtype="float64") if narrower else info


def _node(node: Node) -> Node:
    attributes = tuple((name, _attribute(name, value)) for name, value in node.attributes)
    return replace(node, attributes=attributes)


def _attribute(name: str, value: AttributeValue) -> AttributeValue:
    if name in _TYPES and isinstance(value, int) and value in _FLOATS:
        return int(TensorProto.DOUBLE)
    if isinstance(value, Subgraph):
        proto = onnx.GraphProto()
        proto.ParseFromString(value.serialised)
        _widen(proto)
        return Subgraph(proto.SerializeToString())
    return wide(value)


def _widen(graph: onnx.GraphProto) -> None:
    """A body in float64, in place."""
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type in _FLOATS:
            info.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _TYPES and attribute.i in _FLOATS:
                attribute.i = TensorProto.DOUBLE
            if attribute.HasField("t"):
                _widen_tensor(attribute.t)
            for inner in (attribute.g, *attribute.graphs):
                _widen(inner)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _FLOATS:
        name, array = tensor.name, numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float64), name))
