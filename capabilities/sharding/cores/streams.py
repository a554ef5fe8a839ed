"""A sharded model as programs of cores that communicate: kernels and collectives, all linked.

    Program ─ the host's part ahead ─ each core's program ─ backend ─► streams

How programs become one instruction stream a core is the backend's (`link_cores`). The stages of a
pipeline stand on cores side by side, each core sending to its like in the next stage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.sharding.cores.ahead import Divided, divided
from tilesmith.capabilities.sharding.cores.core_programs import (
    CoreInStage,
    OneCore,
    Recipes,
    one_core,
    ref_at,
)
from tilesmith.capabilities.sharding.cores.exchanges import Seat
from tilesmith.capabilities.sharding.cores.execution import parts_of
from tilesmith.capabilities.sharding.layouts.specs import assembled
from tilesmith.capabilities.sharding.partitioning.program import Placed, ShardedProgram
from tilesmith.compiler.backends.backend import backend_of
from tilesmith.compiler.backends.many_cores import LinkedCores, Played
from tilesmith.compiler.graph.indices import index_fault
from tilesmith.compiler.recipe.program import TensorRef, view_of
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.meshes.mesh import Mesh
from tilesmith.search_space.support.errors import InputError, JobError

Arrays = Mapping[str, NDArray[Any]]

PIECES = (1, 2, 4, 8)
"""Sums are cut into so many pieces, which overlap with computing; the fastest played is taken."""

PIECE_BYTES = 1 << 17
"""Pieces are not tried to be smaller."""


@dataclass(frozen=True, eq=False)
class ShardedStreams:
    """A sharded model on its cores.

    Attributes:
        divided: what the host does first, and the program of the cores.
        cores: by the machine's number, stage after stage.
        microbatches: how many batches of the model's size a run takes.
    """

    divided: Divided
    cores: Mapping[int, OneCore]
    linked: LinkedCores
    microbatches: int

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """The model's outputs by name, from its whole inputs by name; of a pipeline, every
        microbatch is given the same.

        Raises:
            ModelError: an input is missing or of another shape.
            JobError: an index is out of range.
        """
        return self.run_batches((inputs,) * self.microbatches)[0]

    def run_batches(self, batches: Sequence[Arrays]) -> list[dict[str, NDArray[Any]]]:
        """The outputs of each microbatch; see `run`.

        Raises:
            InputError: not as many batches as the streams are for.
        """
        program = self.divided.program
        if len(batches) != self.microbatches:
            raise InputError(
                f"'{program.name}' takes {self.microbatches} microbatches at a time, "
                f"not {len(batches)}"
            )
        given = [self.divided.prepared(parts_of(program, one)) for one in batches]
        memories = {core: _memory(one, given) for core, one in self.cores.items()}
        self.linked.run(memories)
        return [
            {p.info.name: self._output(p, number, memories) for p in program.outputs}
            for number in range(self.microbatches)
        ]

    def _output(
        self, placed: Placed, number: int, memories: Mapping[int, Mapping[str, NDArray[np.uint8]]]
    ) -> NDArray[Any]:
        """An output of a microbatch, from the cores of the stage that makes it."""
        parts = []
        for core, one in self.cores.items():
            for ref in one.outputs:
                if ref.info.name == placed.local:
                    array = _array(memories[core], ref_at(ref, number * one.batch_bytes))
                    parts.append(array.astype(to_numpy(placed.info.dtype)))
        mesh = self.divided.program.mesh
        return assembled(parts, placed.spec, placed.info.dims, mesh)

    def play(self) -> Played:
        """All cores on one timeline."""
        return self.linked.play()


def streams_of(program: ShardedProgram, machine: Mesh, microbatches: int = 1) -> ShardedStreams:
    """Compile, link and verify a sharded model for its cores.

    Raises:
        TargetError: the cores' family has no collectives in its programs.
        ModelError: part of the model would run on the host between what cores run.
        VerificationError: cores would wait for each other for ever.
    """
    parts, known = divided(program), Recipes()
    counts = (1,) if backend_of(machine.target).sends_rows else _piece_counts(program)
    linked = [_with_pieces(parts, machine, pieces, known, microbatches) for pieces in counts]
    return min(linked, key=lambda streams: streams.play().makespan_us)


def _piece_counts(program: ShardedProgram) -> tuple[int, ...]:
    """Into how many pieces sums are tried to be cut; small ones are all start-up."""
    sums = (move for move in program.moves if move.step.kind == "all_reduce")
    largest = max((program.tensors[move.source].nbytes for move in sums), default=0)
    return tuple(pieces for pieces in PIECES if pieces == 1 or largest // pieces >= PIECE_BYTES)


def _with_pieces(
    parts: Divided, machine: Mesh, pieces: int, known: Recipes, microbatches: int
) -> ShardedStreams:
    program = parts.program
    nothing = {p.info.name: np.zeros(p.info.dims, to_numpy(p.info.dtype)) for p in program.inputs}
    given = parts_of(program, nothing)
    cores: dict[int, OneCore] = {}
    for stage in range(max(program.stages, default=0) + 1):
        before = program.mesh.cores[0] + (stage - 1) * program.mesh.size
        stored = cores[before].stored if stage else {}
        numbers = tuple(core + stage * program.mesh.size for core in program.mesh.cores)
        mesh = replace(program.mesh, cores=numbers)
        for number, own in enumerate(given):
            where = CoreInStage(Seat(mesh, number), stage, microbatches, stored)
            cores[where.core] = one_core(program, machine, where, own, known, pieces)
    programs = {core: one.program for core, one in cores.items()}
    linked = backend_of(machine.target).link_cores(programs, machine)
    return ShardedStreams(parts, cores, linked, microbatches)


def _memory(one: OneCore, given: Sequence[Sequence[Arrays]]) -> dict[str, NDArray[np.uint8]]:
    """The memory of a core before a run: `given` by microbatch and by the core's seat."""
    program = one.program
    memory = {
        "arena": np.zeros(program.arena_bytes, np.uint8),
        "constant": program.constants.copy(),
    }
    for number, batch in enumerate(given):
        own = batch[one.where.seat.number]
        for check in one.checks:
            if fault := index_fault(own[check.indices.info.name], check.extents):
                raise JobError(f"{check.node} {fault}")
        for ref in one.inputs:
            _array(memory, ref_at(ref, number * one.batch_bytes))[...] = own[ref.info.name]
    return memory


def _array(memory: Mapping[str, NDArray[np.uint8]], ref: TensorRef) -> NDArray[Any]:
    dtype = to_numpy(ref.stored or ref.info.dtype)
    return view_of(memory[ref.place.region], ref.place.offset, dtype, ref.info.dims)
