"""`FloatModel`: an ONNX model brought to the form in which it is quantised.

    float_model(read_model("model.onnx")) -> FloatModel

What is written at last is ONNX again, so this works on the file's own nodes, not on the compiler's
graph. Invariants of what comes out: opset 13 or later (the first whose DequantizeLinear has scales
along an axis); every node has a name of its own; constants are initialisers, those behind a
Transpose, Reshape or the like too; batch normalisation and other maps by channel behind a
convolution or product are part of its weights; a Gemm has no factors and a bias by column
(`plain_gemm`); sums of two are `Add`. What is computed is the same, up to roundings.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tilesmith.capabilities.quantisation.preparation.affine import with_affine_folded
from tilesmith.capabilities.quantisation.preparation.plain_gemm import with_plain_gemms
from tilesmith.compiler.graph.operator_traits import having
from tilesmith.compiler.onnx.files.arrays import ArrayReader
from tilesmith.compiler.onnx.files.file import ModelFile, at_opset, opset_of
from tilesmith.search_space.support.errors import ModelError

OPSET = 13
"""The first whose DequantizeLinear has scales along an axis."""

_IR_VERSION = 7
"""Of opset 13; the first in which weights need not be inputs is 4."""

_MOVED = (*having("reorders"), "Cast", "Constant")
"""Operators that a weight may lie behind."""


@dataclass(frozen=True)
class FloatModel:
    """A float32 model in the form that quantisation works on.

    Attributes:
        proto: without its initialisers.
        constants: the initialisers, by name.
        name: for messages.
    """

    proto: onnx.ModelProto
    constants: Mapping[str, NDArray[Any]]
    name: str

    @property
    def nodes(self) -> Iterator[onnx.NodeProto]:
        """In topological order."""
        return iter(self.proto.graph.node)

    @cached_property
    def by_name(self) -> dict[str, onnx.NodeProto]:
        """Nodes by their names."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def producers(self) -> dict[str, onnx.NodeProto]:
        """The node that writes each tensor."""
        return {name: node for node in self.nodes for name in node.output if name}

    @cached_property
    def readers(self) -> Counter[str]:
        """How often each tensor is read, by nodes (and what is inside them) and by the caller."""
        return readers_of(self.proto.graph)

    @property
    def inputs(self) -> tuple[onnx.ValueInfoProto, ...]:
        """Names of the inputs that a caller gives."""
        return tuple(v for v in self.proto.graph.input if v.name not in self.constants)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs that a caller gets."""
        return tuple(value.name for value in self.proto.graph.output)


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """An attribute's value."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def readers_of(graph: onnx.GraphProto) -> Counter[str]:
    """How often each tensor is read, by nodes, by graphs inside them, and as an output."""
    counts: Counter[str] = Counter(value.name for value in graph.output)
    for node in graph.node:
        counts.update(name for name in node.input if name)
        for stated in node.attribute:
            for inner in (stated.g, *stated.graphs):
                counts.update(readers_of(inner))
    return counts


def float_model(read: ModelFile, newest: int = OPSET) -> FloatModel:
    """A model to be quantised; what is given is not changed.

    Args:
        newest: the opset it is brought to if it can be; at least `OPSET`.

    Raises:
        ModelError: it is quantised already, cannot be brought to `OPSET`, or a weight of it cannot
            be read.
    """
    _refuse_quantised(read.proto, read.name)
    reader = ArrayReader(read.folder, read.name, read.held)
    try:
        source = _modern(read.proto, reader, newest)
    except ModelError:
        if newest == OPSET:
            raise
        source = _modern(read.proto, reader, OPSET)
    constants = {tensor.name: reader.array(tensor) for tensor in source.graph.initializer}
    for sparse in source.graph.sparse_initializer:
        constants[sparse.values.name] = reader.dense(sparse)
    proto = _without_constants(source)
    if not read.held:
        reader.embed(proto.graph)
    _drop_inputs(proto.graph, constants)
    _name_nodes(proto.graph)
    _plain_sums(proto.graph)
    _fold_moved(proto, constants)
    with_plain_gemms(proto.graph, constants)
    with_affine_folded(proto.graph, constants, readers_of(proto.graph))
    _drop_unread(proto.graph, constants)
    proto.ir_version = max(proto.ir_version, _IR_VERSION)
    return FloatModel(proto, constants, read.name)


