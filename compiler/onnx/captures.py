"""Names that the bodies of control flow take from the graph around them.

An ONNX `If`, `Loop` or `Scan` lists only its own operands as inputs; its bodies may read any tensor
in scope besides.
"""

from collections.abc import Iterable

import onnx


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
