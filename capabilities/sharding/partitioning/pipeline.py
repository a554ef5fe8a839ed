"""Pipelines: a sharded model cut into stages, each on cores of its own, microbatches between them.

A stage is an unbroken part of the nodes' order; what it makes and a later one reads is sent on from
core to core, each sending its own part. With m microbatches and only forward passes the model takes

    sum of the stages' times + (m - 1) x the slowest stage's

where a stage's time is its computing, its collectives and what it receives. The best cuts are found
exactly: for every boundary and number of stages the pairs (slowest, sum of sends) that nothing
beats are kept. Where an order is longer than `_BOUNDARIES` nodes, only the boundaries that the
fewest bytes cross are considered. Invariant: memory of every stage's cores holds its weights and
the most that is alive inside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tilesmith.capabilities.sharding.layouts.dimension_maps import dimension_map
from tilesmith.capabilities.sharding.layouts.specs import Spec, local_shape
from tilesmith.capabilities.sharding.partitioning.costs import Costs
from tilesmith.capabilities.sharding.partitioning.localise import elements, is_weight
from tilesmith.capabilities.sharding.partitioning.partition import Sharding
from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.json_object import JsonObject

_BOUNDARIES = 250


@dataclass(frozen=True)
class _Stage(JsonObject, keys="... us"):
    """A part of the order of nodes.

    Attributes:
        first, last: its nodes, the last excluded.
        work_us: computing and collectives; receive_us: of what comes from the stage before.
        sent_bytes: what comes, on one core.
        weight_bytes: of one core.
    """

    first: int
    last: int
    work_us: float
    receive_us: float
    sent_bytes: int
    weight_bytes: int

    @property
    def us(self) -> float:
        return self.work_us + self.receive_us


@dataclass(frozen=True)
class MeshPipeline(JsonObject, keys="stages microbatches latency_us interval_us bubble"):
    """The best cuts into stages."""

    stages: tuple[_Stage, ...]
    microbatches: int

    @property
    def interval_us(self) -> float:
        """Between two microbatches: the slowest stage."""
        return max(stage.us for stage in self.stages)

    @property
    def latency_us(self) -> float:
        """From the first microbatch's start to the last one's end."""
        return sum(s.us for s in self.stages) + (self.microbatches - 1) * self.interval_us

    @property
    def bubble(self) -> float:
        """Share of the stages' time in which they wait."""
        busy = self.microbatches * sum(stage.us for stage in self.stages)
        return 1 - busy / (len(self.stages) * self.latency_us)

    def stage_of(self, graph: Graph) -> dict[Node, int]:
        """The stage of every node."""
        return {
            node: number
            for number, stage in enumerate(self.stages)
            for node in graph.nodes[stage.first : stage.last]
        }


def pipeline_of(sharding: Sharding, costs: Costs, stages: int, microbatches: int) -> MeshPipeline:
    """The best cuts of a sharded model into stages.

    Raises:
        InputError: fewer nodes than stages, or no cuts whose stages fit their cores' memory.
    """
    nodes = len(sharding.graph.nodes)
    if stages > nodes:
        raise InputError(
            f"'{sharding.graph.title}' has {nodes} operators, too few for {stages} stages of a "
            f"pipeline; at most {nodes} are possible"
        )
    return _Cutter(sharding, costs, stages, microbatches).best()


