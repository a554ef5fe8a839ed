"""Dead code elimination: other passes leave behind what nothing reads any more."""

from dataclasses import dataclass, replace

from tilesmith.compiler.graph.graph import CHECK, INTERNAL_DOMAIN, Graph, Node
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.rewrite import Rewriter


@dataclass(frozen=True)
class RemoveDeadCode(Pass):
    """Nodes, and optional outputs, that nothing reads go.

        a, b = f(x); c = g(b)     before: only a is used
        a, "" = f(x)              after

    Checks of what the model declares stay: others may have relied on them and read nothing.

    Contract: any graph in; out, every node and every named output of a node is needed by a graph
    output or by a check.
    """

    name = "remove-dead-code"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        for node in reversed(graph.nodes):
            used = [name for name in node.writes if _used(rewriter, name)]
            if node.operator == CHECK and node.domain == INTERNAL_DOMAIN:
                continue
            if not used:
                rewriter.remove(node)
            elif len(used) < len(node.writes):
                _drop_outputs(rewriter, node, set(used))
        return rewriter.finish()


def _used(rewriter: Rewriter, name: str) -> bool:
    return rewriter.is_output(name) or bool(rewriter.consumers(name))


def _drop_outputs(rewriter: Rewriter, node: Node, used: set[str]) -> None:
    """Forget unused trailing outputs: those ONNX lets a node leave out."""
    outputs = list(node.outputs)
    while outputs and outputs[-1] not in used:
        outputs.pop()
    optional = node.is_onnx("Dropout", "BatchNormalization", "MaxPool", "LayerNormalization")
    if optional and len(outputs) < len(node.outputs):
        rewriter.replace(node, replace(node, outputs=tuple(outputs)))
