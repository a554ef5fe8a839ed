"""Views: operators that move no byte cost nothing, and passes look through them."""

from dataclasses import dataclass
from typing import TypeGuard

from tilesmith.compiler.graph.access import permutation
from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, VIEW, Node, view
from tilesmith.compiler.graph.operator_traits import having
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule


def is_view(node: Node | None) -> TypeGuard[Node]:
    return node is not None and node.domain == INTERNAL_DOMAIN and node.operator == VIEW


def behind_views(rewriter: Rewriter, name: str) -> str:
    """The tensor that views show as `name`, as a whole."""
    while is_view(node := rewriter.producer(name)) and not node.attribute("offset", 0):
        name = node.inputs[0]
    return name


@dataclass(frozen=True)
class MakeViews(RulePass):
    """Operators that move no byte become views, and views of views one view.

        y = Reshape(x, shape); z = Squeeze(y)     before
        z = View(x)                               after

    Covers Reshape, Flatten, Squeeze, Unsqueeze, Expand and Transpose that move no element, and
    Identity; a view that changes nothing at all disappears.

    Contract: any graph in; out, none of those operators is left where the shapes are known.
    """

    name = "make-views"

    @rule(*having("reshapes"), "Expand", "Transpose")
    def _view(self, rewriter: Rewriter, node: Node) -> None:
        if not node.input(0):
            return
        source, result = rewriter.info(node.inputs[0]), rewriter.info(node.writes[0])
        if not source.known or not result.known or source.elements != result.elements:
            return  # the host refuses what does not fit when it runs it
        if node.operator == "Transpose":
            order = permutation(node, len(source.dims))
            moving = [axis for axis in order if source.dims[axis] > 1]
            if moving != sorted(moving):
                return
        self._simplify(rewriter, node)

    @rule("tilesmith.View")
    def _simplify(self, rewriter: Rewriter, node: Node) -> None:
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
