"""Regions as graphs of ONNX: the bodies of `Loop` and the branches of `If`.

Invariant: a body reads what lies outside by name; small constants are its own.
"""

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilesmith.capabilities.stablehlo.builder import GraphBuilder, TensorValue
from tilesmith.compiler.graph.graph import Node, Subgraph
from tilesmith.compiler.host.nodes import node_proto
from tilesmith.compiler.onnx.inference.inference import type_of_info

_OWN = 4096
"""Bytes up to which a constant is the body's own."""


def body_of(
    b: GraphBuilder,
    name: str,
    inputs: Sequence[TensorValue],
    nodes: list[Node],
    outputs: Sequence[TensorValue],
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


Turn = Callable[
    [TensorValue, TensorValue, list[TensorValue]], tuple[TensorValue, Sequence[TensorValue]]
]
"""A turn of a loop: of its number, a flag that is true and what is carried, whether there is to be
another and what is carried on."""


def looped(
    b: GraphBuilder,
    turns: int | None,
    start: TensorValue | None,
    initial: Sequence[TensorValue],
    turn: Turn,
) -> tuple[TensorValue, ...]:
    """`Loop`: what is carried after all turns.

    Args:
        turns: how many, where that is known; else they go on as `start` and each turn say.
    """
    place = b.place
    counted = b.constant(np.array(turns, np.int64)).name if turns is not None else ""
    with b.scope() as nodes:
        number = b.declare(b.name("turn"), "int64", ())
        go_on = b.declare(b.name("go_on"), "bool", ())
        carried = [b.declare(b.name("carried"), v.dtype, v.shape) for v in initial]
        goes, changed = turn(number, go_on, carried)
        body, captures = body_of(b, "body", [number, go_on, *carried], nodes, [goes, *changed])
    b.place = place
    inputs = [counted, "" if start is None else start.name, *(b.full(v).name for v in initial)]
    shapes = [(value.dtype, value.shape) for value in initial]
    return b.add_many("Loop", inputs, shapes, captures, body=body)


def _declared(b: GraphBuilder, name: str) -> onnx.ValueInfoProto:
    return helper.make_value_info(name, type_of_info(b.tensors[name]))
