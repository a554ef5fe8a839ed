"""Regions as graphs of ONNX: the bodies of `Loop` and the branches of `If`.

Invariant: a body reads what lies outside by name; small constants are its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper, numpy_helper

from tilesmith.compiler.graph import Node, Subgraph
from tilesmith.compiler.host.nodes import node_proto
from tilesmith.compiler.onnx.inference import type_of_info
from tilesmith.compiler.stablehlo.builder import Builder, Value

_OWN = 4096
"""Bytes up to which a constant is the body's own."""


def body_of(
    b: Builder, name: str, inputs: Sequence[Value], nodes: list[Node], outputs: Sequence[Value]
) -> tuple[Subgraph, tuple[str, ...]]:
    """A body, and the tensors outside that it reads.

    Args:
        nodes: what it computes; more are added, to give its outputs names of their own.
    """
    given = []
    for value in outputs:
        result = b.declare(b.name("output"), value.dtype, value.shape)
        nodes.append(Node("Identity", (b.full(value).name,), (result.name,), result.name))
        given.append(result.name)
    written = {own for node in nodes for own in node.writes} | {value.name for value in inputs}
    reads = dict.fromkeys(r for node in nodes for r in node.reads if r not in written)
    own = [r for r in reads if r in b.constants and b.constants[r].nbytes <= _OWN]
    graph = helper.make_graph(
        [node_proto(node, dict(b.opsets)) for node in nodes],
        name,
        [_declared(b, value.name) for value in inputs],
        [_declared(b, result) for result in given],
        [numpy_helper.from_array(b.constants[r], r) for r in own],
    )
    return Subgraph(graph.SerializeToString()), tuple(r for r in reads if r not in own)


def _declared(b: Builder, name: str) -> onnx.ValueInfoProto:
    return helper.make_value_info(name, type_of_info(b.tensors[name]))
