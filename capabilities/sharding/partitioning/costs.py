"""What sharding costs: a node's part on one core by its roofline, collectives by the mesh's model.

A part is lowered alone, and its kernels cost what the family's simulator says a core needs at
least; what has none costs its bytes at the memory's pace. Kernels of neighbours that fuse later
are counted apart, which is alike for all strategies. Times are whole nanoseconds, so that sums and
bounds of the optimisation are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import get_args

from tilesmith.capabilities.sharding.layouts.dimension_maps import DimensionMap
from tilesmith.capabilities.sharding.layouts.mesh import LogicalMesh
from tilesmith.capabilities.sharding.layouts.specs import Spec, local_shape
from tilesmith.capabilities.sharding.layouts.strategies import ShardingStrategy
from tilesmith.capabilities.sharding.partitioning.localise import elements, single
from tilesmith.capabilities.sharding.partitioning.resharding import (
    COLLECTIVES,
    ReshardingStep,
    steps_between,
)
from tilesmith.compiler.backends.backend import backends
from tilesmith.compiler.driver.build import prepared
from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.numerics.precision import WIDE, held_as, in_precision, precision_dtype
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.meshes.mesh import CollectiveKind, Mesh
from tilesmith.search_space.support.errors import TargetError, WorkloadError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.collectives import collective_cost
from tilesmith.simulator.dispatch import simulate

_KINDS: tuple[CollectiveKind, ...] = get_args(CollectiveKind)


@dataclass
class Costs:
    """Prices on a machine whose cores are arranged as a logical mesh; what was asked is kept."""

    machine: Mesh
    mesh: LogicalMesh
    _kernels: dict[Workload, int | None] = field(default_factory=dict)
    _nodes: dict[object, int] = field(default_factory=dict)
    _wires: dict[tuple[str, tuple[str, ...], int], int] = field(default_factory=dict)
    _moves: dict[object, int] = field(default_factory=dict)

    @cached_property
    def precision(self) -> str:
        """The precision in which cores compute an fp32 model."""
        backend = backends.find(self.machine.target.family)
        return "fp32" if backend is None else backend.computes_in

    def size(self, dtype: str) -> int:
        """Bytes of an element of a tensor in a core's memory."""
        return size_of(held_as(dtype, self.precision))

    @property
    def core_bytes(self) -> int:
        """Memory of one core."""
        return int(self.machine.chip_gib * 2**30) // self.machine.cores_per_chip

    @property
    def bytes_per_ns(self) -> float:
        """Bandwidth of one core's memory, in bytes a nanosecond."""
        return self.machine.chip_gbps / self.machine.cores_per_chip

    def node(
        self, graph: Graph, node: Node, mapping: DimensionMap, strategy: ShardingStrategy
    ) -> int:
        """Nanoseconds of a node's part on one core."""
        shapes = tuple(
            None if spec is None else local_shape(spec, graph.info(name).dims, self.mesh.sizes)
            for name, spec in (
                *zip(node.inputs, strategy.inputs, strict=True),
                *zip(node.outputs, strategy.outputs, strict=True),
            )
        )
        types = tuple(graph.info(name).dtype for name in (*node.reads, *node.writes))
        text = tuple((name, str(value)) for name, value in node.attributes)
        pieces = tuple(strategy.pieces(n, self.mesh) for n in range(len(mapping.factors)))
        key = (node.operator, text, shapes, types, pieces)
        if key not in self._nodes:
            self._nodes[key] = self._priced(single(graph, node, mapping, strategy, self.mesh))
        return self._nodes[key]

    def _priced(self, part: Graph) -> int:
        """ns of a small graph on one core."""
        return sum(self.kernels(prepared(part)))

    def kernels(self, lowered: Graph) -> list[int]:
        """ns of each node of a lowered graph."""
        return [self._step(lowered, node) for node in lowered.nodes]

    def _step(self, graph: Graph, node: Node) -> int:
        if node.kind in ("view", "join"):
            return 0
        if node.workload is not None:
            workload = in_precision(node.workload, precision_dtype(self.precision), WIDE)
            if workload not in self._kernels:
                self._kernels[workload] = self._kernel(workload)
            cost = self._kernels[workload]
            if cost is not None:
                return cost
        infos = [graph.info(name) for name in (*node.reads, *node.writes)]
        moved = sum(i.elements * self.size(i.dtype) for i in infos if i.known)
        return round(moved / self.bytes_per_ns)

    def _kernel(self, workload: Workload) -> int | None:
        """ns of a kernel; None where a core has no schedule of it."""
        try:
            simulated = simulate(workload, self.machine.target, None, "roofline")
        except (TargetError, WorkloadError):
            return None
        return max(1, round(simulated.latency_us * 1e3))

    def move(self, source: Spec, wanted: Spec, shape: Sequence[int], dtype: str) -> int:
        """ns from one spec of a tensor to another."""
        key = (source, wanted, tuple(shape), dtype)
        if key not in self._moves:
            steps = steps_between(source, wanted, shape, self.mesh)
            self._moves[key] = sum(self.step(step, shape, dtype) for step in steps)
        return self._moves[key]

    def step(self, step: ReshardingStep, shape: Sequence[int], dtype: str) -> int:
        """ns of one collective; of what a core does alone, the copying."""
        if step.kind not in COLLECTIVES:
            kept = local_shape(step.after, shape, self.mesh.sizes)
            return round(2 * elements(kept) * self.size(dtype) / self.bytes_per_ns)
        sent = step.wire_bytes(shape, self.size(dtype), self.mesh)
        return self.collective(step.kind, step.axes, sent)

    def send(self, sent: int, distance: int) -> int:
        """ns for every core to send bytes to the one so many numbers on."""
        key = ("send", (str(distance),), sent)
        if key not in self._wires:
            group = (self.mesh.cores[0], self.mesh.cores[0] + distance)
            cost = collective_cost(self.machine, "send", sent, group)
            self._wires[key] = round(cost.seconds * 1e9)
        return self._wires[key]

    def collective(self, kind: str, axes: tuple[str, ...], sent: int) -> int:
        """ns of a collective along axes; its groups do it at the same time and share links."""
        key = (kind, axes, sent)
        if key not in self._wires:
            (known,) = (name for name in _KINDS if name == kind)
            groups = tuple(
                tuple(self.mesh.cores[place] for place in group) for group in self.mesh.groups(axes)
            )
            cost = collective_cost(self.machine, known, sent, groups[0], groups)
            self._wires[key] = round(cost.seconds * 1e9)
        return self._wires[key]
