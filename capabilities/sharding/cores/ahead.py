"""The host computes ahead of the cores what depends on a caller's integers alone: rows, masks.

Cores compute with floating numbers; which rows of a table a core looks up, and where they are in
its part of it, follows from whole numbers that the caller gives. So operators and moves of a
sharded program that read nothing but those are run by the host, for all cores, and cores are given
what comes of them. Indices that are range-checked before a kernel uses them are looked at there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from tilesmith.capabilities.sharding.partitioning.program import (
    Move,
    ProgramSegment,
    ShardedProgram,
)
from tilesmith.capabilities.sharding.partitioning.resharding import run_step
from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.host.reference import run_reference
from tilesmith.search_space.expressions.dtypes import is_floating

CONVERSION = "Cast"
"""What makes floating numbers of whole ones."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Divided:
    """A program in two parts.

    Attributes:
        ahead: what the host runs first.
        program: what is left for the cores; it reads tensors that `ahead` makes, too.
    """

    ahead: tuple[ProgramSegment | Move, ...]
    program: ShardedProgram

    @property
    def operators(self) -> int:
        """How many operators the host runs, for each core."""
        return sum(len(item.graph.nodes) for item in self.ahead if isinstance(item, ProgramSegment))

    def prepared(self, given: Sequence[Arrays]) -> list[dict[str, NDArray[Any]]]:
        """The inputs of every core, with the tensors that the host computes from them."""
        held = [dict(own) for own in given]
        for item in self.ahead:
            if isinstance(item, Move):
                parts = [own[item.source] for own in held]
                moved = run_step(item.step, parts, item.shape, self.program.mesh)
                for own, value in zip(held, moved, strict=True):
                    own[item.result] = value
                continue
            for own in held:
                own.update(run_reference(item.graph, own))
        return held


def divided(program: ShardedProgram) -> Divided:
    """Take what only reads a caller's whole numbers out of a program."""
    placed = (*program.inputs, *program.weights)
    known = {p.local for p in placed if not is_floating(p.info.dtype)} | program.starts.keys()
    ahead: list[ProgramSegment | Move] = []
    rest: list[ProgramSegment | Move] = []
    stages: list[int] = []
    for item, stage in zip(program.order, program.stages, strict=True):
        if isinstance(item, Move):
            first = item.source in known
            (ahead if first else rest).append(item)
            known |= {item.result} if first else set()
            stages += [] if first else [stage]
            continue
        early = _early(item.graph, known)
        known |= {name for node in early for name in node.writes}
        late = [node for node in item.graph.nodes if node not in set(early)]
        if early:
            written = [name for node in early for name in node.writes]
            ahead.append(ProgramSegment(_part(item.graph, early, written)))
        if late:
            written = [info.name for info in item.graph.outputs if info.name not in known]
            rest.append(ProgramSegment(_part(item.graph, late, written) if early else item.graph))
            stages.append(stage)
    left = replace(program, order=tuple(rest), stages=tuple(stages))
    return Divided(tuple(ahead), left)


def _early(graph: Graph, known: Iterable[str]) -> list[Node]:
    """Nodes that read known tensors and constants alone, and make whole numbers, or floating ones
    of them."""
    there = {*known, *graph.constants}
    early = []
    for node in graph.nodes:
        whole = not any(is_floating(graph.info(name).dtype) for name in node.writes)
        if (whole or node.operator == CONVERSION) and there.issuperset(node.reads):
            there.update(node.writes)
            early.append(node)
    return early


def _part(graph: Graph, nodes: Sequence[Node], wanted: Sequence[str]) -> Graph:
    """Some nodes of a graph as one of their own."""
    written = dict.fromkeys(name for node in nodes for name in node.writes)
    reads = dict.fromkeys(name for node in nodes for name in node.reads)
    return graph.with_(
        nodes=tuple(nodes),
        inputs=tuple(graph.info(n) for n in reads if n not in {*written, *graph.constants}),
        outputs=tuple(graph.info(n) for n in wanted),
        constants={n: graph.constants[n] for n in reads if n in graph.constants},
        tensors={n: graph.info(n) for n in (*reads, *written)},
    )
