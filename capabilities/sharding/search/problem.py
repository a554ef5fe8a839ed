"""The choice of a sharding as a problem: one option for each item, costs of options and of moves.

Items are the nodes (an option is a strategy), the model's outputs and tensors whose spec is given.
What writes a tensor offers specs, what reads it wants specs; a move from one to the other is paid
once for each spec that readers want. Inputs and weights are put on the cores as each reader wants
them, unless their spec is given: a weight that two nodes want differently lies there twice.
That is Alpa's formulation (Zheng et al., OSDI 2022, section 4) but for moves that readers share.
Invariants: costs are whole nanoseconds; options of an item differ in what they read or write.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilesmith.capabilities.sharding.layouts.dimension_maps import DimensionMap, dimension_map
from tilesmith.capabilities.sharding.layouts.mesh import LogicalMesh
from tilesmith.capabilities.sharding.layouts.specs import Spec, local_shape
from tilesmith.capabilities.sharding.layouts.strategies import (
    ShardingStrategy,
    blocks_of,
    strategies_of,
)
from tilesmith.capabilities.sharding.partitioning.costs import Costs
from tilesmith.capabilities.sharding.partitioning.localise import elements, is_weight
from tilesmith.capabilities.sharding.partitioning.partition import Sharding
from tilesmith.compiler.graph.graph import Graph, Node, TensorInfo


@dataclass(frozen=True)
class ItemOption:
    """One way for an item.

    Attributes:
        cost: ns of computing.
        reads: the spec of each tensor it reads, in the item's order.
        writes: likewise of those it writes.
        held: bytes of weights on one core, those that n nodes read for an n-th: never more than
            what a core then holds.
        strategy: of a node.
    """

    cost: int
    reads: tuple[Spec, ...]
    writes: tuple[Spec, ...]
    held: int = 0
    strategy: ShardingStrategy | None = None


@dataclass(frozen=True, eq=False)
class Item:
    """Something to be chosen for.

    Attributes:
        name: for messages.
        reads, writes: tensors, as versions: (name, 0), or (name, 1) of one whose spec is given.
        node: the node whose strategies these are.
    """

    name: str
    reads: "tuple[Version, ...]"
    writes: "tuple[Version, ...]"
    options: tuple[ItemOption, ...]
    node: Node | None = None


Version = tuple[str, int]


@dataclass(frozen=True, eq=False)
class ShardingProblem:
    """Items in an order in which each reads what came before, and what they cost."""

    graph: Graph
    mesh: LogicalMesh
    items: tuple[Item, ...]
    costs: Costs
    given: Mapping[str, Spec] = field(default_factory=dict)

    def tensor(self, version: Version) -> TensorInfo:
        return self.graph.info(version[0])

    def move(self, version: Version, source: Spec, wanted: Spec) -> int:
        """ns from one spec to another."""
        info = self.tensor(version)
        return self.costs.move(source, wanted, info.dims, info.dtype)

    def writers(self) -> dict[Version, tuple[int, int]]:
        """(item, place among its writes) of each tensor that is chosen for."""
        return {
            version: (number, place)
            for number, item in enumerate(self.items)
            for place, version in enumerate(item.writes)
        }

    def cost(self, chosen: Sequence[int]) -> int:
        """ns of a choice of options: computing, and each move once."""
        total = sum(item.options[c].cost for item, c in zip(self.items, chosen, strict=True))
        return total + sum(self.move(*key) for key in self.moves(chosen))

    def moves(self, chosen: Sequence[int]) -> set[tuple[Version, Spec, Spec]]:
        """The moves a choice makes necessary."""
        writers = self.writers()
        moves = set()
        for item, choice in zip(self.items, chosen, strict=True):
            for version, wanted in zip(item.reads, item.options[choice].reads, strict=True):
                writer, place = writers[version]
                source = self.items[writer].options[chosen[writer]].writes[place]
                if source != wanted:
                    moves.add((version, source, wanted))
        return moves

    def sharding(self, chosen: Sequence[int]) -> Sharding:
        """What a choice of options says, as the partitioner takes it."""
        strategies: dict[Node, ShardingStrategy] = {}
        outputs: dict[str, Spec] = {}
        for item, choice in zip(self.items, chosen, strict=True):
            option = item.options[choice]
            if item.node is not None and option.strategy is not None:
                strategies[item.node] = option.strategy
            elif not item.writes:  # an output
                outputs[item.reads[0][0]] = option.reads[0]
        return Sharding(self.graph, self.mesh, strategies, self.given, outputs)


def problem_of(
    graph: Graph,
    costs: Costs,
    given: Mapping[str, Spec] | None = None,
) -> ShardingProblem:
    """The problem of a model's sharding.

    Args:
        given: specs of tensors that are to be so.
    """
    return _Maker(graph, costs, dict(given or {})).problem()


class _Maker:
    def __init__(self, graph: Graph, costs: Costs, given: dict[str, Spec]) -> None:
        self.graph, self.costs, self.given = graph, costs, given
        self.mesh = costs.mesh
        self.items: list[Item] = []
        self.versions: dict[str, Version] = {}

    def problem(self) -> ShardingProblem:
        maps = {node: dimension_map(self.graph, node) for node in self.graph.nodes}
        blocks = blocks_of(maps, self.mesh)
        ways = {
            node: self._useful(node, strategies_of(mapping, self.mesh, blocks[node]))
            for node, mapping in maps.items()
        }
        for name in (*(i.name for i in self.graph.inputs), *self.graph.constants):
            if name in self.given:
                self._source(name)
        for node in self.graph.nodes:
            self._node(node, maps[node], ways[node])
            for name in node.writes:
                if name in self.given:
                    self._pin(name)
        for info in self.graph.outputs:
            self._output(info.name)
        return ShardingProblem(self.graph, self.mesh, tuple(self.items), self.costs, self.given)

    def _useful(self, node: Node, ways: Sequence[ShardingStrategy]) -> tuple[ShardingStrategy, ...]:
        """Strategies but those that hand on partial sums nobody can have made."""
        useful = []
        for way in ways:
            handed = {axis for axis, _ in way.passed}
            reads = zip(node.inputs, way.inputs, strict=True)
            is_summable = all(
                name in self.graph.producers
                for name, spec in reads
                if spec is not None and spec.partial & handed
            )
            if is_summable:
                useful.append(way)
        return tuple(useful)

    def _source(self, name: str) -> None:
        """What the model is given and whose spec is given, too."""
        spec = self.given[name]
        version = self.versions[name] = (name, 0)
        held = self._bytes(name, spec) if is_weight(self.graph, name, spec) else 0
        option = ItemOption(0, (), (spec,), held)
        self.items.append(Item(name, (), (version,), (option,)))

    def _bytes(self, name: str, spec: Spec) -> int:
        info = self.graph.info(name)
        return elements(local_shape(spec, info.dims, self.mesh.sizes)) * self.costs.size(info.dtype)

    def _node(self, node: Node, mapping: DimensionMap, ways: Sequence[ShardingStrategy]) -> None:
        places = [n for n, name in enumerate(node.inputs) if name in self.versions]
        written = [n for n, name in enumerate(node.outputs) if name]
        best: dict[object, ItemOption] = {}
        for way in ways:
            reads, writes = (_chosen(way.inputs, places), _chosen(way.outputs, written))
            held = sum(
                self._bytes(name, spec) // len(self.graph.consumers[name])
                for name, spec in zip(node.inputs, way.inputs, strict=True)
                if spec is not None
                and name not in self.versions
                and is_weight(self.graph, name, spec)
            )
            cost = self.costs.node(self.graph, node, mapping, way)
            option = ItemOption(cost, reads, writes, held, way)
            known = best.get((reads, writes, held))
            if known is None or option.cost < known.cost:
                best[reads, writes, held] = option
        reads_of = tuple(self.versions[node.inputs[n]] for n in places)
        writes_of = tuple((node.outputs[n], 0) for n in written)
        self.versions.update((node.outputs[n], (node.outputs[n], 0)) for n in written)
        self.items.append(Item(node.describe(), reads_of, writes_of, tuple(best.values()), node))

    def _pin(self, name: str) -> None:
        """A tensor whose spec is given: whatever writes it, readers find it so."""
        spec = self.given[name]
        before, after = self.versions[name], (name, 1)
        self.versions[name] = after
        self.items.append(Item(name, (before,), (after,), (ItemOption(0, (spec,), (spec,)),)))

    def _output(self, name: str) -> None:
        """What the caller gets: whole or cut, but summed up."""
        version = self.versions.get(name)
        if version is None:
            return  # an input or a constant that is handed on
        writer = next(item for item in self.items if version in item.writes)
        place = writer.writes.index(version)
        wanted = {Spec(o.writes[place].dims): None for o in writer.options}
        if name in self.given:
            wanted = {Spec(self.given[name].dims): None}
        options = tuple(ItemOption(0, (spec,), ()) for spec in wanted)
        self.items.append(Item(f"output {name}", (version,), (), options))


def _chosen(specs: Sequence[Spec | None], places: Sequence[int]) -> tuple[Spec, ...]:
    present = [specs[place] for place in places]
    return tuple(spec for spec in present if spec is not None)


def every_choice(problem: ShardingProblem) -> Iterator[tuple[int, ...]]:
    """Every choice of options, for small problems."""
    import itertools

    yield from itertools.product(*(range(len(item.options)) for item in problem.items))
