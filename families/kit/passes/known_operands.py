"""Known operands: all constants can lie in an accelerator's memory as its kernels load them."""

from dataclasses import dataclass, replace

from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.search_space.workloads.template import template_of


@dataclass(frozen=True)
class MarkKnown(Pass):
    """What a kernel reads of the model's constants is marked constant in its workload.

        y = Kernel(matmul ... const=b epilogue=bias)(x, w, c)           before
        y = Kernel(matmul ... const=b,bias0 epilogue=bias)(x, w, c)     after, c being a constant

    On an accelerator biases and factors, too, then lie in memory as the kernel loads them: a row
    that all partitions want comes in one long run.

    Contract: a lowered graph in, the same values out; only workloads change.
    """

    name = "mark-known"

    def run(self, graph: Graph) -> Graph:
        return graph.with_nodes(_marked(graph, node) for node in graph.nodes)


def _marked(graph: Graph, node: Node) -> Node:
    if node.workload is None:
        return node
    operands = template_of(node.workload.operator).operands(node.workload)
    known = {
        operand.name
        for operand, tensor in zip(operands, node.inputs, strict=True)
        if tensor in graph.constants
    }
    constants = tuple(sorted({*node.workload.constants, *known}))
    if constants == node.workload.constants:
        return node
    return replace(node, workload=replace(node.workload, constants=constants))
