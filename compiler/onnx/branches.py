"""Branches of an `If` whose condition is known: the chosen one's nodes, as if they stood outside.

Exporters write an `If` for what depends on a shape; where shapes are known, so is its branch.
Invariant: names a branch makes are its own, so they are given new ones (two branches may share
names); names from outside are kept, in graphs inside the branch too.
"""

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper


def chosen(
    node: onnx.NodeProto, values: Mapping[str, NDArray[np.generic]]
) -> onnx.GraphProto | None:
    """The branch that an `If` takes; None where only running the model can tell, or for others."""
    if node.op_type != "If" or node.domain not in ("", "ai.onnx") or len(node.input) != 1:
        return None
    condition = values.get(node.input[0])
    if condition is None or condition.size != 1:
        return None
    wanted = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
    graphs = (a.g for a in node.attribute if a.name == wanted and a.HasField("g"))
    branch = next(graphs, None)
    return branch if branch is not None and len(branch.output) == len(node.output) else None


def opened(
    node: onnx.NodeProto, branch: onnx.GraphProto, unused: Callable[[str], str]
) -> onnx.GraphProto:
    """A branch whose outputs are the node's, by `Identity`, and whose other names are new.

    Args:
        unused: makes a name that nothing has out of one.
    """
    own = [t.name for t in branch.initializer]
    own += [sparse.values.name for sparse in branch.sparse_initializer]
    own += [name for inner in branch.node for name in inner.output if name]
    names = {name: unused(name) for name in dict.fromkeys(own)}
    graph = onnx.GraphProto()
    graph.CopyFrom(branch)
    _rename(graph, names)
    for tensor in graph.initializer:
        tensor.name = names[tensor.name]
    for sparse in graph.sparse_initializer:
        sparse.values.name = names[sparse.values.name]
    for value, name in zip(branch.output, node.output, strict=True):
        if name:
            source = names.get(value.name, value.name)
            graph.node.append(helper.make_node("Identity", [source], [name], name=node.name))
    return graph


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Give tensors of a graph, and of graphs inside, new names."""
    for node in graph.node:
        for own in (node.input, node.output):
            for position, name in enumerate(own):
                own[position] = names.get(name, name)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, names)
    for value in graph.output:
        value.name = names.get(value.name, value.name)
