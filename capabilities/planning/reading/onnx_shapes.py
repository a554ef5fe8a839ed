"""Shapes of all tensors of an ONNX file, those behind shapes that the graph computes included.

ONNX's inference does not follow every way in which exporters write a fixed shape (a `Where` of
constants in front of an `Expand`). Here what is computed of short constants and known shapes is put
in their place, and inference is asked again. Invariants: weights are not read; nothing is computed
of tensors of more than `_SHORT` numbers, nor made with more.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from tilesmith.compiler.graph.operator_traits import having
from tilesmith.search_space.support.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto, NodeProto

_SHORT = 64
_ROUNDS = 8
"""Inferences at most: one for each time that a computed shape makes another one known."""
_COMPUTED = ("Shape", "Constant", "ConstantOfShape", *having("pointwise", "moves", "joins"))


def with_shapes(model: "ModelProto", name: str) -> "ModelProto":
    """The model with the shapes of its tensors, as far as they can be known.

    Raises:
        ModelError: shapes contradict each other.
    """
    from onnx import shape_inference

    from tilesmith.compiler.onnx.inference.inference import inferred_model

    for _ in range(_ROUNDS):
        try:
            model = inferred_model(model)
        except (shape_inference.InferenceError, ValueError) as error:
            raise ModelError(f"the shapes of '{name}' cannot be inferred: {error}") from error
        if not _fold(model):
            break
    return model


def _fold(model: "ModelProto") -> bool:
    """Put what can be computed in the place of its nodes; whether there was anything."""
    from onnx import numpy_helper

    graph = model.graph
    values: dict[str, NDArray[Any]] = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if np.prod(tensor.dims, dtype=float) <= _SHORT and not tensor.external_data
    }
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.value_info)
        if all(dim.dim_value > 0 for dim in value.type.tensor_type.shape.dim)
    }
    kept, before = [], len(graph.node)
    for node in graph.node:
        constant = _value(node, values, shapes)
        if constant is None:
            kept.append(node)
        else:
            values[node.output[0]] = constant
            graph.initializer.append(numpy_helper.from_array(constant, node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    return len(kept) < before


def _value(
    node: "NodeProto", values: "dict[str, NDArray[Any]]", shapes: dict[str, list[int]]
) -> "NDArray[Any] | None":
    """What a node computes, where that is short and known."""
    from onnx.reference import ReferenceEvaluator

    if node.op_type not in _COMPUTED or node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Shape" and not node.attribute:
        known = shapes.get(node.input[0])
        return None if known is None else np.array(known, np.int64)
    if any(name and name not in values for name in node.input):
        return None
    if node.op_type == "ConstantOfShape" and np.prod(values[node.input[0]], dtype=float) > _SHORT:
        return None
    feeds = {name: values[name] for name in node.input if name}
    try:
        (value,) = ReferenceEvaluator(node).run(None, feeds)
    except Exception:  # a node that is wrong is the reader's to tell of
        return None
    return value if isinstance(value, np.ndarray) and value.size <= _SHORT else None
