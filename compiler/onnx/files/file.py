"""ONNX files: reading, checking, and bringing to one form what the importer would meet in several.

Every fault of a file becomes a `ModelError` of one sentence. Invariants of what it returns: valid
ONNX but for weights, which are checked when they are read; no model-local functions; only operators
of ONNX; an opset whose arithmetic broadcasts as numpy does.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import helper, inliner, version_converter

from tilesmith.compiler.graph.sources import source_name
from tilesmith.compiler.onnx.files.arrays import ArrayReader, one_line
from tilesmith.compiler.onnx.files.functions import check_functions
from tilesmith.compiler.onnx.files.mapped import read_mapped
from tilesmith.compiler.rewriting.expansion import OPTIMISERS, expansion_of
from tilesmith.search_space.support.errors import ModelError

_FIRST_OPSET = 7
"""The first whose arithmetic broadcasts as numpy does; older models are converted."""

_MODERN_OPSET = 10
"""What they are converted to: from 11 on the converter gives every Clip bounds of float32."""


@dataclass(frozen=True)
class ModelFile:
    """A model as read.

    Attributes:
        proto: the model.
        folder: where its weights may lie in files of their own; None for a model from memory.
        name: for messages.
        held: weights in memory, of initialisers that `arrays.typed_only` made, and those that were
            left in the file (`mapped`).
    """

    proto: onnx.ModelProto
    folder: Path | None
    name: str
    held: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def read_model(model: str | Path | onnx.ModelProto) -> ModelFile:
    """Read and check a model.

    Raises:
        ModelError: the file is missing, truncated, not ONNX or invalid, or its opset is too old to
            be converted.
    """
    proto, folder, name, held = _load(model)
    check_texts(proto, name)
    proto = _inline(proto, name)
    _check(proto, folder, name)
    return ModelFile(_modern(proto, name), folder, name, held)


def parsed(path: Path) -> tuple[onnx.ModelProto, Mapping[str, NDArray[Any]]]:
    """A model's file as it is, and weights that were left in it.

    Raises:
        OSError: the file cannot be read.
        Exception: whatever protobuf raises for bytes that it cannot read.
    """
    content, held = read_mapped(path)
    proto = onnx.ModelProto()
    proto.ParseFromString(content)
    if held and (proto.functions or opset_of(proto) < _FIRST_OPSET):
        # Converters of ONNX's want the values, too.
        proto, held = onnx.ModelProto(), {}
        proto.ParseFromString(path.read_bytes())
    return proto, held


def weight_files(path: Path) -> list[Path]:
    """Files beside a model's that hold weights, those of bodies included; errors as `parsed`."""
    files, graphs = dict[Path, None](), [parsed(path)[0].graph]
    for graph in graphs:
        tensors = list(graph.initializer)
        for attribute in (one for node in graph.node for one in node.attribute):
            tensors += [attribute.t, *attribute.tensors]
            graphs += [attribute.g, *attribute.graphs]
        for entry in (entry for tensor in tensors for entry in tensor.external_data):
            if entry.key == "location":
                files[path.parent / entry.value] = None
    return list(files)


def _load(
    model: str | Path | onnx.ModelProto,
) -> tuple[onnx.ModelProto, Path | None, str, Mapping[str, NDArray[Any]]]:
    if isinstance(model, onnx.ModelProto):
        return model, None, model.graph.name or "model", {}
    path = Path(model)
    if not path.exists():
        meant = "; an operator is given with --op" if "=" in path.name else ""
        raise ModelError(f"model file '{path}' does not exist{meant}")
    try:
        proto, held = parsed(path)
    except OSError as error:
        raise ModelError(f"model file '{path}' cannot be read: {error.strerror}") from error
    except Exception as error:  # whatever protobuf raises for bytes it cannot read
        raise ModelError(f"'{path}' is not an ONNX model, or it is truncated") from error
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelError(f"'{path}' is not an ONNX model, or it is truncated (no graph in it)")
    if not proto.graph.node:
        raise ModelError(f"'{path}' has no operators, so there is nothing to compile")
    return proto, path.resolve().parent, path.name, held