class _Cutter:
    """Sums over stretches of the order, and the search for cuts."""

    def __init__(self, sharding: Sharding, costs: Costs, stages: int, microbatches: int) -> None:
        self.sharding, self.costs = sharding, costs
        self.graph = sharding.graph
        self.count, self.microbatches = stages, microbatches
        self.size = len(self.graph.nodes)
        self.work = [0.0]
        self.own: list[dict[str, int]] = []
        self.crossing = [0] * (self.size + 1)
        self._walk()
        self.receive = [self._send(bytes_) for bytes_ in self.crossing]

    def _walk(self) -> None:
        """Times, weights and what is alive, node by node."""
        seen: set[tuple[str, Spec]] = set()
        last: dict[str, int] = {}
        for number, node in enumerate(self.graph.nodes):
            last.update((n, number) for n in node.reads)
        for number, node in enumerate(self.graph.nodes):
            strategy = self.sharding.strategies[node]
            time = self.costs.node(self.graph, node, dimension_map(self.graph, node), strategy)
            weights = {}
            for name, wanted in zip(node.inputs, strategy.inputs, strict=True):
                produced = self.sharding.produced(name) if name else None
                if wanted is None:
                    continue
                info = self.graph.info(name)
                if produced is not None and (name, wanted) not in seen:
                    seen.add((name, wanted))
                    time += self.costs.move(produced, wanted, info.dims, info.dtype)
                if is_weight(self.graph, name, wanted):
                    weights[f"{name} {wanted}"] = self._bytes(name, wanted)
            self.work.append(self.work[-1] + time / 1e3)
            self.own.append(weights)
            for name, spec in zip(node.outputs, strategy.outputs, strict=True):
                if spec is not None:
                    for boundary in range(number + 1, last.get(name, 0) + 1):
                        self.crossing[boundary] += self._bytes(name, spec)

    def _bytes(self, name: str, spec: Spec) -> int:
        info = self.graph.info(name)
        shape = local_shape(spec, info.dims, self.costs.mesh.sizes)
        return elements(shape) * self.costs.size(info.dtype)

    def _send(self, size: int) -> float:
        """us for a core to send so many bytes to its like in the next stage."""
        return self.costs.send(size, self.costs.mesh.size) / 1e3 if size else 0.0

    def best(self) -> MeshPipeline:
        inner = sorted(range(1, self.size), key=lambda b: (self.crossing[b], b))
        bounds = [0, *sorted(inner[: max(_BOUNDARIES, self.count - 1)]), self.size]
        # (slowest, sum of receiving, cuts) that nothing beats, for each boundary
        fronts: dict[int, list[tuple[float, float, tuple[int, ...]]]] = {0: [(0.0, 0.0, ())]}
        for stage in range(self.count):
            grown: dict[int, list[tuple[float, float, tuple[int, ...]]]] = {}
            for first, front in fronts.items():
                ends = [b for b in bounds if first < b < self.size]
                ends = ends if stage < self.count - 1 else [self.size]
                for last in self._fitting(first, ends):
                    time = self.work[last] - self.work[first] + self.receive[first]
                    grown.setdefault(last, []).extend(
                        (max(slowest, time), sends + self.receive[first], (*cuts, last))
                        for slowest, sends, cuts in front
                    )
            fronts = {last: _unbeaten(stages) for last, stages in grown.items()}
        final = fronts.get(self.size, [])
        if not final:
            raise InputError(
                f"no cut of '{self.graph.title}' into {self.count} stages leaves each with weights "
                f"that fit the {self.costs.core_bytes / 2**30:.4g} GiB of a core; use more stages, "
                "or more cores for each"
            )
        chosen = min(final, key=lambda f: ((self.microbatches - 1) * f[0] + f[1], f[2]))
        return MeshPipeline(self._stages(chosen[2]), self.microbatches)

    def _fitting(self, first: int, ends: Sequence[int]) -> list[int]:
        """Ends of stages that begin at a boundary whose weights fit a core."""
        held: dict[str, int] = {}
        total, fitting, at = 0, [], first
        for last in ends:
            for weights in self.own[at:last]:
                for name, size in weights.items():
                    total += 0 if name in held else size
                    held[name] = size
            at = last
            if total + max(self.crossing[first : last + 1], default=0) > self.costs.core_bytes:
                break
            fitting.append(last)
        return fitting

    def _stages(self, cuts: Sequence[int]) -> tuple[_Stage, ...]:
        stages = []
        for first, last in zip((0, *cuts), cuts, strict=False):
            weights: dict[str, int] = {}
            for own in self.own[first:last]:
                weights.update(own)
            stages.append(
                _Stage(
                    first, last, self.work[last] - self.work[first], self.receive[first],
                    self.crossing[first], sum(weights.values()),
                )
            )  # fmt: skip
        return tuple(stages)


def _unbeaten(
    ways: Sequence[tuple[float, float, tuple[int, ...]]],
) -> list[tuple[float, float, tuple[int, ...]]]:
    """Those that no other beats in both numbers."""
    kept: list[tuple[float, float, tuple[int, ...]]] = []
    for one in sorted(ways):
        if not kept or one[1] < kept[-1][1]:
            kept.append(one)
    return kept
