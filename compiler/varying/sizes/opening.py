"""The part of a model that passes work on, at one choice of sizes: data, with the rest given.

    mask = Where(LessOrEqual(...), 0, -inf)      before: a constant at every size, never the same
    input mask                                   after: given to the graph, computed once for a size

Tensors that follow from the sizes become constants where they are the same at every size, or where
a node has to know them (the shape of a Reshape, whose numbers become formulas later on), and inputs
of the graph elsewhere: what passes must not fold. Invariant: same values.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Graph, Node, TensorInfo
from tilesmith.compiler.varying.sizes.snapshot import Snapshot, is_structure
from tilesmith.search_space.support.errors import ModelError


def opened(snapshot: Snapshot, varies: Set[str]) -> Graph:
    """The graph that passes work on.

    Args:
        varies: tensors of the frontier that differ from size to size.

    Raises:
        ModelError: a shape follows from the sizes that cannot be computed.
    """
    graph = snapshot.graph
    tensors = dict(graph.tensors)
    constants = {n: v for n, v in snapshot.imported.values.items() if n in graph.constants}
    given: dict[str, TensorInfo] = {}
    nodes: list[Node] = []
    for node in snapshot.data:
        reads = list(node.inputs)
        for position, name in enumerate(node.inputs):
            if name not in snapshot.sized:
                continue
            if name not in varies or is_structure(node, position, snapshot):
                own = f"{name}.known" if name in varies else name
                constants[own] = _value(snapshot, name)
                tensors[own] = replace(graph.tensors[name], name=own)
                reads[position] = own
            else:
                given[name] = graph.tensors[name]
        given |= {n: graph.tensors[n] for n in node.captures if n in snapshot.sized}
        nodes.append(node if tuple(reads) == node.inputs else replace(node, inputs=tuple(reads)))
    for info in graph.outputs:
        if info.name in snapshot.sized:
            given[info.name] = info
    named = {name for node in nodes for name in (*node.reads, *node.writes)} | {*given}
    named |= {info.name for info in (*graph.inputs, *graph.outputs)}
    return graph.with_(
        inputs=(*graph.inputs, *given.values()),
        nodes=tuple(nodes),
        constants={name: v for name, v in constants.items() if name in named - given.keys()},
        tensors={name: info for name, info in tensors.items() if name in named},
    )


def _value(snapshot: Snapshot, name: str) -> NDArray[np.generic]:
    array = snapshot.value(name)
    if array is None:
        raise ModelError(
            f"'{name}' of '{snapshot.graph.name}' decides about shapes and cannot be computed of "
            "the sizes alone; compile the model for one size of each"
        )
    return array
