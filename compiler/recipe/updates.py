"""Updates in place: which outputs a kernel may write over the inputs they replace.

A language model's step takes a cache and gives it back with some rows written. Where nothing reads
the old cache once the new one is being written, both are one memory, and only those rows move.
"""

from collections.abc import Iterator, Mapping

from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.recipe.layouts import PLAIN
from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.workloads.workload import shape_text

_WRITERS = frozenset({"scatter_nd", "scatter_elements"})
"""Operators whose first operand may be their output: they copy it, unless it is (`own_copies`)."""


def with_updates(graph: Graph, updates: Mapping[str, str]) -> Graph:
    """The graph, told which output each of some inputs is to hold after a run.

    Raises:
        ModelError: no such input or output, they differ in shape or element type, or an output is
            named twice.
    """
    inputs = {info.name: info for info in graph.inputs}
    outputs = {info.name: info for info in graph.outputs}
    for name, result in updates.items():
        for what, known, wanted in (("input", inputs, name), ("output", outputs, result)):
            if wanted not in known:
                raise ModelError(
                    f"'{graph.title}' has no {what} '{wanted}' to update; it has {', '.join(known)}"
                )
        before, after = inputs[name], outputs[result]
        if (before.dtype, before.shape) != (after.dtype, after.shape) or not before.known:
            kinds = " and ".join(
                f"'{i.name}' {i.dtype or '?'}[{'?' if i.shape is None else shape_text(i.shape)}]"
                for i in (before, after)
            )
            raise ModelError(f"an input can only be updated by an output of its kind; {kinds}")
        if list(updates.values()).count(result) > 1:
            raise ModelError(f"output '{result}' is to update more than one input; one is possible")
    return graph.with_(updates=dict(updates))


def written_over(graph: Graph, layouts: Mapping[str, object]) -> dict[str, tuple[str, str]]:
    """(Tensor a kernel writes, tensor it is written over), by input that is updated in place."""
    if any(node.kind == "control" for node in graph.nodes):
        return {}
    pairs: dict[str, tuple[str, str]] = {}
    for name, result in graph.updates.items():
        written = _origin(graph, result)
        node = graph.producers.get(written)
        if node is None or node.workload is None or node.workload.operator not in _WRITERS:
            continue
        over, others = node.inputs[0], node.inputs[1:]
        seen = _seen_as(graph, name)
        plain = all(layouts.get(t, PLAIN) == PLAIN for t in (*seen, written, result))
        if _origin(graph, over) != name or not plain or not seen.isdisjoint(others):
            continue
        if not graph.info(name).nbytes or seen & graph.output_names:
            continue
        if not any(_reads_later(graph, node, seen)):
            pairs[name] = (written, over)
    return pairs


def _origin(graph: Graph, name: str) -> str:
    """The tensor whose elements a view shows, all of them."""
    node = graph.producers.get(name)
    if node is None or node.kind != "view":
        return name
    whole = graph.info(node.inputs[0]).elements == graph.info(name).elements
    return _origin(graph, node.inputs[0]) if whole else name


def _seen_as(graph: Graph, name: str) -> set[str]:
    """A tensor, its views, and what it is a part of."""
    aliases = {name}
    for node in graph.consumers.get(name, ()):
        if node.kind in ("view", "join"):
            aliases |= _seen_as(graph, node.writes[0])
    return aliases


def _reads_later(graph: Graph, node: Node, names: set[str]) -> Iterator[bool]:
    """For each later node whether it looks at one of these."""
    for later in graph.nodes[graph.nodes.index(node) + 1 :]:
        yield not names.isdisjoint(later.reads)
