"""`ShardedProgram`: what every core of a mesh runs: one program for all, on parts of the tensors.

It is the model's graph with local shapes, cut into segments of plain operators, and moves between
them: collectives and local changes of a spec. Weights that are cut are inputs of the segments, so
that all cores run the same code on weights of their own; so are the few scalars that say where in a
tensor a core's part begins. Invariants: segments and moves stand in an order in which each reads
what came before; a tensor is written once; the same names mean the same tensors on all cores.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from tilesmith.capabilities.sharding.layouts.mesh import LogicalMesh
from tilesmith.capabilities.sharding.layouts.specs import Spec
from tilesmith.capabilities.sharding.partitioning.localise import Start
from tilesmith.capabilities.sharding.partitioning.resharding import ReshardingStep
from tilesmith.compiler.graph.graph import Graph, TensorInfo
from tilesmith.compiler.numerics.precision import held_as
from tilesmith.search_space.expressions.dtypes import size_of


@dataclass(frozen=True)
class Move:
    """A tensor under another spec.

    Attributes:
        step: what is done.
        source, result: names on the cores.
        tensor: the model's name of it.
        shape: the whole tensor's.
    """

    step: ReshardingStep
    source: str
    result: str
    tensor: str
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ProgramSegment:
    """Operators between two moves; `graph` computes one core's part of them."""

    graph: Graph


@dataclass(frozen=True)
class Placed:
    """A tensor of the model on the cores: its whole shape, its spec, the name of its parts."""

    info: TensorInfo
    spec: Spec
    local: str


@dataclass(frozen=True, eq=False)
class ShardedProgram:
    """A model on a mesh.

    Attributes:
        inputs, outputs: what a caller gives and gets, in the model's order.
        inside: what nodes write, in the spec in which they write it.
        weights: constants of the model that cores are given parts of, and their values.
        starts: scalars that differ from core to core, by name.
        order: segments and moves as they are run.
        tensors: every tensor of a core, by name.
        stages: the stage of a pipeline that each of `order` is in, on cores of its own.
        precision: that cores hold an fp32 model's tensors in.
    """

    name: str
    mesh: LogicalMesh
    inputs: tuple[Placed, ...]
    outputs: tuple[Placed, ...]
    inside: tuple[Placed, ...]
    weights: tuple[Placed, ...]
    values: Mapping[str, NDArray[Any]]
    starts: Mapping[str, Start]
    order: tuple[ProgramSegment | Move, ...]
    tensors: Mapping[str, TensorInfo]
    stages: tuple[int, ...]
    precision: str = "fp32"

    def stage(self, number: int) -> tuple[ProgramSegment | Move, ...]:
        """What the cores of a stage run."""
        pairs = zip(self.order, self.stages, strict=True)
        return tuple(item for item, stage in pairs if stage == number)

    def crossing(self, number: int) -> tuple[str, ...]:
        """Tensors of a core that stages up to a number make and later ones read, in the order in
        which they are made; what the caller gives is there in every stage, and what he gets stays
        on the cores that made it."""
        written: dict[str, None] = {}
        read: set[str] = set()
        for item, stage in zip(self.order, self.stages, strict=True):
            if stage <= number:
                written.update(dict.fromkeys(_writes(item)))
            else:
                read.update(_reads(item))
        return tuple(name for name in written if name in read)

    def made_in(self, name: str) -> int:
        """The stage that makes a tensor of a core; the first, of what is given."""
        return self._makers.get(name, 0)

    @cached_property
    def _makers(self) -> dict[str, int]:
        pairs = zip(self.order, self.stages, strict=True)
        return {name: stage for item, stage in pairs for name in _writes(item)}

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        return tuple(item for item in self.order if isinstance(item, Move))

    @cached_property
    def segments(self) -> tuple[ProgramSegment, ...]:
        return tuple(item for item in self.order if isinstance(item, ProgramSegment))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights on one core; of a pipeline's, in the stage that has most."""
        sizes = {placed.local: self.nbytes(placed.local) for placed in self.weights}
        read: dict[int, set[str]] = {}
        for item, stage in zip(self.order, self.stages, strict=True):
            read.setdefault(stage, set()).update(_reads(item))
        return max(
            (sum(sizes.get(name, 0) for name in names) for names in read.values()), default=0
        )

    @cached_property
    def activation_bytes(self) -> int:
        """Most bytes of other tensors that one core holds at the same time."""
        last: dict[str, int] = {}
        for number, item in enumerate(self.order):
            for name in _reads(item):
                last[name] = number
        ends = {placed.local for placed in self.outputs}
        weights = {placed.local for placed in self.weights}
        held = {placed.local: self.nbytes(placed.local) for placed in self.inputs}
        most = sum(held.values())
        for number, item in enumerate(self.order):
            for name in _writes(item):
                held[name] = self.nbytes(name)
            most = max(most, sum(held.values()))
            gone = (n for n in held if last.get(n, -1) <= number and n not in ends)
            for name in tuple(gone):
                if name not in weights:
                    del held[name]
        return most

    def nbytes(self, name: str) -> int:
        """Bytes of a tensor on one core; 0 where they are not known."""
        info = self.tensors[name]
        size = size_of(held_as(info.dtype, self.precision))
        return info.elements * size if info.known else 0


def _reads(item: ProgramSegment | Move) -> Iterator[str]:
    if isinstance(item, Move):
        yield item.source
    else:
        for node in item.graph.nodes:
            yield from node.reads


def _writes(item: ProgramSegment | Move) -> Iterator[str]:
    if isinstance(item, Move):
        yield item.result
    else:
        for node in item.graph.nodes:
            yield from node.writes
