"""ONNX file -> `Graph`: reading, checking, binding of symbolic dimensions, shape inference.

Every fault of the file becomes a `ModelError` of one sentence. Invariants of what it returns: those
of `Graph`; nodes are ONNX operators at the model's own opset; weights stored outside the file come
from inside the model's folder only.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import (
    INTERNAL_DOMAIN,
    Graph,
    Node,
    TensorInfo,
    attributes_of,
    check_of,
)
from tilesmith.compiler.graph.sources import source_name, sourced
from tilesmith.compiler.graph.value_types import is_value_type, texts
from tilesmith.compiler.onnx.attributes import attribute_of
from tilesmith.compiler.onnx.bodies import BodySurroundings, OpenedBefore, loop_outputs
from tilesmith.compiler.onnx.branches import chosen, opened
from tilesmith.compiler.onnx.captures import captures
from tilesmith.compiler.onnx.files.arrays import ArrayReader, constant_value
from tilesmith.compiler.onnx.files.file import ModelFile, read_model
from tilesmith.compiler.onnx.inference.checks import (
    check_attributes_of,
    check_declared,
    check_operands,
    check_size,
    check_words,
    unbound,
    unknown_shape,
)
from tilesmith.compiler.onnx.inference.inference import (
    DTYPE_NAMES,
    dtype_of,
    infer_outputs,
    inferred_model,
    info_of_type,
    known_values,
)
from tilesmith.compiler.onnx.sequences import SplitTensor, part_of, split_of
from tilesmith.compiler.rewriting.expansion import Expandable, Expansion, expansion_for
from tilesmith.search_space.expressions.dtypes import STORED
from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.workloads.workload import shape_text

_INFERENCE_LIMIT = 1 << 30
"""Bytes up to which whole-model inference is run (protobuf cannot serialise 2 GiB)."""

Shapes = Mapping[str, tuple[int, ...]]


def import_model(
    model: str | Path | onnx.ModelProto,
    shapes: Shapes | None = None,
    held: Mapping[str, NDArray[Any]] | None = None,
) -> Graph:
    """Read an ONNX model.

    Args:
        model: a path, or a model in memory.
        shapes: shapes of inputs by name; they give symbolic dimensions their values. An input with
            an initialiser is a constant unless it is named here.
        held: weights in memory, of initialisers that `arrays.typed_only` made; they are not copied.

    Returns:
        the graph; every tensor's shape is known unless only running the model can tell it.

    Raises:
        ModelError: the file is missing, truncated, not ONNX or invalid; an input has an unsupported
            dtype or a symbolic dimension without a value; `shapes` names an
            unknown input or contradicts a fixed dimension.
    """
    file = read_model(model)
    return import_file(replace(file, held={**file.held, **(held or {})}), shapes or {}).graph


def import_body(model: onnx.ModelProto) -> Graph:
    """A body of a model that was read, and so checked, with that model; errors as there."""
    return _Importer(ModelFile(model, None, model.graph.name or "model"), {}, {}).graph()


_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Imported:
    """A model as read, and what was certain while it was read.

    Attributes:
        graph: what is left to compute.
        evaluated: nodes that are not in the graph as their values are known, in order: arithmetic
            of shapes, mostly.
        values: of everything known, constants included.
    """

    graph: Graph
    evaluated: tuple[Node, ...]
    values: Mapping[str, NDArray[Any]]


def import_file(file: ModelFile, shapes: Shapes) -> Imported:
    """What `import_model` does, of a file that is read already; errors as there."""
    importer = _Importer(file, dict(shapes), file.held)
    graph = importer.graph()
    _LOG.info(
        "imported %s, opset %s: %d nodes, %d constants; %d more nodes known beforehand",
        file.name, importer.opsets.get("", "-"), len(graph.nodes), len(graph.constants),
        len(importer.evaluated),
    )  # fmt: skip
    return Imported(graph, tuple(importer.evaluated), importer.values)


class _Importer:
    """State of one import: what is known of each tensor so far."""

    def __init__(
        self, file: ModelFile, shapes: dict[str, tuple[int, ...]], held: Mapping[str, NDArray[Any]]
    ) -> None:
        self.proto, self.name = file.proto, file.name
        self.arrays = ArrayReader(file.folder, file.name, held)
        self.shapes = shapes
        self.opsets = {
            "" if e.domain == "ai.onnx" else e.domain: e.version for e in self.proto.opset_import
        }
        self.bindings: dict[str, int] = {}
        self.values: dict[str, NDArray[Any]] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self.declared: dict[str, onnx.TypeProto] = {}
        self.read: set[str] = set()
        self.splits: dict[str, SplitTensor] = {}
        self.names: set[str] = set()
        self.written: list[Node] = []
        self.evaluated: list[Node] = []
        self.before = OpenedBefore()

    def graph(self) -> Graph:
        self._read_initializers(self.proto.graph)
        inputs = self._read_inputs()
        self._read_declared()
        nodes = list(self._read_nodes(self.proto.graph.node))
        used = {name for node in nodes for name in node.reads}
        outputs = tuple(self._output(value) for value in self.proto.graph.output)
        if not outputs:
            raise ModelError(f"'{self.name}' has no outputs; export it with what it should compute")
        used |= {info.name for info in outputs}
        constants = {name: value for name, value in self.values.items() if name in used}
        written = [name for name, value in constants.items() if value.dtype == object]
        nodes = [*(_constant(name, constants.pop(name)) for name in written), *nodes]
        for value in constants.values():
            value.setflags(write=False)
        named = used | set(constants) | {i.name for i in inputs}
        named |= {name for node in nodes for name in node.writes}
        tensors = {name: info for name, info in self.tensors.items() if name in named}
        return Graph(
            self.proto.graph.name or self.name, inputs, outputs, tuple(nodes), constants, tensors,
            tuple(sorted(self.opsets.items())), file=self.name,
        )  # fmt: skip

    # -- constants ----------------------------------------------------------------------------
    def _read_initializers(self, graph: onnx.GraphProto) -> None:
        given = {value.name for value in self.proto.graph.input} & self.shapes.keys()
        for tensor in graph.initializer:
            if tensor.name not in given:  # else the caller feeds it
                self.set_value(tensor.name, self.arrays.array(tensor))
        for sparse in graph.sparse_initializer:
            self.set_value(sparse.values.name, self.arrays.dense(sparse))

    def set_value(self, name: str, array: NDArray[Any]) -> None:
        """Declare a constant."""
        array = texts(array)
        self.values[name] = array
        self.tensors[name] = TensorInfo(name, dtype_of(array), tuple(array.shape))

    # -- inputs -------------------------------------------------------------------------------
    def _read_inputs(self) -> tuple[TensorInfo, ...]:
        given = [v for v in self.proto.graph.input if v.name not in self.values]
        names = [value.name for value in given]
        if unknown := [name for name in self.shapes if name not in names]:
            raise unknown_shape(self.name, unknown[0], given)
        for value in given:
            if value.name in self.shapes:
                self._bind(value)
        return tuple(self._input(value) for value in given)

    def _bind(self, value: onnx.ValueInfoProto) -> None:
        """Give the symbolic dimensions of an input the values of `shapes`."""
        shape = self.shapes[value.name]
        dims = value.type.tensor_type.shape.dim
        declared = "x".join(d.dim_param or str(d.dim_value or "?") for d in dims)
        wrong = ModelError(
            f"input '{value.name}' of '{self.name}' is {declared}; "
            f"{shape_text(shape)} does not fit it"
        )
        if value.type.tensor_type.HasField("shape") and len(dims) != len(shape):
            raise wrong
        for dim, size in zip(dims, shape, strict=False):
            if dim.HasField("dim_value") and dim.dim_value != size:
                raise wrong
            if dim.dim_param and self.bindings.setdefault(dim.dim_param, size) != size:
                raise ModelError(
                    f"the symbolic dimension '{dim.dim_param}' of '{self.name}' is given both as "
                    f"{self.bindings[dim.dim_param]} and {size}"
                )

    def _input(self, value: onnx.ValueInfoProto) -> TensorInfo:
        name = value.name
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            self.tensors[name] = self._held(value, "input")
            return self.tensors[name]
        if tensor.elem_type not in DTYPE_NAMES:
            known = {number: kind for kind, number in onnx.TensorProto.DataType.items()}
            kind = known.get(tensor.elem_type, f"number {tensor.elem_type}").lower()
            raise ModelError(
                f"input '{name}' of '{self.name}' has the unsupported dtype {kind}; "
                f"supported are {', '.join(DTYPE_NAMES.values())}"
            )
        info = info_of_type(name, value.type, self.bindings)
        if name in self.shapes:
            info = TensorInfo(name, info.dtype, tuple(self.shapes[name]))
        if info.shape is None:
            raise unbound(self.name, value, self.bindings)
        if any(size < 0 for size in info.shape):
            raise ModelError(
                f"input '{name}' of '{self.name}' has the shape {shape_text(info.shape)}; "
                "no dimension may be negative"
            )
        check_size(info, f"input '{name}' of '{self.name}'")
        self.tensors[name] = info
        return info

    # -- nodes --------------------------------------------------------------------------------
    def _read_declared(self) -> None:
        """Types written in the file, and those whole-model inference adds for control flow."""
        graph = self.proto.graph
        check_attributes_of(graph, self.opsets, self.name)
        nested = any(a.HasField("g") for node in graph.node for a in node.attribute)
        if nested and self.proto.ByteSize() <= _INFERENCE_LIMIT:
            with suppress(
                onnx.shape_inference.InferenceError
            ):  # a node's own will say what is wrong
                graph = inferred_model(self.proto).graph
        self.declared = {v.name: v.type for v in (*graph.value_info, *graph.output)}
        for node in self.proto.graph.node:
            self.read.update((*node.input, *captures(node)))
            self.names.update(node.output)

    def _read_nodes(self, protos: Iterable[onnx.NodeProto]) -> Iterator[Node]:
        """The nodes of a graph, those of a branch that is known to be taken among them."""
        for proto in protos:
            branch = chosen(proto, self.values)
            if branch is None:
                name = source_name(proto.name, proto.output)
                yield from (sourced(node, name) for node in self._read_node(self._node(proto)))
                continue
            graph = opened(proto, branch, self.unused)
            for node in graph.node:
                self.read.update((*node.input, *captures(node)))
            self._read_initializers(graph)
            yield from self._read_nodes(graph.node)

    def _node(self, proto: onnx.NodeProto) -> Node:
        return Node(
            proto.op_type, tuple(proto.input), tuple(proto.output), proto.name,
            "" if proto.domain == "ai.onnx" else proto.domain,
            tuple(
                sorted((a.name, attribute_of(a, self.arrays, self.name)) for a in proto.attribute)
            ),
            captures(proto),
        )  # fmt: skip

    def _expanded(self, node: Node, entry: Expandable) -> Sequence[Node]:
        """What a node is put together from."""
        check_words(node)
        outer, self.written = self.written, []
        Expansion(node, entry, self, self.opsets).write()
        parts, self.written = self.written, outer
        return parts

    def _read_node(self, node: Node) -> Sequence[Node]:
        """The node, or what it is put together from, and checks of what it gives; nothing where its
        outputs are known already."""
        if node.operator == "Constant" and node.domain == "":
            self.set_value(node.writes[0], constant_value(node))
            return ()
        for name in node.reads:
            if name not in self.tensors:
                raise ModelError(f"{node.describe()} of '{self.name}' reads the unknown '{name}'")
        check_operands(node, self.tensors, self.opsets)
        entry = expansion_for(node, self.opsets.get("", 1))
        entry = entry or part_of(node, self.splits, self.values)
        if entry is not None:
            return self._expanded(node, entry)
        if split := split_of(node, self.tensors, self.values):
            self.splits[node.outputs[0]] = split
        inferred = self._inferred(node)
        for info in inferred.values():
            check_size(info, f"'{info.name}', which {node.describe()} of '{self.name}' computes,")
        known = known_values(node, self.tensors, self.values, self.opsets, inferred)
        for name, value in known.items():
            self.set_value(name, value)
        if known:
            self.evaluated.append(node)
            return ()
        checks: dict[str, Node] = {}
        for name in node.writes:
            info = inferred.get(name) or TensorInfo(name, "", None)
            self.tensors[name] = merged = self._merge(name, info)
            check_declared(node, merged, self.tensors)
            if merged.known and not info.known and node.domain != INTERNAL_DOMAIN:
                actual = self.unused(f"{name}.computed")
                self.tensors[actual] = TensorInfo(actual, info.dtype, None)
                checks[name] = check_of(actual, merged)
        outputs = tuple(checks[n].inputs[0] if n in checks else n for n in node.outputs)
        return (replace(node, outputs=outputs), *checks.values())

    def _inferred(self, node: Node) -> dict[str, TensorInfo]:
        """What inference says; nothing where it refuses what the host can compute all the same."""
        try:
            inferred = infer_outputs(node, self.tensors, self.values, self.opsets)
        except ModelError:
            if known_values(node, self.tensors, self.values, self.opsets, {}):
                return {}
            raise
        if not node.is_onnx("Loop"):
            return inferred
        around = BodySurroundings(self.tensors, self.values, tuple(self.opsets.items()))
        return {**inferred, **loop_outputs(node, around, import_body, self.before)}

    def take(self, node: Node) -> None:
        """Read a node of an expansion."""
        self.read.update(node.reads)
        self.written.extend(self._read_node(node))

    def declared_shape(self, name: str) -> tuple[int, ...] | None:
        """The shape that the file states for a tensor, None where it does not."""
        if name not in self.declared:
            return None
        return info_of_type(name, self.declared[name], self.bindings).shape

    def unused(self, name: str) -> str:
        """A name that nothing has."""
        while name in self.names or name in self.tensors:
            name += "."
        self.names.add(name)
        return name

    def _merge(self, name: str, inferred: TensorInfo) -> TensorInfo:
        """What inference found, completed by what the file declares.

        A shape that only the file knows is left out where no node reads the tensor: what comes out
        is given as it is. Elsewhere it is believed, and checked when the model runs; but for one
        without elements, of which nothing would be left to run.
        """
        if inferred.known or name not in self.declared:
            return inferred
        declared = info_of_type(name, self.declared[name], self.bindings)
        dtype, shape = inferred.dtype or declared.dtype, declared.shape
        if dtype not in STORED or name not in self.read or 0 in (shape or ()):
            shape = None
        return TensorInfo(name, dtype, shape if inferred.shape is None else inferred.shape)

    def _output(self, value: onnx.ValueInfoProto) -> TensorInfo:
        name = value.name
        if name not in self.tensors:
            raise ModelError(f"output '{name}' of '{self.name}' is not computed by any node")
        if value.type.WhichOneof("value") not in (None, "tensor_type"):
            self._held(value, "output")
        return self.tensors[name]

    def _held(self, value: onnx.ValueInfoProto, what: str) -> TensorInfo:
        """A sequence or an optional value, which only the host touches."""
        info = info_of_type(value.name, value.type, self.bindings)
        if not is_value_type(info.dtype):
            raise ModelError(
                f"{what} '{value.name}' of '{self.name}' is neither a tensor, a sequence nor an "
                "optional value of those; export the model without it"
            )
        return info


def _constant(name: str, value: NDArray[Any]) -> Node:
    """A node that gives texts: only numbers lie among the weights."""
    return Node("Constant", (), (name,), name, attributes=attributes_of(value=value))
