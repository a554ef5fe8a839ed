"""Which compared tensors lead to which: a model's graph seen through some of its tensors alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilesmith.compiler.graph import Graph


def nearest(graph: Graph, name: str, among: Collection[str]) -> tuple[str, ...]:
    """The tensors of `among` that `name` is computed from, with none of them in between."""
    node = graph.producers.get(name)
    waiting = list(node.reads) if node is not None else []
    found: dict[str, None] = {}
    seen: set[str] = set()
    while waiting:
        source = waiting.pop()
        if source in seen:
            continue
        seen.add(source)
        producer = graph.producers.get(source)
        if source in among:
            found[source] = None
        elif producer is not None:
            waiting += producer.reads
    return tuple(found)


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
