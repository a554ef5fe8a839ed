"""Shapes and element types of one node's outputs, from what is known of its inputs.

ONNX's own inference functions do the work, one node at a time, with the values of constant inputs
at hand; so shapes that a model computes at run time (Shape, Gather, Concat, Reshape chains) become
known as soon as the input shapes are. Invariant: never guesses: what is not sure stays unknown.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, shape_inference

from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Node, Subgraph, TensorInfo
from tilesmith.compiler.graph.operator_traits import numbers
from tilesmith.compiler.graph.value_types import STRING, onnx_type, value_type
from tilesmith.compiler.host.nodes import HostFunction, foldable, node_proto
from tilesmith.compiler.numerics.block_quantised import OPERATOR as BLOCK_QUANTISED
from tilesmith.compiler.numerics.block_quantised import result_info
from tilesmith.compiler.onnx.files.arrays import one_line
from tilesmith.search_space.expressions.dtypes import STORED, to_numpy
from tilesmith.search_space.support.errors import JobError, ModelError
from tilesmith.search_space.workloads.epilogue import STEPS
from tilesmith.search_space.workloads.workload import shape_text

_SMALL = 4096
"""Elements up to which a value computed during import is kept (shapes are short)."""

_LIKE_INPUT = ("GroupNormalization", "Inverse", "MeanVarianceNormalization")
"""Operators that ONNX infers nothing for, defined by functions or not its own: they keep shape and
dtype."""

_ONNX_NAMES = {
    "float8_e4m3": "FLOAT8E4M3FN", "float8_e5m2": "FLOAT8E5M2", "float32": "FLOAT",
    "float64": "DOUBLE", "float4_e2m1": "FLOAT4E2M1", "float8_e4m3fnuz": "FLOAT8E4M3FNUZ",
    "float8_e5m2fnuz": "FLOAT8E5M2FNUZ", "float8_e8m0": "FLOAT8E8M0",
}  # fmt: skip

DTYPE_NUMBERS: dict[str, int] = {
    name: TensorProto.DataType.Value(_ONNX_NAMES.get(name, name.upper()))
    for name in (*STORED, STRING)
}
"""Tilesmith's dtype names to ONNX's numbers."""

DTYPE_NAMES: dict[int, str] = {number: name for name, number in DTYPE_NUMBERS.items()}
"""ONNX's numbers to Tilesmith's dtype names."""


_FOLLOWED = 1 << 16
"""Elements of a declared vector up to which ONNX follows values: of a vector that is cast it keeps
each element as a dimension of its own, 140 bytes long."""


def inferred_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with what ONNX infers of it, by values of shapes too where no vector is long.

    Raises:
        onnx.shape_inference.InferenceError: shapes contradict each other.
    """
    graph = model.graph
    shapes = [v.type.tensor_type.shape.dim for v in (*graph.input, *graph.value_info)]
    lengths = [shape[0].dim_value for shape in shapes if len(shape) == 1]
    followed = max(lengths, default=0) <= _FOLLOWED
    return shape_inference.infer_shapes(model, data_prop=followed)


def dtype_of(array: NDArray[Any]) -> str:
    """Tilesmith's name of an array's dtype, "" if it has none."""
    if array.dtype == object:
        return STRING
    return next((name for name in STORED if to_numpy(name) == array.dtype), "")


def info_of_type(name: str, proto: onnx.TypeProto, bindings: Mapping[str, int]) -> TensorInfo:
    """A tensor's info from its ONNX type; symbolic dimensions are looked up in `bindings`."""
    tensor, dtype = proto.tensor_type, value_type(proto, DTYPE_NAMES)
    if not proto.HasField("tensor_type") or not tensor.HasField("shape"):
        return TensorInfo(name, dtype, None)
    dims: list[int] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value)
        elif dim.dim_param in bindings:
            dims.append(bindings[dim.dim_param])
        else:
            return TensorInfo(name, dtype, None)
    return TensorInfo(name, dtype, tuple(dims))


def type_of_info(info: TensorInfo) -> onnx.TypeProto:
    """The ONNX type of a tensor's info."""
    return onnx_type(info.dtype, DTYPE_NUMBERS, info.shape)


