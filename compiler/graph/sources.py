"""Where nodes come from: names of the model's own nodes, kept while passes replace them.

    conv1, relu1        a model's nodes
    conv1               the kernel both became: sources = (conv1, relu1)

Passes say nothing of this: whoever replaces nodes gives the new ones the old ones' sources
(`rewrite.Rewriter.replace`), and what a pass that builds its own list of nodes forgets is found by
the names of tensors (`graph_pass.apply`). A node made by `dataclasses.replace` has those it was
made from.

Invariants: nodes that do work of the model's have sources; conversions of layouts and of element
types have none; what was folded away (constants, nodes that pass a tensor on) is in no node's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilesmith.compiler.graph.graph import Graph, Node

_WALKED = 64
"""Nodes looked at for those that a new node computes inside: more is no pattern of any pass."""


def source_name(name: str, outputs: Iterable[str]) -> str:
    """What a model's node is called: its name, or its first output's if it has none."""
    return name or next((output for output in outputs if output), "")


def sourced(node: Node, name: str = "") -> Node:
    """A node of a model as it was read: it comes from itself, or from the node `name`."""
    return node if node.sources else replace(node, sources=(name or _own_name(node),))


def _own_name(node: Node) -> str:
    return source_name(node.name, node.outputs)


def from_one(graph: Graph, sources: tuple[str, ...]) -> Graph:
    """A graph of which all nodes come from the same ones: the body that an operator is made of."""
    return graph.with_(nodes=tuple(replace(node, sources=sources) for node in graph.nodes))


def together(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The sources of several nodes, in their order, each once."""
    return tuple(dict.fromkeys(name for node in nodes for name in node.sources))


def inherited(
    olds: Sequence[Node], new: Sequence[Node], producers: Mapping[str, Node]
) -> tuple[Node, ...]:
    """The new nodes, with the sources of those they stand for.

    Those that have some already keep them; those that have none get what no other has (all, where
    nothing is left over); where all have some, what is left over goes to those that write what the
    old ones wrote. Views beside other nodes only rename bytes for these, and get nothing. Whatever
    lay between a new node's operands and the old ones' is computed inside the new one.
    """
    whole = together(olds)
    carried = set(together(new))
    left = tuple(name for name in whole if name not in carried)
    workers = any(node.kind != "view" for node in new)
    heirs = [n for n in new if not n.sources and (n.kind != "view" or not workers)]
    written = {name for node in olds for name in node.writes}
    dropped = {name for node in olds for name in node.reads}
    dropped -= {name for node in new for name in node.reads}
    nodes = []
    for node in new:
        own = node.sources
        if node in heirs:
            own = left or whole
        elif not heirs and left and own and not written.isdisjoint(node.writes):
            kept = {*own, *left}
            own = tuple(dict.fromkeys((*(name for name in whole if name in kept), *own)))
        if own and dropped:
            inside = together(_between(set(node.reads), dropped, producers))
            own = tuple(dict.fromkeys((*inside, *own)))
        nodes.append(node if own == node.sources else replace(node, sources=own))
    return tuple(nodes)


def _between(ends: set[str], starts: set[str], producers: Mapping[str, Node]) -> list[Node]:
    """The nodes on the ways from tensors `ends` to tensors `starts`, first to last."""
    known: dict[str, bool] = dict.fromkeys(ends, True)
    on_way: dict[Node, None] = {}
    looked = 0

    def leads(name: str) -> bool:
        nonlocal looked
        if name not in known:
            known[name] = False
            node = producers.get(name)
            looked += 1
            if node is not None and looked <= _WALKED:
                ways = [leads(source) for source in node.reads]  # all: each has nodes on it
                if any(ways):
                    known[name] = True
                    on_way[node] = None
        return known[name]

    for name in sorted(starts):
        leads(name)
    return list(on_way)


def kept_sources(before: Graph, after: Graph) -> Graph:
    """A pass's graph, with sources for nodes that write what a forgotten node wrote before."""
    if after is before or all(node.sources for node in after.nodes):
        return after
    carried = set(together(after.nodes))
    changed: dict[Node, Node] = {}
    for node in after.nodes:
        old = before.producers.get(next(iter(node.writes), ""))
        if not node.sources and old is not None and not carried.issuperset(old.sources):
            changed[node] = replace(node, sources=old.sources)
    if not changed:
        return after
    return after.with_(nodes=tuple(changed.get(node, node) for node in after.nodes))
