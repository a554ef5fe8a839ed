"""Known operands: what a kernel reads of the model's constants is marked constant in its workload.

    y = Kernel(matmul ... const=b epilogue=bias)(x, w, c)           before
    y = Kernel(matmul ... const=b,bias0 epilogue=bias)(x, w, c)     after, where c is a constant

On an accelerator every constant can lie in memory as the kernel loads it, biases and factors too: a
row that all partitions want then comes in one long run. Contract: a lowered graph in, the same
values out; only workloads change.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.compiler.graph import Graph, Node
from tilesmith.search_space.template import template_of


def mark_known(graph: Graph) -> Graph:
    """The graph with all constant operands of its kernels marked."""
    return graph.with_(nodes=tuple(_marked(graph, node) for node in graph.nodes))


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
    return replace(node, workload=replace(node.workload, constants=constants))
