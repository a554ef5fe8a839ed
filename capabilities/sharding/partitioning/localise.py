"""What one core computes of a node: the same operator on its part, under new names and shapes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.sharding.layouts.dimension_maps import DimensionMap
from tilesmith.capabilities.sharding.layouts.mesh import LogicalMesh
from tilesmith.capabilities.sharding.layouts.specs import Spec, local_shape
from tilesmith.capabilities.sharding.layouts.strategies import ShardingStrategy
from tilesmith.compiler.graph.graph import Graph, Node, TensorInfo
from tilesmith.search_space.expressions.dtypes import NAMES

START = "core"
"""What the names of inputs begin with that say where in a tensor a core's part begins."""


@dataclass(frozen=True)
class Start:
    """A scalar that differs between cores: the number of a core's part, times a length."""

    axes: tuple[str, ...]
    length: int

    def value(self, at: Mapping[str, int], mesh: LogicalMesh) -> NDArray[np.int64]:
        """The scalar of the core at a place."""
        number = 0
        for axis in self.axes:
            number = number * mesh.sizes[axis] + at[axis]
        return np.array(number * self.length, np.int64)


@dataclass
class LocalGraph:
    """A graph of one core in the making: the tensors, constants and nodes that it has so far."""

    mesh: LogicalMesh
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)
    starts: dict[str, Start] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    def declare(self, name: str, like: TensorInfo, spec: Spec) -> str:
        """A tensor that is a part of another's."""
        shape = local_shape(spec, like.dims, self.mesh.sizes)
        self.tensors[name] = TensorInfo(name, like.dtype, shape)
        return name

    def fresh(self, base: str) -> str:
        """A name that is not in use."""
        name, number = base, 0
        while name in self.tensors:
            number += 1
            name = f"{base}.{number}"
        return name

    def add(self, node: Node, mapping: DimensionMap, strategy: ShardingStrategy) -> None:
        """A node's part; its names are tensors of this graph."""
        if mapping.localise is None:
            self.nodes.append(node)
        else:
            self.nodes += mapping.localise(node, _NodeOnCore(self, strategy))

    def graph(
        self, name: str, nodes: Sequence[Node], wanted: Iterable[str], opsets: "Opsets"
    ) -> Graph:
        """Some nodes as a graph: it is given what others write, and gives what is wanted."""
        written = dict.fromkeys(name for node in nodes for name in node.writes)
        reads = dict.fromkeys(name for node in nodes for name in node.reads)
        constants = {n: self.constants[n] for n in reads if n in self.constants}
        given = [n for n in reads if n not in constants and n not in written]
        return Graph(
            name,
            tuple(self.tensors[n] for n in given),
            tuple(self.tensors[n] for n in written if n in set(wanted)),
            tuple(nodes),
            constants,
            {n: self.tensors[n] for n in (*reads, *written)},
            opsets,
        )


Opsets = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class _NodeOnCore:
    """`dimension_maps.Local` of one node."""

    graph: LocalGraph
    strategy: ShardingStrategy

    def info(self, name: str) -> TensorInfo:
        return self.graph.tensors[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.graph.tensors[name].dims

    def constant(self, base: str, value: NDArray[Any]) -> str:
        name = self.graph.fresh(f"{base}.local")
        dtype = next(known for known in NAMES if known == value.dtype.name)
        self.graph.tensors[name] = TensorInfo(name, dtype, value.shape)
        value.setflags(write=False)
        self.graph.constants[name] = value
        return name

    def tensor(self, base: str, dtype: str, shape: tuple[int, ...]) -> str:
        name = self.graph.fresh(f"{base}.local")
        self.graph.tensors[name] = TensorInfo(name, dtype, tuple(shape))
        return name

    def pieces(self, factor: int) -> int:
        return self.strategy.pieces(factor, self.graph.mesh)

    def start(self, factor: int, length: int) -> str:
        start = Start(self.strategy.axes_of(factor), length)
        for name, known in self.graph.starts.items():
            if known == start:
                return name
        name = self.graph.fresh(f"{START}.{'.'.join(start.axes)}.{length}")
        self.graph.tensors[name] = TensorInfo(name, "int64", ())
        self.graph.starts[name] = start
        return name


SMALL = 1024
"""Elements up to which a constant that is the same on all cores stays a constant of the program:
shapes, axes, bounds and scalars, which decide what code is made."""


def stays_constant(graph: Graph, name: str) -> bool:
    """Whether a constant is part of the program rather than a weight that it is given."""
    value = graph.constants.get(name)
    return value is not None and (value.size <= SMALL or value.dtype.kind not in "f")


def is_weight(graph: Graph, name: str, spec: Spec) -> bool:
    """Whether cores are given their parts of a constant, rather than finding it in the program."""
    same = not spec.axes and not spec.partial
    return name in graph.constants and not (same and stays_constant(graph, name))


def single(
    graph: Graph, node: Node, mapping: DimensionMap, strategy: ShardingStrategy, mesh: LogicalMesh
) -> Graph:
    """A graph of one core's part of one node alone, whose cost is the node's."""
    local = LocalGraph(mesh)
    names: list[str] = []
    for number, (name, spec) in enumerate(zip(node.inputs, strategy.inputs, strict=True)):
        if spec is None:
            names.append("")
            continue
        own = local.declare(f"{name}.{number}", graph.info(name), spec)
        if name in graph.constants and not is_weight(graph, name, spec):
            local.constants[own] = graph.constants[name]
        names.append(own)
    for name, spec in zip(node.outputs, strategy.outputs, strict=True):
        if spec is not None:
            local.declare(name, graph.info(name), spec)
    local.add(replace(node, inputs=tuple(names)), mapping, strategy)
    return local.graph("part", local.nodes, set(node.writes), graph.opsets)


def elements(shape: Sequence[int]) -> int:
    """How many elements a shape has."""
    return math.prod(shape)