def infer_outputs(
    node: Node,
    tensors: Mapping[str, TensorInfo],
    values: Mapping[str, NDArray[Any]],
    opsets: Mapping[str, int],
) -> dict[str, TensorInfo]:
    """What ONNX can tell of the node's outputs; those it cannot are left out.

    Raises:
        ModelError: the inputs do not go together.
    """
    if node.operator in _LIKE_INPUT and node.domain in ("", INTERNAL_DOMAIN):
        _check_groups(node, tensors)
        return {name: replace(tensors[node.inputs[0]], name=name) for name in node.writes[:1]}
    if node.domain == INTERNAL_DOMAIN and node.operator in STEPS:
        return {node.writes[0]: replace(tensors[node.inputs[0]], name=node.writes[0])}
    own = node.domain == INTERNAL_DOMAIN
    if own and node.operator == BLOCK_QUANTISED:
        return {node.writes[0]: result_info(node, tensors[node.inputs[0]])}
    domain, opsets = ("", {"": onnx.defs.onnx_opset_version()}) if own else (node.domain, opsets)
    version = opsets.get(domain, 1)
    if not domain:
        version = max(version, *numbers("inferred").get(node.operator, (1,)))
    if not onnx.defs.has(node.operator, version, domain):
        return {}
    schema = onnx.defs.get_schema(node.operator, version, domain)
    if not all(tensors[name].dtype for name in node.inputs if name):
        return {}
    types = {name: type_of_info(tensors[name]) for name in node.reads if tensors[name].dtype}
    data = {
        name: numpy_helper.from_array(values[name])
        for name in node.reads
        if name in values and values[name].size <= _SMALL
    }
    ids = [helper.make_opsetid(domain, number) for domain, number in opsets.items()]
    try:
        inferred = shape_inference.infer_node_outputs(
            schema, node_proto(replace(node, domain=domain), opsets), types, data, opset_imports=ids
        )
    except shape_inference.InferenceError as error:
        if any(isinstance(value, Subgraph) for _, value in node.attributes):
            return {}  # what a body does to shapes is not always clear before it is run
        shapes = ", ".join(shape_text(tensors[name].shape or ()) for name in node.inputs if name)
        raise ModelError(
            f"{node.describe()} cannot be computed of inputs of shapes {shapes}: "
            f"{one_line(error).removeprefix('[ShapeInferenceError] ')}"
        ) from error
    except (onnx.checker.ValidationError, RuntimeError):
        return {}
    infos = {name: info_of_type(name, proto, {}) for name, proto in inferred.items()}
    if _passes_over(schema, node, tensors):
        return {name: replace(info, shape=None) for name, info in infos.items()}
    if node.operator == "STFT" and not domain:
        shape = _frames_of(node, tensors, values)
        return {name: replace(info, shape=shape) for name, info in infos.items()}
    return infos


def _passes_over(schema: onnx.defs.OpSchema, node: Node, tensors: Mapping[str, TensorInfo]) -> bool:
    """Whether ONNX may take an input for left out, as it does with axes of unknown shape."""
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    return any(
        name and formal.option == optional and tensors[name].shape is None
        and tensors[name].dtype in ("int32", "int64")
        for formal, name in zip(schema.inputs, node.inputs, strict=False)
    )  # fmt: skip


def _frames_of(
    node: Node, tensors: Mapping[str, TensorInfo], values: Mapping[str, NDArray[Any]]
) -> tuple[int, ...] | None:
    """The shape of an STFT, if it is known; ONNX forgets that real signals are one-sided."""
    signal, step, length = (tensors[node.inputs[0]], *(values.get(node.input(n)) for n in (1, 3)))
    window = tensors[node.inputs[2]] if node.input(2) else None
    if length is None and window is not None and window.known and not node.input(3):
        length = np.array(window.dims[0])
    if not signal.known or step is None or length is None or len(signal.dims) < 2:
        return None
    count, hop = int(length.reshape(-1)[0]), int(step.reshape(-1)[0])
    if hop < 1:
        raise ModelError(f"{node.describe()} has frame_step {hop}; frames move on by 1 or more")
    kept = count // 2 + 1 if node.attribute("onesided", 1) else count
    frames = (signal.dims[1] - count) // hop + 1
    return signal.dims[0], frames, kept, 2


def _check_groups(node: Node, tensors: Mapping[str, TensorInfo]) -> None:
    """Raise `ModelError` where a GroupNormalization's channels cannot be cut as it says."""
    dims = tensors[node.inputs[0]].shape
    if node.operator != "GroupNormalization" or dims is None:
        return
    groups = int(node.attribute("num_groups"))
    if len(dims) < 2 or groups < 1 or dims[1] % groups:
        raise ModelError(
            f"{node.describe()} has num_groups={groups}, and its input is {shape_text(dims)}; the "
            "second axis has to be a multiple of it"
        )
    for name in node.inputs[1:]:
        shape = tensors[name].shape
        if shape is not None and shape not in ((groups,), (dims[1],)):
            raise ModelError(
                f"{node.describe()} takes '{name}' of shape {shape_text(shape)}; one number for "
                f"each of {groups} groups (before opset 21) or {dims[1]} channels is needed"
            )


def known_values(
    node: Node,
    tensors: Mapping[str, TensorInfo],
    values: Mapping[str, NDArray[Any]],
    opsets: Mapping[str, int],
    inferred: Mapping[str, TensorInfo],
) -> dict[str, NDArray[Any]]:
    """Small outputs that are already certain: shapes of known tensors, and sums over them.

    Args:
        inferred: what `infer_outputs` says of the node; what is large is not computed.
    """
    if node.is_onnx("Shape", "Size"):
        shape = tensors[node.inputs[0]].shape
        if shape is None:
            return {}
        if node.operator == "Size":
            return {node.writes[0]: np.array(int(np.prod(shape)), dtype=np.int64)}
        part = shape[slice(node.attribute("start", 0), node.attribute("end"))]
        return {node.writes[0]: np.array(part, dtype=np.int64)}
    if not foldable(node) or node.is_onnx("DequantizeLinear"):  # weights, whose bytes count
        return {}
    if node.operator == "ConstantOfShape" and not all(
        name in inferred and inferred[name].shape is not None for name in node.writes
    ):
        return {}  # it may be large
    if not all(name in values and values[name].size <= _SMALL for name in node.reads):
        return {}
    if any(info.shape is not None and info.elements > _SMALL for info in inferred.values()):
        return {}
    try:
        results = HostFunction.of(node, tuple(opsets.items())).run(values)
    except JobError:
        return {}
    small = all(isinstance(r, np.ndarray) and r.size <= _SMALL for r in results.values())
    return results if small else {}
