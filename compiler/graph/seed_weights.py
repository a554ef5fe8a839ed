"""Gives a model seeded random weights in place of the ones it has.

ONNX ships its reference networks as "light" files whose weights are constant fills: right shapes,
no numbers worth computing with. `seed_weights` replaces every weight by random numbers of a scale
that keeps activations finite and alive: He initialisation for convolutions and products (standard
deviation sqrt(2 / fan in); He et al. 2015), statistics near those of a trained network for batch
normalisation. Invariants: the same seed gives the same model on every machine; the input model is
not changed; weights that nodes computed (ConstantOfShape) become initialisers.
"""

import math
import zlib

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from tilesmith.compiler.graph.operator_traits import having

_THROUGH = (*having("reorders"), "Cast")
"""Operators between a weight and the node that gives it its meaning."""

_BATCH_NORM_ROLES = {1: "factor", 2: "shift", 3: "shift", 4: "variance"}


def seed_weights(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """A copy of `model` with random weights.

    Args:
        model: any ONNX model; integer weights (shapes, indices) and single numbers (scales, bounds)
            stay as they are.
        seed: of the random numbers; each weight draws from a generator of its own.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    result.ir_version = max(result.ir_version, 4)  # the first in which weights need not be inputs
    graph = result.graph
    weights = _weight_shapes(graph)
    readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in graph.node:
        for position, name in enumerate(node.input):
            readers.setdefault(name, []).append((node, position))
    seeded = {
        name: _draw(name, shape, _role(name, readers), seed) for name, shape in weights.items()
    }
    _install(graph, seeded)
    return result


def _weight_shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Floating initialisers, and outputs of ConstantOfShape on constant shapes."""
    known = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {
        name: tuple(tensor.dims)
        for name, tensor in known.items()
        if tensor.data_type == onnx.TensorProto.FLOAT and math.prod(tensor.dims) > 1
    }
    for node in graph.node:
        if _is_float_fill(node) and node.input[0] in known:
            shape = numpy_helper.to_array(known[node.input[0]])
            shapes[node.output[0]] = tuple(int(extent) for extent in shape)
    return shapes


def _is_float_fill(node: onnx.NodeProto) -> bool:
    fills = node.op_type == "ConstantOfShape"
    return fills and all(a.t.data_type == onnx.TensorProto.FLOAT for a in node.attribute)


def _role(name: str, readers: dict[str, list[tuple[onnx.NodeProto, int]]]) -> str:
    """What a weight is for: 'weight', 'weight columns', 'factor', 'variance' or 'shift'."""
    for node, position in readers.get(name, []):
        if node.op_type in _THROUGH and position == 0:
            return _role(node.output[0], readers)
        if node.op_type in ("Conv", "ConvTranspose") and position == 1:
            return "weight"
        if node.op_type == "Gemm" and position == 1:
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            return "weight" if transposed else "weight columns"
        if node.op_type == "MatMul":
            return "weight columns"
        if node.op_type == "BatchNormalization":
            return _BATCH_NORM_ROLES.get(position, "shift")
        if node.op_type in ("Mul", "LayerNormalization") and position < 2:
            return "factor"
    return "shift"


def _draw(name: str, shape: tuple[int, ...], role: str, seed: int) -> NDArray[np.float32]:
    rng = np.random.default_rng((seed, zlib.crc32(name.encode())))
    if role.startswith("weight") and len(shape) >= 2:
        fan_in = math.prod(shape[1:]) if role == "weight" else shape[-2]
        return (rng.standard_normal(shape) * math.sqrt(2.0 / fan_in)).astype(np.float32)
    if role == "factor":  # below one, so that a residual network's sums don't grow block by block
        return rng.uniform(0.5, 0.8, shape).astype(np.float32)
    if role == "variance":
        return rng.uniform(0.8, 1.2, shape).astype(np.float32)
    return (rng.standard_normal(shape) * 0.05).astype(np.float32)


def _install(graph: onnx.GraphProto, seeded: dict[str, NDArray[np.float32]]) -> None:
    """Make the drawn arrays the graph's initialisers, and drop what computed them before."""
    nodes = [n for n in graph.node if not (n.output and n.output[0] in seeded)]
    read = {name for node in nodes for name in node.input}
    kept = [t for t in graph.initializer if t.name not in seeded and t.name in read]
    weights = {tensor.name for tensor in graph.initializer} | set(seeded)
    inputs = [value for value in graph.input if value.name not in weights]
    arrays = [numpy_helper.from_array(array, name) for name, array in seeded.items()]
    for field, values in (
        (graph.node, nodes),
        (graph.initializer, [*kept, *arrays]),
        (graph.input, inputs),
    ):
        copies = []
        for value in values:
            copy = type(value)()
            copy.CopyFrom(value)
            copies.append(copy)
        del field[:]
        field.extend(copies)
