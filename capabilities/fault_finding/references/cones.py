"""Which compared tensors lead to which: a model's graph seen through some of its tensors alone."""

from collections.abc import Collection, Mapping, Sequence

from tilesmith.compiler.graph.graph import Graph


def nearest(graph: Graph, name: str, among: Collection[str]) -> tuple[str, ...]:
    """The tensors of `among` that `name` is computed from, with none of them in between."""
    return tuple(source for source in _before(graph, name, among) if source in among)


def between(graph: Graph, name: str, among: Collection[str]) -> set[str]:
    """The tensors on the way to `name` from `nearest`, these and it left out."""
    return {source for source in _before(graph, name, among) if source not in among}


def _before(graph: Graph, name: str, among: Collection[str]) -> dict[str, None]:
    """What `name` is computed from, up to tensors of `among`."""
    node = graph.producers.get(name)
    waiting = list(node.reads) if node is not None else []
    sources: dict[str, None] = {}
    while waiting:
        source = waiting.pop()
        if source in sources:
            continue
        sources[source] = None
        producer = graph.producers.get(source)
        if source not in among and producer is not None:
            waiting += producer.reads
    return sources


def parents(graph: Graph, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """`nearest` of each among all."""
    among = frozenset(names)
    return {name: nearest(graph, name, among) for name in names}


def followers(parents_of: Mapping[str, Sequence[str]], name: str) -> list[str]:
    """All that a tensor has a part in, in the order of `parents_of`, which is topological."""
    reached = {name}
    for other, sources in parents_of.items():
        if not reached.isdisjoint(sources):
            reached.add(other)
    return [other for other in parents_of if other in reached and other != name]
