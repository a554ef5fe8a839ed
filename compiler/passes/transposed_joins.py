"""Transposes on both sides of a Concat or of a value's only reader cancel.

Exporters write an assignment to columns as: transpose, assign rows, transpose back.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilesmith.compiler.graph.graph import Graph, Node, attributes_of
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.rewrite import Rewriter


@dataclass(frozen=True)
class TransposeInside(Pass):
    """A transposed Concat of transposed parts is a Concat of the parts.

        y = Transpose(Concat(Transpose(a, p), Transpose(b, p), axis=0), q)     before
        y = Concat(a, b, axis=p[0])                       where q undoes p     after

    Contract: any graph in; same values out. Only where the permutations cancel and nobody else
    reads the Concat: work is never added.
    """

    name = "transpose-inside"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        for node in rewriter.nodes():
            if node.is_onnx("Transpose"):
                _cancel(rewriter, node)
        return rewriter.finish()


def _cancel(rewriter: Rewriter, node: Node) -> None:
    join = rewriter.producer(node.inputs[0])
    if join is None or not join.is_onnx("Concat") or rewriter.only_consumer(join.writes[0]) is None:
        return
    order = node.attribute("perm")
    if order is None:
        return
    inverse = tuple(sorted(range(len(order)), key=order.__getitem__))
    parts = [_untransposed(rewriter, name, inverse) for name in join.inputs]
    sources = tuple(part for part in parts if part is not None)
    if len(sources) < len(parts):
        return
    axis = inverse[int(join.attribute("axis", 0)) % len(order)]
    attributes = attributes_of(axis=axis)
    rewriter.replace(
        [join, node], Node("Concat", sources, node.outputs, join.name, attributes=attributes)
    )


def _untransposed(rewriter: Rewriter, name: str, order: tuple[int, ...]) -> str | None:
    """What `Transpose(x, order)` of gives `name`; None if it is no such transpose."""
    value = rewriter.constant(name)
    if value is not None:
        back = tuple(sorted(range(len(order)), key=order.__getitem__))
        dtype = rewriter.info(name).dtype
        return rewriter.add_constant(name, value.transpose(back).copy(), dtype)
    before = rewriter.producer(name)
    if before is None or not before.is_onnx("Transpose"):
        return None
    return before.inputs[0] if tuple(before.attribute("perm") or ()) == order else None
