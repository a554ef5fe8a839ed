"""Which computed indices are sure to lie inside their axes, so that no run has to look at them.

A lowered graph is followed backwards from the indices: constants, kernels whose template says of
what range its output is, and what only shows or joins other tensors.
"""

from collections.abc import Iterator, Mapping

from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.search_space.expressions.ranges import WholeRange
from tilesmith.search_space.operator_parts.formula_ranges import hull
from tilesmith.search_space.workloads.template import template_of

_DEPTH = 24
"""Nodes looked back through."""


def index_operands(node: Node) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensors that a kernel takes indices from, each with the entries of the axes they are of, in
    turns."""
    template = template_of(node.work.operator)
    extents = template.index_extents(node.work)
    if extents:
        for operand, name in zip(template.operands(node.work), node.inputs, strict=True):
            if operand.name in extents:
                yield name, extents[operand.name]


class IndexRanges:
    """Ranges of a lowered graph's tensors.

    Args:
        known: of its inputs, those of which more is known than their type.
    """

    def __init__(self, graph: Graph, known: Mapping[str, WholeRange] | None = None) -> None:
        self._graph = graph
        self._known: dict[str, WholeRange | None] = dict(known or {})

    def within(self, name: str, axes: tuple[int, ...]) -> bool:
        """Whether all elements of a tensor are indices of axes of so many entries, from either
        end."""
        least, own = min(axes), self._of(name, _DEPTH)
        return own is not None and -least <= own[0] and own[1] < least

    def _of(self, name: str, depth: int) -> WholeRange | None:
        if name not in self._known:
            self._known[name] = self._computed(name, depth) if depth else None
        return self._known[name]

    def _computed(self, name: str, depth: int) -> WholeRange | None:
        value = self._graph.constants.get(name)
        if value is not None:
            whole = value.dtype.kind in "iub" and value.size > 0
            return (int(value.min()), int(value.max())) if whole else None
        node = self._graph.producers.get(name)
        if node is None or node.kind not in ("kernel", "view", "join"):
            return None
        read = [self._of(source, depth - 1) for source in node.inputs]
        if node.workload is None:
            return hull(read)
        if node.workload.epilogue:
            return None
        return template_of(node.work.operator).output_range(node.work, read)


def runs_unchecked(graph: Graph, known: Mapping[str, WholeRange] | None = None) -> bool:
    """Whether no kernel of a graph takes indices that only a run can make sure of."""
    ranges = IndexRanges(graph, known)
    return all(
        name in graph.constants or ranges.within(name, axes)
        for node in graph.nodes
        if node.workload is not None
        for name, axes in index_operands(node)
    )
