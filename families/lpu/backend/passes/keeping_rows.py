"""Graphs of kernels as rows of lanes want them: last axes by themselves, images concatenated.

    y = Kernel(elementwise shape=32768 ...)(x)          y = Kernel(elementwise shape=64x512 ...)(x)
    y = Join(a, b), images of several channels          y = Kernel(concat axis=1 ...)(a, b)

Elsewhere memory has no rows, and axes merge as far as they can. Here a tensor's last axis lies
across the lanes, so that merged ones are other rows, into which everything would have to be cut
(`recutting`). A join that computes images where their channels lie holds them to the plain layout;
as a kernel it takes them as convolutions leave them.
"""

from dataclasses import dataclass, replace

from tilesmith.compiler.graph.graph import Graph, Node, kernel
from tilesmith.compiler.passes.elementwise import elementwise_workload, formula_in, is_elementwise
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload, shape_text


@dataclass(frozen=True)
class KeepRows(Pass):
    """See the module's docstring.

    Contract: a lowered graph in, the same values out; only workloads change, and joins.
    """

    name = "keep-rows"

    def run(self, graph: Graph) -> Graph:
        return graph.with_nodes(_kept(graph, node) for node in graph.nodes)


def _kept(graph: Graph, node: Node) -> Node:
    if is_elementwise(node):
        return _elementwise(graph, node)
    return _concatenated(graph, node) if node.kind == "join" else node


def _elementwise(graph: Graph, node: Node) -> Node:
    workload = node.work
    operands = template_of(workload.operator).operands(workload)
    dtypes = (workload.dtype, *(operand.dtype for operand in operands))
    shapes = [graph.info(name).dims for name in node.inputs]
    dims = graph.info(node.writes[0]).dims
    changed = elementwise_workload(formula_in(workload), shapes, dims, dtypes, rows=True)
    return replace(node, workload=replace(changed, constants=workload.constants))


def _concatenated(graph: Graph, node: Node) -> Node:
    """A join of channels as a kernel; others stay."""
    info = graph.info(node.writes[0])
    shapes = [graph.info(name).dims for name in node.inputs]
    images = len(info.dims) == 4 and min(info.dims) >= 1 and info.dims[2] * info.dims[3] > 1
    if not images or any(len(s) != 4 or s[2:] != info.dims[2:] for s in shapes):
        return node
    if sum(shape[1] for shape in shapes) != info.dims[1] or len(set(node.inputs)) < len(shapes):
        return node
    parts = "x".join(str(shape[1]) for shape in shapes)
    parameters: dict[str, int | str] = {"shape": shape_text(info.dims), "axis": 1, "parts": parts}
    workload = Workload.of("concat", parameters, dtype=info.dtype)
    return kernel(workload, node.inputs, node.writes[0], node.name)
