"""Running sums as products with a triangle of ones.

    y = Kernel(cumulative_sum shape=OxKxT axis=1)(x)        y[o] = ones[i, j] (j <= i) x[o]
    y = Kernel(cumulative_sum shape=OxK axis=1)(x)          y = x ones[j, i] (j <= i)

What is added one by one elsewhere is one pass of MXM: sums are of float32, rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilesmith.compiler.graph import Graph, Node, kernel
from tilesmith.compiler.graph_pass import Pass
from tilesmith.compiler.rewrite import Rewriter
from tilesmith.search_space.dtypes import is_floating
from tilesmith.search_space.flattening import product
from tilesmith.search_space.workload import ParameterValue, Workload

LONGEST = 4096
"""Elements that are added up at most: a triangle of more would take a seventh of MEM."""


@dataclass(frozen=True)
class RunningSumsAsProducts(Pass):
    """See the module's docstring.

    Contract: a lowered graph in; out, the same values up to roundings. Sums of whole numbers stay.
    """

    name = "running-sums-as-products"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        for node in graph.nodes:
            if node.workload is not None and _is_short(node.workload):
                rewriter.replace(node, _product(rewriter, node, node.workload))
        return rewriter.finish()


def _is_short(workload: Workload) -> bool:
    if workload.operator != "cumulative_sum" or not is_floating(workload.dtype):
        return False
    return workload.shape("shape")[workload.integer("axis")] <= LONGEST


def _product(rewriter: Rewriter, node: Node, workload: Workload) -> Node:
    shape, at = workload.shape("shape"), workload.integer("axis")
    before, count, behind = product(shape[:at]), shape[at], product(shape[at + 1 :])
    ones = np.tri(count, k=-workload.integer("exclusive"), dtype=np.float32)
    ones = ones[::-1, ::-1] if workload.integer("reverse") else ones
    parameters: dict[str, ParameterValue] = {"m": before, "n": count, "k": count}
    if behind > 1:
        parameters = {"m": count, "n": behind, "k": count, "batch": before}
        ones = np.broadcast_to(ones, (before, count, count)) if before > 1 else ones
    else:
        parameters["tb"] = 1
    held = rewriter.add_constant(f"{node.writes[0]}.ones", ones.copy(), workload.dtype)
    operands = (held, node.inputs[0]) if behind > 1 else (node.inputs[0], held)
    constants = ("a",) if behind > 1 else ("b",)
    made = Workload.of("matmul", parameters, dtype=workload.dtype, constants=constants)
    return kernel(made, operands, node.writes[0], node.name)
