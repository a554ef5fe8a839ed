"""Attributes of ONNX nodes, in the form that nodes of a graph keep them."""

from typing import Any

import onnx
from onnx import helper

from tilesmith.compiler.graph.access import shortest
from tilesmith.compiler.graph.graph import Subgraph
from tilesmith.compiler.onnx.files.arrays import ArrayReader
from tilesmith.search_space.support.errors import ModelError


def attribute_of(proto: onnx.AttributeProto, arrays: ArrayReader, model: str) -> Any:
    """The value of an attribute.

    Args:
        arrays: reads tensors, those in bodies too.
        model: its name, for messages.

    Raises:
        ModelError: it is a text that is not UTF-8, or a tensor that cannot be read.
    """
    try:
        return _value(proto, arrays)
    except UnicodeDecodeError as error:
        raise ModelError(
            f"attribute '{proto.name}' of a node of '{model}' holds text that is not UTF-8"
        ) from error


def _value(proto: onnx.AttributeProto, arrays: ArrayReader) -> Any:
    value = helper.get_attribute_value(proto)
    match value:
        case onnx.TensorProto():
            return arrays.array(value)
        case onnx.SparseTensorProto():
            return arrays.dense(value)
        case onnx.GraphProto():
            graph = onnx.GraphProto()
            graph.CopyFrom(value)
            arrays.embed(graph)
            return Subgraph(graph.SerializeToString())
        case bytes():
            return value.decode()
        case str() | int():
            return value
        case float():
            return shortest(value)
        case onnx.TypeProto():
            return value
        case _:
            return tuple(_plain(v) for v in value)


def _plain(value: Any) -> Any:
    """An element of a list attribute."""
    if isinstance(value, float):
        return shortest(value)
    return value.decode() if isinstance(value, bytes) else value
