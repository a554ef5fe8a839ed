"""Model-local functions: how many nodes a model becomes once they are inlined.

Functions that call functions twice double with every level: two kilobytes of file become 2^31
nodes, and ONNX's inliner, native code that no signal ends, would write them all. So they are
counted first. Invariant: what is counted as at most `MOST_NODES`, `DEEPEST` levels deep, and
without a round of calls, is safe to inline.
"""

from collections.abc import Iterable

import onnx

from tilesmith.search_space.support.errors import ModelError

MOST_NODES = 1 << 20
"""Far more than models have; a compilation takes about a millisecond for each."""

DEEPEST = 100
"""Functions inside functions: the inliner calls itself for each level."""

Key = tuple[str, str, str]


def check_functions(proto: onnx.ModelProto, model: str) -> None:
    """Refuse a model whose functions cannot be inlined.

    Raises:
        ModelError: it would become too many nodes, or a function calls itself, or they are nested
            too deep.
    """
    bodies = {(f.domain, f.name, f.overload): f.node for f in proto.functions}
    nodes = _Count(bodies, model).nodes(proto.graph.node, ())
    if nodes > MOST_NODES:
        raise ModelError(
            f"'{model}' would become {nodes} nodes once its functions are inlined; at most "
            f"{MOST_NODES} are possible"
        )


class _Count:
    """Nodes that calls become, each function counted once."""

    def __init__(self, bodies: dict[Key, Iterable[onnx.NodeProto]], model: str) -> None:
        self.bodies, self.model = bodies, model
        self.known: dict[Key, int] = {}

    def nodes(self, nodes: Iterable[onnx.NodeProto], inside: tuple[Key, ...]) -> int:
        """What nodes become, inside of calls of functions."""
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            total += self._function(key, inside) if key in self.bodies else 1
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    total += self.nodes(graph.node, inside)
        return total

    def _function(self, key: Key, inside: tuple[Key, ...]) -> int:
        if key in inside:
            raise ModelError(
                f"function '{key[1]}' of '{self.model}' calls itself, so it has no end"
            )
        if len(inside) >= DEEPEST:
            raise ModelError(
                f"the functions of '{self.model}' call each other more than {DEEPEST} deep, at "
                f"'{key[1]}'; write some of them out"
            )
        if key not in self.known:
            self.known[key] = self.nodes(self.bodies[key], (*inside, key))
        return self.known[key]
