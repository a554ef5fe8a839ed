"""The partitioner: a graph whose tensors have specs becomes one program for every core.

    Sharding: a strategy for each node, a spec for what the model is given, gives and holds
    Program:  the same nodes on local shapes, resharding between those whose specs differ

A tensor is resharded once for each spec that readers want, just before the first of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilesmith.capabilities.sharding.layouts.dimension_maps import DimensionMap, dimension_map
from tilesmith.capabilities.sharding.layouts.mesh import LogicalMesh
from tilesmith.capabilities.sharding.layouts.specs import Spec
from tilesmith.capabilities.sharding.layouts.strategies import ShardingStrategy
from tilesmith.capabilities.sharding.partitioning.localise import LocalGraph, is_weight
from tilesmith.capabilities.sharding.partitioning.program import (
    Move,
    Placed,
    ProgramSegment,
    ShardedProgram,
)
from tilesmith.capabilities.sharding.partitioning.resharding import steps_between
from tilesmith.compiler.graph.graph import Graph, Node


@dataclass(frozen=True, eq=False)
class Sharding:
    """How a model lies on a mesh.

    Attributes:
        strategies: of every node.
        specs: of tensors that were given one; other inputs and weights of the model are put on the
            cores as each reader wants them.
        outputs: of the model's outputs where they are not given as they are kept.
    """

    graph: Graph
    mesh: LogicalMesh
    strategies: Mapping[Node, ShardingStrategy]
    specs: Mapping[str, Spec]
    outputs: Mapping[str, Spec] = field(default_factory=dict)

    def produced(self, name: str) -> Spec | None:
        """The spec in which a tensor comes to be; None where readers decide."""
        node = self.graph.producers.get(name)
        if node is None:
            return self.specs.get(name)
        spec = self.strategies[node].outputs[node.outputs.index(name)]
        assert spec is not None
        return spec

    def spec(self, name: str) -> Spec | None:
        """The spec in which a tensor is kept for its readers; None where they decide."""
        return self.specs.get(name) or self.produced(name)


def partition(sharding: Sharding, stages: Mapping[Node, int] | None = None) -> ShardedProgram:
    """One program for all cores; or one for the cores of each stage of a pipeline.

    Args:
        stages: the number of every node's stage, never less than that of a node before it.
    """
    return _Partitioner(sharding, stages or {}).run()


class _Partitioner:
    def __init__(self, sharding: Sharding, stages: Mapping[Node, int]) -> None:
        self.stages, self.stage, self.staged = stages, 0, dict[int, int]()
        self.sharding, self.graph = sharding, sharding.graph
        self.local = LocalGraph(sharding.mesh)
        self.order: list[tuple[Node, ...] | Move] = []
        self.known: dict[tuple[str, Spec], str] = {}
        self.inputs: list[Placed] = []
        self.weights: list[Placed] = []
        self.inside: list[Placed] = []
        self._cut = 0

    def run(self) -> ShardedProgram:
        for node in self.graph.nodes:
            if self.stages.get(node, 0) != self.stage:
                self._close()
                self.stage = self.stages[node]
            self._add(node)
        outputs = tuple(self._output(info.name) for info in self.graph.outputs)
        self._close()
        return ShardedProgram(
            self.graph.title,
            self.sharding.mesh,
            tuple(self.inputs),
            outputs,
            tuple(self.inside),
            tuple(self.weights),
            {p.info.name: self.graph.constants[p.info.name] for p in self.weights},
            self.local.starts,
            self._with_bounds(outputs),
            self.local.tensors,
            tuple(self.staged.values()),
        )

    def _add(self, node: Node) -> None:
        strategy = self.sharding.strategies[node]
        names = tuple(
            self._under(name, spec) if spec is not None else ""
            for name, spec in zip(node.inputs, strategy.inputs, strict=True)
        )
        for name, spec in zip(node.outputs, strategy.outputs, strict=True):
            if spec is not None:
                own = self.local.declare(name, self.graph.info(name), spec)
                self.known[name, spec] = own
                self.inside.append(Placed(self.graph.info(name), spec, own))
        mapping: DimensionMap = dimension_map(self.graph, node)
        self.local.add(replace(node, inputs=names), mapping, strategy)

    def _output(self, name: str) -> Placed:
        spec = self.sharding.outputs.get(name) or self.sharding.spec(name)
        spec = Spec.whole(len(self.graph.info(name).dims)) if spec is None else Spec(spec.dims)
        return Placed(self.graph.info(name), spec, self._under(name, spec))

    def _under(self, name: str, wanted: Spec) -> str:
        """The name of a tensor's parts under a spec; it is resharded if it is not there yet."""
        if (name, wanted) in self.known:
            return self.known[name, wanted]
        info = self.graph.info(name)
        produced, kept = self.sharding.produced(name), self.sharding.spec(name)
        if produced is None or kept is None:
            return self._declare(name, wanted)
        if (name, produced) not in self.known:
            self._declare(name, produced)
        if kept not in (produced, wanted):
            self._under(name, kept)
        base = kept if (name, kept) in self.known else produced
        for step in steps_between(base, wanted, info.dims, self.sharding.mesh):
            source = self.known[name, step.before]
            if (name, step.after) not in self.known:
                self._close()
                result = self.local.declare(
                    self.local.fresh(f"{name}@{step.after}"), info, step.after
                )
                self._append(Move(step, source, result, name, info.dims))
                self.known[name, step.after] = result
        return self.known[name, wanted]

    def _declare(self, name: str, spec: Spec) -> str:
        """An input of the model, or a constant: part of the program, or given to it."""
        info = self.graph.info(name)
        own = self.local.declare(self.local.fresh(name), info, spec)
        self.known[name, spec] = own
        if name not in self.graph.constants:
            self.inputs.append(Placed(info, spec, own))
        elif is_weight(self.graph, name, spec):
            self.weights.append(Placed(info, spec, own))
        else:
            self.local.constants[own] = self.graph.constants[name]
        return own

    def _close(self) -> None:
        """End the segment under way."""
        nodes = tuple(self.local.nodes[self._cut :])
        self._cut = len(self.local.nodes)
        if nodes:
            self._append(nodes)

    def _append(self, item: tuple[Node, ...] | Move) -> None:
        self.staged[len(self.order)] = self.stage
        self.order.append(item)

    def _with_bounds(self, outputs: Sequence[Placed]) -> tuple[ProgramSegment | Move, ...]:
        """Segments whose inputs are what they read, and outputs what is read after them."""
        wanted = {placed.local for placed in outputs}
        result: list[ProgramSegment | Move] = []
        for item in reversed(self.order):
            if isinstance(item, Move):
                wanted.add(item.source)
                result.append(item)
                continue
            name = f"{self.graph.title}.{len(self.order) - len(result)}"
            graph = self.local.graph(name, item, wanted, self.graph.opsets)
            result.append(ProgramSegment(graph))
            wanted.update(info.name for info in graph.inputs)
        return tuple(reversed(result))
