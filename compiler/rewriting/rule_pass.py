"""`RulePass`: the one loop in which passes look at a graph's nodes, and the rules that they are.

A rule is a method of a pass that `rule` marks with the nodes it is asked of. It looks at what is
around a node and changes the graph through the `Rewriter`, or leaves both as they are.

    class FoldPadding(RulePass):
        @rule("Conv")
        def _fold(self, rewriter: Rewriter, node: Node) -> None: ...

Invariants: nodes are visited in topological order, those that rules put there after all others; a
node that a rule removed is not visited any more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.rewrite import Rewriter

Method = TypeVar("Method", bound=Callable[..., None])

_MARK = "rule_for"


def rule(*signatures: str) -> Callable[[Method], Method]:
    """Mark a method as the rule for nodes of these signatures (`Node.signature`)."""

    def mark(method: Method) -> Method:
        setattr(method, _MARK, signatures)
        return method

    return mark


@dataclass(frozen=True)
class RulePass(Pass):
    """A pass that asks its rules of one node after the other.

    Attributes:
        revisits: whether nodes that rules put there are visited, too.
    """

    revisits: ClassVar[bool] = True
    _rules: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        own = {s: name for name, m in vars(cls).items() for s in getattr(m, _MARK, ())}
        cls._rules = {**cls._rules, **own}

    def run(self, graph: Graph) -> Graph:
        asks_all = type(self).visit is not RulePass.visit
        if not asks_all and not any(node.signature in self._rules for node in graph.nodes):
            return graph
        rewriter = Rewriter(graph)
        for node in rewriter.nodes() if self.revisits else graph.nodes:
            alive = self.revisits or not rewriter.changed or rewriter.alive(node)
            if alive and (asks_all or node.signature in self._rules):
                self.visit(rewriter, node)
        return rewriter.finish()

    def visit(self, rewriter: Rewriter, node: Node) -> None:
        """Ask the rule of a node, if there is one."""
        method = self._rules.get(node.signature)
        if method is not None and self.applies(rewriter, node):
            getattr(self, method)(rewriter, node)

    def applies(self, rewriter: Rewriter, node: Node) -> bool:
        """What all rules of the pass ask of a node first."""
        return True
