"""Common subexpressions: what is computed twice from the same tensors is computed once.

Exporters trace what each layer does: positions, masks and rotation angles come out once a layer.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.graph.sources import together
from tilesmith.compiler.host.nodes import foldable
from tilesmith.compiler.rewriting.graph_pass import Pass

_COMPARED = 4096
"""Bytes up to which constants are compared by value."""


@dataclass(frozen=True)
class ShareCommon(Pass):
    """Equal operators on equal operands become one.

        a = Cos(x); b = Cos(x); y = Add(a, b)     before
        a = Cos(x); y = Add(a, a)                 after

    Contract: any graph in; same values out; small constants of equal value count as equal. Random
    operators, bodies of control flow, what these read and graph outputs stay as they are.
    """

    name = "share-common"

    def run(self, graph: Graph) -> Graph:
        kept_names = graph.output_names | {n for node in graph.nodes for n in node.captures}
        renamed = _equal_constants(graph)
        first: dict[Hashable, Node] = {}
        nodes: list[Node] = []
        shared: dict[Node, list[Node]] = {}
        for node in graph.nodes:
            inputs = tuple(renamed.get(name, name) for name in node.inputs)
            if inputs != node.inputs:
                node = replace(node, inputs=inputs)
            same = node
            if _shareable(node) and kept_names.isdisjoint(node.writes):
                same = first.setdefault(_key(graph, node), node)
            if same is node:
                nodes.append(node)
            else:
                renamed |= dict(zip(node.outputs, same.outputs, strict=True))
                shared.setdefault(same, [same]).append(node)
        if len(nodes) == len(graph.nodes):
            return graph
        read = {name for node in nodes for name in node.reads} | graph.output_names
        gone = {name for name in renamed if name not in read}
        return graph.with_(
            nodes=tuple(
                replace(node, sources=together(shared[node])) if node in shared else node
                for node in nodes
            ),
            constants={name: value for name, value in graph.constants.items() if name in read},
            tensors={name: info for name, info in graph.tensors.items() if name not in gone},
        )


def _equal_constants(graph: Graph) -> dict[str, str]:
    """Of each small constant that comes again the first one of its type, shape and bytes."""
    first: dict[Hashable, str] = {}
    equal = {
        name: first.setdefault((graph.info(name).dtype, _comparable(value)), name)
        for name, value in graph.constants.items()
        if value.nbytes <= _COMPARED and value.dtype != object
    }
    return {name: other for name, other in equal.items() if name != other}


def _shareable(node: Node) -> bool:
    """Whether the same node gives the same values each time."""
    if node.kind == "host":
        return foldable(node) and node.operator != "Dropout" and bool(node.writes)
    return node.kind in ("view", "kernel")


def _key(graph: Graph, node: Node) -> Hashable:
    """Equal for nodes that compute the same."""
    attributes = tuple((name, _comparable(value)) for name, value in node.attributes)
    results = tuple((graph.info(n).dtype, graph.info(n).shape) if n else None for n in node.outputs)
    return node.operator, node.domain, node.inputs, attributes, node.workload, results


def _comparable(value: Any) -> Hashable:
    """An attribute's or a constant's value as something that compares by value."""
    if isinstance(value, np.ndarray):
        array: NDArray[Any] = value
        return array.dtype.str, array.shape, array.tobytes()
    return value if isinstance(value, Hashable) else repr(value)