def with_constants(proto: onnx.ModelProto, constants: Mapping[str, NDArray[Any]]) -> None:
    """Put initialisers into a model that was taken from a `FloatModel`."""
    for name, value in constants.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value, order="C"), name))


def quantised_by(proto: onnx.ModelProto) -> onnx.NodeProto | None:
    """The first node that is of quantisation; None in a float32 model."""
    nodes: Iterable[onnx.NodeProto] = proto.graph.node
    matches = (
        n for n in nodes if n.op_type in having("quantised") or n.op_type.startswith("QLinear")
    )
    return next(matches, None)


def _refuse_quantised(proto: onnx.ModelProto, name: str) -> None:
    node = quantised_by(proto)
    if node is not None:
        raise ModelError(
            f"'{name}' is quantised already: its node '{node.name or node.output[0]}' is "
            f"{node.op_type}; compile it as it is, or quantise the float32 model it was made of"
        )


def _modern(proto: onnx.ModelProto, reader: ArrayReader, opset: int) -> onnx.ModelProto:
    if opset_of(proto) >= opset:
        return proto
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    if not reader.held:
        reader.embed(whole.graph)
    return at_opset(whole, opset, reader.model)


def _without_constants(source: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of all but the initialisers, which may be larger than memory holds twice."""
    proto = onnx.ModelProto(ir_version=source.ir_version, producer_name="tilesmith")
    proto.opset_import.extend(source.opset_import)
    proto.metadata_props.extend(source.metadata_props)
    proto.graph.name = source.graph.name or "graph"
    for part in ("node", "input", "output"):
        getattr(proto.graph, part).extend(getattr(source.graph, part))
    return proto


def _drop_inputs(graph: onnx.GraphProto, constants: Mapping[str, NDArray[Any]]) -> None:
    """Weights that are declared as inputs too, as old files do, are weights alone."""
    kept = [value for value in graph.input if value.name not in constants]
    del graph.input[:]
    graph.input.extend(kept)


def _name_nodes(graph: onnx.GraphProto) -> None:
    taken = Counter(node.name for node in graph.node)
    used: set[str] = set()
    for number, node in enumerate(graph.node):
        if not node.name or node.name in used:
            name = f"{node.name or node.op_type}_{number}"
            while name in taken or name in used:
                name += "_"
            node.name = name
        used.add(node.name)


def _plain_sums(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        if node.op_type == "Sum" and not node.domain and len(node.input) == 2:
            node.op_type = "Add"


def _fold_moved(proto: onnx.ModelProto, constants: dict[str, NDArray[Any]]) -> None:
    """Evaluate what only moves constants about."""
    left = []
    for node in proto.graph.node:
        moved = node.op_type in _MOVED and not node.domain and len(node.output) == 1
        if moved and all(not name or name in constants for name in node.input):
            value = _evaluated(node, proto, constants)
            if value is not None:
                constants[node.output[0]] = value
                continue
        left.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(left)


def _evaluated(
    node: onnx.NodeProto, proto: onnx.ModelProto, constants: Mapping[str, NDArray[Any]]
) -> NDArray[Any] | None:
    """A node's only output, None where it is no array of numbers or the reference cannot."""
    fed = {name: constants[name] for name in node.input if name}
    declared = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in fed.items()
    ]
    wanted = [helper.make_empty_tensor_value_info(node.output[0])]
    graph = helper.make_graph([node], "moved", declared, wanted)
    model = helper.make_model(graph, opset_imports=list(proto.opset_import))
    try:
        (value,) = ReferenceEvaluator(model).run(None, fed)
    except Exception:  # whatever it raises, the node stays as it is
        return None
    array = np.asarray(value)
    return array if array.dtype.kind in "fiub" else None


def _drop_unread(graph: onnx.GraphProto, constants: dict[str, NDArray[Any]]) -> None:
    read = readers_of(graph)
    for name in [name for name in constants if not read[name]]:
        del constants[name]
