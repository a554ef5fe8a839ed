"""Views: operators that move no byte cost nothing, and passes look through them."""

from __future__ import annotations

from dataclasses import dataclass

from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, VIEW, Graph, Node, view
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.rewrite import Rewriter

_SHAPE_ONLY = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def is_view(node: Node | None) -> bool:
    return node is not None and node.domain == INTERNAL_DOMAIN and node.operator == VIEW


@dataclass(frozen=True)
class MakeViews(Pass):
    """Operators that move no byte become views, and views of views one view.

        y = Reshape(x, shape); z = Squeeze(y)     before
        z = View(x)                               after

    Covers Reshape, Flatten, Squeeze, Unsqueeze, Expand and Transpose that move no element, and
    Identity; a view that changes nothing at all disappears.

    Contract: any graph in; out, none of those operators is left where the shapes are known.
    """

    name = "make-views"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        for node in rewriter.nodes():
            if is_view(node) or _moves_nothing(rewriter, node):
                _simplify(rewriter, node)
        return rewriter.finish()


def _moves_nothing(rewriter: Rewriter, node: Node) -> bool:
    if not node.input(0) or len(node.writes) != 1:
        return False
    source, result = rewriter.info(node.inputs[0]), rewriter.info(node.writes[0])
    if not source.known or not result.known:
        return False
    if node.is_onnx(*_SHAPE_ONLY, "Expand"):
        return source.elements == result.elements  # the host refuses others when it runs them
    if node.is_onnx("Transpose"):
        order = node.attribute("perm") or tuple(reversed(range(len(source.dims))))
        moving = [axis for axis in order if source.dims[axis] > 1]
        return moving == sorted(moving)
    return False


def _simplify(rewriter: Rewriter, node: Node) -> None:
    source, result = node.inputs[0], node.writes[0]
    offset = int(node.attribute("offset", 0))
    before = rewriter.producer(source)
    if before is not None and is_view(before):
        offset += int(before.attribute("offset", 0))
        source = before.inputs[0]
    same = rewriter.info(source).shape == rewriter.info(result).shape
    if same and offset == 0 and rewriter.bypass(node, source):
        return
    if source != node.inputs[0] or not is_view(node):
        rewriter.replace(node, view(source, result, node.name, offset))