def _inline(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    if not proto.functions:
        return proto
    check_functions(proto, name)
    try:
        return inliner.inline_local_functions(proto)
    except Exception as error:
        raise ModelError(
            f"the functions of '{name}' cannot be inlined: {one_line(error)}"
        ) from error


def _check(proto: onnx.ModelProto, folder: Path | None, name: str) -> None:
    try:
        _check_operators(proto, name)
        bare = _without_weights(proto)
        ArrayReader(folder, name).embed(bare.graph)
        _check_deprecated(bare)
        _hide_expanded(bare)
        onnx.checker.check_model(bare)
    except (onnx.checker.ValidationError, ValueError, TypeError) as error:
        raise ModelError(f"'{name}' is not a valid ONNX model: {one_line(error)}") from error


def _check_deprecated(bare: onnx.ModelProto) -> None:
    """Check operators by themselves that models have in a form of another opset, and put what is no
    fault in their place.

    GroupNormalization of opsets 18 to 20 is deprecated, for its scale of one number a group, and
    the checker takes that for unknown; exporters write it, and its attributes and inputs are those
    of opset 21. QuantizeLinear and DequantizeLinear have an axis from opset 13 on, and ONNX
    Runtime's quantiser writes one at earlier opsets, too.
    """
    version = max((e.version for e in bare.opset_import if e.domain in ("", "ai.onnx")), default=0)
    for node in list(_nodes(bare.graph)):
        last = _OF_OTHER_OPSETS.get(node.op_type, 0)
        if version < last and node.domain in ("", "ai.onnx"):
            context = onnx.checker.C.CheckerContext()
            context.ir_version, context.opset_imports = bare.ir_version, {"": last}
            onnx.checker.check_node(node, context)
            node.CopyFrom(helper.make_node("Identity", node.input[:1], node.output, node.name))


_OF_OTHER_OPSETS = {"GroupNormalization": 21, "QuantizeLinear": 13, "DequantizeLinear": 13}
"""Operators that models of earlier opsets have in the form of the one given."""


def _hide_expanded(bare: onnx.ModelProto) -> None:
    """Let the checker take operators for another domain's that ONNX has at later opsets only, or
    not at all: they are written as others when they are read (`compiler.rewriting.expansion`)."""
    version = max((e.version for e in bare.opset_import if e.domain in ("", "ai.onnx")), default=1)
    for node in _nodes(bare.graph):
        if node.domain in ("", "ai.onnx") and expansion_of(node.op_type, "", version):
            node.domain = OPTIMISERS
    if OPTIMISERS not in {e.domain for e in bare.opset_import}:
        bare.opset_import.append(helper.make_opsetid(OPTIMISERS, 1))


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Every node, those of bodies included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _check_operators(proto: onnx.ModelProto, name: str) -> None:
    opsets = {e.domain: e.version for e in proto.opset_import}
    newest = onnx.defs.onnx_opset_version()
    version = max(opsets.get("", 0), opsets.get("ai.onnx", 0))
    if version > newest:
        raise ModelError(
            f"'{name}' is of opset {version}, and this installation knows ONNX up to opset "
            f"{newest}; update the package 'onnx', or export the model with an older opset"
        )
    for node in _nodes(proto.graph):
        known = onnx.defs.has(node.op_type, opsets.get(node.domain, 1), node.domain)
        if node.domain not in ("", "ai.onnx") and not known:
            if expansion_of(node.op_type, node.domain, version) is not None:
                continue
            raise ModelError(
                f"node '{source_name(node.name, node.output)}' of '{name}' uses {node.domain}."
                f"{node.op_type}, which is not part of ONNX; export the model without it"
            )


def _modern(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Models of opsets whose operators broadcast by attributes, brought to one that needs none."""
    return at_opset(proto, _MODERN_OPSET, name) if opset_of(proto) < _FIRST_OPSET else proto


def opset_of(proto: onnx.ModelProto) -> int:
    """The version of ONNX's own operators; without any, newer than all."""
    versions = (e.version for e in proto.opset_import if e.domain in ("", "ai.onnx"))
    return max(versions, default=0) or sys.maxsize


def at_opset(proto: onnx.ModelProto, opset: int, name: str) -> onnx.ModelProto:
    """The model in the operators of another opset.

    Raises:
        ModelError: it cannot be brought there.
    """
    try:
        return version_converter.convert_version(proto, opset)
    except Exception as error:
        raise ModelError(
            f"'{name}' is of opset {opset_of(proto)} and cannot be brought to opset {opset}: "
            f"{one_line(error)}; export it anew"
        ) from error


def _without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its initialisers as inputs: weights are checked when they are read."""
    bare = onnx.ModelProto(ir_version=proto.ir_version)
    bare.opset_import.extend(proto.opset_import)
    graph, source = bare.graph, proto.graph
    graph.name = source.name or "graph"
    for part in ("node", "input", "output", "value_info"):
        getattr(graph, part).extend(getattr(source, part))
    for value in (*graph.input, *graph.output):  # common in exported models, but it wants one
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto())
    graph.sparse_initializer.extend(source.sparse_initializer)
    declared = {value.name for value in source.input}
    for tensor in source.initializer:
        if tensor.name not in declared:
            kind = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            graph.input.append(helper.make_value_info(tensor.name, kind))
    return bare


_BYTES = frozenset({"raw_data", "float_data", "int64_data", "int32_data", "double_data"})


def check_texts(message: Message, model: str) -> None:
    """Refuse a file with a text that is not UTF-8.

    Protocol buffers read a text whatever its bytes are, and each place that looks at it fails in a
    way of its own, or never. So every text of a file is looked at once, right after it was read.
    Weights are passed over: their bytes are no texts, and there may be gigabytes of them.

    Raises:
        ModelError: it has one; the sentence names the field.
    """
    field = _not_utf8(message)
    if field is not None:
        raise ModelError(
            f"'{model}' has a {field} that is not UTF-8; the file may be damaged: export it anew"
        )


def _not_utf8(message: Message) -> str | None:
    try:
        fields = message.ListFields()
    except UnicodeDecodeError:
        return "text"
    for kind, value in fields:
        if kind.name in _BYTES:
            continue
        several = not isinstance(value, Message | str | bytes | int | float)
        if kind.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in value if several else (value,):
                if (wrong := _not_utf8(inner)) is not None:
                    return wrong
        elif kind.type == FieldDescriptor.TYPE_STRING:
            try:
                texts = list(value) if several else [value]
            except UnicodeDecodeError:
                return str(kind.name)
            if any(isinstance(text, bytes) for text in texts):
                return str(kind.name)
    return None
