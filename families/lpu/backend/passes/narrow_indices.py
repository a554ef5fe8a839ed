"""Row numbers of 64 bits are handed over as 32: what a table on the chip is read with.

y = Kernel(gather ... index=int64)(table, ids: int64)                  before
y = Kernel(gather ... index=int32)(table, ids: int32, int64 outside)   after
"""

from dataclasses import dataclass, replace

import numpy as np

from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.workloads.scheduler import is_scheduled
from tilesmith.search_space.workloads.workload import Workload

WIDE, NARROW = "int64", "int32"


@dataclass(frozen=True)
class NarrowIndices(Pass):
    """See the module's docstring. The host copies a model's inputs to the chip anyhow.

    Contract: a lowered graph in, the same values out; numbers of rows, which kernels check to be in
    range, become int32 where kernels alone hold them so, and are among the graph's `converted`.
    """

    name = "narrow-indices"

    target: Target

    def run(self, graph: Graph) -> Graph:
        roots = {
            node: root
            for node in graph.nodes
            if (changed := _narrowed(node)) is not None
            and is_scheduled(changed, self.target)
            and (root := _root(graph, node.inputs[1])) is not None
        }
        if not roots:
            return graph
        rewriter = Rewriter(graph)
        converted = dict(graph.converted)
        for root in dict.fromkeys(roots.values()):
            for name in _seen_as(graph, root):
                info = rewriter.info(name)
                rewriter.tensors[name] = replace(info, dtype=NARROW)
                if name in rewriter.constants:
                    rewriter.constants[name] = rewriter.constants[name].astype(np.int32)
                else:
                    converted[name] = WIDE
        for node in roots:
            rewriter.replace(node, replace(node, workload=_narrowed(node)))
        return rewriter.finish().with_(converted=converted)


def _narrowed(node: Node) -> Workload | None:
    """A gather's workload with narrow row numbers."""
    workload = node.workload
    if workload is None or workload.operator != "gather" or workload.text("index") != WIDE:
        return None
    return workload.with_parameters(index=NARROW)


def _root(graph: Graph, name: str) -> str | None:
    """The tensor that numbers are a view of; None where a kernel makes them, or reads them too."""
    maker = graph.producers.get(name)
    while maker is not None and maker.kind == "view":
        name = maker.inputs[0]
        maker = graph.producers.get(name)
    if maker is not None and maker.kind != "host":
        return None
    readers = (n for seen in _seen_as(graph, name) for n in graph.consumers.get(seen, ()))
    others = ("view",) if name in graph.constants else ("view", "host")
    apart = all(n.kind in others or _narrowed(n) is not None for n in readers)
    return name if apart and graph.info(name).dtype == WIDE else None


def _seen_as(graph: Graph, name: str) -> set[str]:
    """A tensor and all views of it, of views too."""
    views = [n.writes[0] for n in graph.consumers.get(name, ()) if n.kind == "view"]
    return {name}.union(*(_seen_as(graph, view) for view in views))
