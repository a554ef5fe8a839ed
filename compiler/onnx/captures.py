"""Names in the bodies of control flow: what they take from around them, and bodies without names.

An ONNX `If`, `Loop` or `Scan` lists only its own operands as inputs; its bodies may read any tensor
in scope besides.
"""

from collections.abc import Iterable

import onnx

from tilesmith.compiler.graph.sources import source_name


def captures(proto: onnx.NodeProto) -> tuple[str, ...]:
    """Outer tensors that a node's subgraphs read by name, in the order they are read."""
    names: dict[str, None] = {}
    for attribute in proto.attribute:
        if attribute.HasField("g"):
            names.update(dict.fromkeys(free_names(attribute.g)))
    return tuple(name for name in names if name not in proto.input)


def free_names(graph: onnx.GraphProto) -> Iterable[str]:
    """Tensors of the model around it that a body reads, as often as it does."""
    bound = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    for node in graph.node:
        for name in (*node.input, *captures(node)):
            if name and name not in bound:
                yield name
        bound.update(node.output)
    yield from (v.name for v in graph.output if v.name not in bound)


def nameless(graph: onnx.GraphProto) -> tuple[bytes, tuple[str, ...]]:
    """A body's bytes with its names numbered, and what its nodes were called.

    Bodies with equal bytes differ in names alone: tensors of the same number are read and written
    at the same places.
    """
    copy, numbers, nodes = onnx.GraphProto(), {"": ""}, list[str]()
    copy.CopyFrom(graph)
    _number(copy, numbers, nodes)
    return copy.SerializeToString(deterministic=True), tuple(nodes)


def _number(graph: onnx.GraphProto, numbers: dict[str, str], nodes: list[str]) -> None:
    """Give every tensor a number for a name, and nodes none."""

    def number(name: str) -> str:
        return numbers.setdefault(name, str(len(numbers)))

    for field in ("name", "doc_string", "quantization_annotation", "metadata_props"):
        graph.ClearField(field)
    sparse = (tensor.values for tensor in graph.sparse_initializer)
    for held in (*graph.input, *graph.output, *graph.value_info, *graph.initializer, *sparse):
        held.name = number(held.name)
        held.ClearField("doc_string")
    for node in graph.node:
        nodes.append(source_name(node.name, node.output))
        for field in ("name", "doc_string", "metadata_props"):
            node.ClearField(field)
        node.input[:] = map(number, node.input)
        node.output[:] = map(number, node.output)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _number(attribute.g, numbers, nodes)
