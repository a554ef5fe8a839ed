"""Kernels whose sums keep one order whatever the schedule, where the user asks for it."""

from dataclasses import dataclass, replace
from functools import lru_cache

from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.search_space.summation.reading import adds
from tilesmith.search_space.workloads.template import compute_of
from tilesmith.search_space.workloads.workload import Workload


@dataclass(frozen=True)
class SameBits(Pass):
    """Kernels that add rounded numbers do so in one order whatever their schedules are.

        y = Kernel(matmul ...)(x, w)               before
        y = Kernel(matmul ... sums=same)(x, w)     after

    Contract: a lowered graph in, the same values out up to roundings; every workload that adds
    floating-point numbers says `sums=same`, and no other.
    """

    name = "same-bits"

    def run(self, graph: Graph) -> Graph:
        return graph.with_nodes(map(_marked, graph.nodes))


def _marked(node: Node) -> Node:
    changed = None if node.workload is None else with_same_bits(node.workload)
    return node if changed is node.workload else replace(node, workload=changed)


@lru_cache(maxsize=1024)
def with_same_bits(workload: Workload) -> Workload:
    """The workload with `sums=same` if it adds numbers that are rounded, else itself."""
    if workload.sums == "same" or not adds(compute_of(workload)):
        return workload
    return replace(workload, sums="same")
