"""Propagation: from the specs of a few tensors to a strategy for every node, as GSPMD does it.

An axis that cuts a dimension of a tensor cuts the factor that the dimension is in the nodes beside
it, and so the dimensions of their other tensors; forwards and backwards, until nothing changes
(Xu et al., "GSPMD", 2021, section 3.5, there over dimensions, here over factors). Where neighbours
suggest different factors for an axis, the cheapest is taken: its computing and the resharding of
the tensors that are known. What no annotation reaches is computed whole on every core. Invariant: a
tensor that was annotated keeps its spec: what needs or makes another one is resharded.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping

from tilesmith.capabilities.sharding.layouts.dimension_maps import (
    DimensionMap,
    Factors,
    dimension_map,
)
from tilesmith.capabilities.sharding.layouts.specs import Spec
from tilesmith.capabilities.sharding.layouts.strategies import ShardingStrategy, strategy
from tilesmith.capabilities.sharding.partitioning.costs import Costs
from tilesmith.capabilities.sharding.partitioning.partition import Sharding
from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.rewriting.rounds import Rounds


def propagate(graph: Graph, costs: Costs, given: Mapping[str, Spec]) -> Sharding:
    """A sharding that follows from the specs of some tensors.

    Args:
        given: specs by tensor; legal for the mesh of `costs`.
    """
    return _Propagation(graph, costs, given).run()


class _Propagation:
    def __init__(self, graph: Graph, costs: Costs, given: Mapping[str, Spec]) -> None:
        self.graph, self.costs, self.given = graph, costs, given
        self.mesh = costs.mesh
        self.maps = {node: dimension_map(graph, node) for node in graph.nodes}
        self.cuts: dict[Node, dict[str, Place]] = {node: {} for node in graph.nodes}
        self.specs: dict[str, Spec] = dict(given)

    def run(self) -> Sharding:
        nodes = self.graph.nodes
        rounds = Rounds(
            f"the sharding of '{self.graph.title}'", len(nodes) * len(self.mesh.names) + 1
        )
        changed = True
        while changed:
            rounds.another()
            changed = False
            for node in itertools.chain(nodes, reversed(nodes)):
                changed |= self._visit(node)
        strategies = {node: self._strategy(node, self.cuts[node]) for node in nodes}
        return Sharding(self.graph, self.mesh, strategies, self.given)

    def _visit(self, node: Node) -> bool:
        """Decide for axes that neighbours say something of; whether anything changed."""
        suggested: dict[str, set[Place]] = {}
        for name, dims in self._operands(node):
            spec = self.specs.get(name)
            for axis in spec.axes if spec is not None else ():
                if axis not in self.cuts[node]:
                    place = _factor_at(spec, axis, dims, self.maps[node])
                    if place is not None:
                        suggested.setdefault(axis, set()).add(place)
        if not suggested:
            return False
        chosen = self._cheapest(node, suggested)
        if chosen is None:
            return False
        self.cuts[node] = chosen
        self._spread(node)
        return True

    def _operands(self, node: Node) -> Iterator[tuple[str, tuple[Factors, ...]]]:
        mapping = self.maps[node]
        for names, maps in ((node.inputs, mapping.inputs), (node.outputs, mapping.outputs)):
            for name, dims in zip(names, maps, strict=True):
                if dims is not None:
                    yield name, dims

    def _cheapest(
        self, node: Node, suggested: "Mapping[str, Iterable[Place]]"
    ) -> "dict[str, Place] | None":
        """The best of the factors that are suggested for each axis; None if none is legal."""
        axes = list(suggested)
        best: tuple[int, dict[str, Place]] | None = None
        for choice in itertools.product(*((*sorted(suggested[axis]), None) for axis in axes)):
            more = {a: f for a, f in zip(axes, choice, strict=True) if f is not None}
            strategy = self._legal(node, {**self.cuts[node], **more})
            if strategy is None or not more:
                continue
            cost = self._cost(node, strategy)
            if best is None or cost < best[0]:
                best = cost, {**self.cuts[node], **more}
        return best[1] if best is not None else None

    def _legal(self, node: Node, cut: "Mapping[str, Place]") -> ShardingStrategy | None:
        ordered = tuple((axis, *cut[axis]) for axis in self.mesh.names if axis in cut)
        return strategy(self.maps[node], self.mesh, ordered)

    def _strategy(self, node: Node, cut: "Mapping[str, Place]") -> ShardingStrategy:
        strategy = self._legal(node, cut)
        assert strategy is not None, node.describe()
        return strategy

    def _cost(self, node: Node, strategy: ShardingStrategy) -> int:
        """ns of computing so, and of resharding what is known."""
        total = self.costs.node(self.graph, node, self.maps[node], strategy)
        for name, wanted in zip(node.inputs, strategy.inputs, strict=True):
            known = self.specs.get(name)
            if wanted is not None and known is not None and self._costs_moving(name):
                info = self.graph.info(name)
                total += self.costs.move(known, wanted, info.dims, info.dtype)
        for name, written in zip(node.outputs, strategy.outputs, strict=True):
            known = self.specs.get(name)
            if written is not None and known is not None:
                info = self.graph.info(name)
                total += self.costs.move(written, known, info.dims, info.dtype)
        return total

    def _costs_moving(self, name: str) -> bool:
        """Whether a tensor lies on the cores under a spec, rather than being put there as asked."""
        return name in self.graph.producers or name in self.given

    def _spread(self, node: Node) -> None:
        """What a node's cuts say of tensors that were not given a spec."""
        strategy = self._strategy(node, self.cuts[node])
        for name, spec in (
            *zip(node.inputs, strategy.inputs, strict=True),
            *zip(node.outputs, strategy.outputs, strict=True),
        ):
            if spec is None or name in self.given:
                continue
            known = self.specs.get(name)
            if known is None or known.axes < spec.axes:
                self.specs[name] = Spec(spec.dims)


Place = tuple[int, int]
"""(factor, blocks): what an axis cuts in a node."""


def _factor_at(
    spec: Spec | None, axis: str, dims: tuple[Factors, ...], mapping: DimensionMap
) -> Place | None:
    """What an axis of a tensor's spec cuts in a node; None what cannot be cut there."""
    place = spec.place(axis) if spec is not None else None
    if place is None:
        return None
    outside = 1
    for number in dims[place[0]]:
        factor = mapping.factors[number]
        if outside <= place[1] < outside * factor.size and place[1] % outside == 0:
            inside = place[1] // outside
            cuttable = factor.kind != "whole" and (inside == 1 or factor.kind != "looked_up")
            return (number, inside) if cuttable else None
        outside *= factor.size
    return None
