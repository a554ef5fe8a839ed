"""A sharded model as programs of cores that communicate: kernels and collectives, all linked.

    Program ─ segments compiled, one after another ─► CoreProgram of each core ─ backend ─► streams

A core's segments are compiled with its own parts of the weights as constants, as a whole model's
are, and share one arena: a tensor that crosses from one to the next lies where it was written. How
programs become one instruction stream a core is the backend's (`link_cores`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.backend import backend_of
from tilesmith.compiler.build import build
from tilesmith.compiler.graph import Graph, TensorInfo
from tilesmith.compiler.many_cores import CoreProgram, Exchange, LinkedCores, Played
from tilesmith.compiler.memory import ALIGNMENT
from tilesmith.compiler.program import (
    CodeObject,
    KernelStep,
    Place,
    Recipe,
    TensorRef,
    view_of,
)
from tilesmith.compiler.sharding.exchanges import Held, Seat, exchanges, needs_spare
from tilesmith.compiler.sharding.execution import parts_of
from tilesmith.compiler.sharding.program import Move, Program, Segment
from tilesmith.compiler.sharding.specs import assembled
from tilesmith.search_space.dtypes import size_of, to_numpy
from tilesmith.search_space.errors import InputError, ModelError
from tilesmith.search_space.mesh import Mesh

Arrays = Mapping[str, NDArray[Any]]

PIECES = (1, 2, 4, 8)
"""Sums are cut into so many pieces, which overlap with computing; the fastest played is taken."""

PIECE_BYTES = 1 << 17
"""Pieces are not tried to be smaller."""


@dataclass(frozen=True, eq=False)
class ShardedStreams:
    """A sharded model on its cores.

    Attributes:
        programs, linked: of the cores, by the machine's numbers.
    """

    program: Program
    programs: Mapping[int, CoreProgram]
    linked: LinkedCores

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """The model's outputs by name, from its whole inputs by name.

        Raises:
            ModelError: an input is missing or of another shape.
        """
        mesh = self.program.mesh
        given = parts_of(self.program, inputs)
        memories = {}
        for core, own in zip(mesh.cores, given, strict=True):
            one = self.programs[core]
            arena = np.zeros(one.arena_bytes, np.uint8)
            memories[core] = {"arena": arena, "constant": one.constants.copy()}
            for ref in one.inputs:
                _array(memories[core], ref)[...] = own[ref.info.name]
        self.linked.run(memories)
        made = [
            {ref.info.name: _array(memories[core], ref) for ref in self.programs[core].outputs}
            for core in mesh.cores
        ]
        return {
            placed.info.name: assembled(
                [own[placed.local].astype(to_numpy(placed.info.dtype)) for own in made],
                placed.spec, placed.info.dims, mesh,
            )
            for placed in self.program.outputs
        }  # fmt: skip

    def play(self) -> Played:
        """All cores on one timeline."""
        return self.linked.play()


def streams_of(program: Program, machine: Mesh) -> ShardedStreams:
    """Compile, link and verify a sharded model for its cores.

    Raises:
        InputError: a model in stages of a pipeline.
        TargetError: the cores' family has no collectives in its programs.
        ModelError: part of the model would run on the host, or is checked by it.
        VerificationError: cores would wait for each other for ever.
    """
    if max(program.stages, default=0):
        raise InputError(
            f"'{program.name}' is in stages of a pipeline, and only the cores of one stage are "
            "played together; leave --pipeline out"
        )
    known: dict[tuple[str, bytes], Recipe] = {}
    found = [_with_pieces(program, machine, pieces, known) for pieces in _piece_counts(program)]
    return min(found, key=lambda streams: streams.play().makespan_us)


def _piece_counts(program: Program) -> tuple[int, ...]:
    """Into how many pieces sums are tried to be cut; small ones are all start-up."""
    sums = (move for move in program.moves if move.step.kind == "all_reduce")
    largest = max((program.tensors[move.source].nbytes for move in sums), default=0)
    return tuple(pieces for pieces in PIECES if pieces == 1 or largest // pieces >= PIECE_BYTES)


def _with_pieces(
    program: Program, machine: Mesh, pieces: int, known: dict[tuple[str, bytes], Recipe]
) -> ShardedStreams:
    nothing = {p.info.name: np.zeros(p.info.dims, to_numpy(p.info.dtype)) for p in program.inputs}
    programs = {}
    for number, own in enumerate(parts_of(program, nothing)):
        seat = Seat(program.mesh, number)
        programs[program.mesh.cores[number]] = _Core(
            program, machine, seat, own, known, pieces
        ).program()
    return ShardedStreams(
        program, programs, backend_of(machine.target).link_cores(programs, machine)
    )


def _array(memory: Mapping[str, NDArray[np.uint8]], ref: TensorRef) -> NDArray[Any]:
    dtype = to_numpy(ref.stored or ref.info.dtype)
    return view_of(memory[ref.place.region], ref.place.offset, dtype, ref.info.dims)


@dataclass
class _Core:
    """The program of one core in the making.

    Attributes:
        own: its weights and starts, by name; of inputs only the shapes count.
        known: segments that another core compiled with the same weights.
        pieces: into how many sums are cut.
        where: tensors that are there so far; `borrowed` of them are in the arena of a segment.
    """

    whole: Program
    machine: Mesh
    seat: Seat
    own: Arrays
    known: dict[tuple[str, bytes], Recipe]
    pieces: int
    where: dict[str, TensorRef] = field(default_factory=dict)
    inputs: dict[str, TensorRef] = field(default_factory=dict)
    order: list[KernelStep | Exchange] = field(default_factory=list)
    codes: dict[bytes, int] = field(default_factory=dict)
    code_list: list[CodeObject] = field(default_factory=list)
    constants: list[NDArray[np.uint8]] = field(default_factory=list)
    constant_bytes: int = 0
    arena_bytes: int = 0

    def program(self) -> CoreProgram:
        for item in self.whole.order:
            if isinstance(item, Segment):
                self._segment(item.graph)
            else:
                self._move(item)
        outputs = [self._found(placed.local) for placed in self.whole.outputs]
        return CoreProgram(
            self.whole.name, self.machine.target, tuple(self.order), tuple(self.code_list),
            np.concatenate([np.zeros(0, np.uint8), *self.constants]), self.arena_bytes,
            tuple(self.inputs.values()), tuple(outputs),
        )  # fmt: skip

    # -- segments -----------------------------------------------------------------------------
    def _segment(self, graph: Graph) -> None:
        recipe = self._compiled(graph)
        _check(recipe)
        arena = self._room(recipe.arena_bytes)
        constant = self.constant_bytes
        pieces = list(recipe.pieces())
        self.constants += [*pieces, np.zeros(-sum(p.size for p in pieces) % ALIGNMENT, np.uint8)]
        self.constant_bytes += -(-sum(p.size for p in pieces) // ALIGNMENT) * ALIGNMENT
        moved: list[tuple[int, int, Place]] = []

        def place(old: Place) -> Place:
            if old.region == "constant":
                return Place("constant", constant + old.offset)
            if old.region != "arena":
                return old
            for start, nbytes, new in moved:
                if start <= old.offset < start + nbytes:
                    return replace(new, offset=new.offset + old.offset - start)
            return Place("arena", arena + old.offset)

        for ref in recipe.inputs:
            there = self.where.get(ref.info.name)
            if ref.place.region != "arena":
                continue
            if there is None:
                there = self._given(replace(ref, place=place(ref.place)))
            _check_stored(there, ref)
            moved.append((ref.place.offset, _nbytes(ref), there.place))
        for ref in recipe.outputs:
            self.where[ref.info.name] = replace(ref, place=place(ref.place))
        for step in recipe.steps:
            assert isinstance(step, KernelStep), "checked"
            code = self._code(recipe.codes[step.code])
            self.order.append(replace(step, code=code, arguments=tuple(map(place, step.arguments))))

    def _compiled(self, graph: Graph) -> Recipe:
        """A segment with the core's weights as constants, but those that moves bring."""
        names = {placed.local for placed in self.whole.weights} | self.whole.starts.keys()
        inside = [i for i in graph.inputs if i.name in names and i.name not in self.where]
        values = {info.name: self.own[info.name] for info in inside}
        key = graph.name, b"".join(value.tobytes() for value in values.values())
        if key not in self.known:
            inputs = tuple(info for info in graph.inputs if info.name not in values)
            full = graph.with_(inputs=inputs, constants={**graph.constants, **values})
            self.known[key] = build(full, self.machine.target).recipe
        return self.known[key]

    def _code(self, code: CodeObject) -> int:
        if code.code not in self.codes:
            self.codes[code.code] = len(self.code_list)
            self.code_list.append(code)
        return self.codes[code.code]

    # -- moves --------------------------------------------------------------------------------
    def _move(self, move: Move) -> None:
        source = self._found(move.source)
        info = self.whole.tensors[move.result]
        result = TensorRef(info, Place("arena", self._room(info.nbytes)), source.stored)
        dtype = source.stored or info.dtype
        elements = needs_spare(move, self.whole.mesh)
        spare = Held(Place("arena", self._room(elements * size_of(dtype))), dtype, elements)
        self.order += exchanges(move, self.seat, _held(source), _held(result), spare, self.pieces)
        self.where[move.result] = result

    # -- memory -------------------------------------------------------------------------------
    def _room(self, nbytes: int) -> int:
        """The offset of fresh bytes in the arena."""
        start = self.arena_bytes
        self.arena_bytes += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return start

    def _found(self, name: str) -> TensorRef:
        """Where a tensor lies; what no segment took yet is put into the arena before the run."""
        if name not in self.where:
            info: TensorInfo = self.whole.tensors[name]
            self._given(TensorRef(info, Place("arena", self._room(info.nbytes))))
        return self.where[name]

    def _given(self, ref: TensorRef) -> TensorRef:
        self.where[ref.info.name] = self.inputs[ref.info.name] = ref
        return ref


def _held(ref: TensorRef) -> Held:
    return Held(ref.place, ref.stored or ref.info.dtype, ref.info.elements)


def _nbytes(ref: TensorRef) -> int:
    return ref.info.elements * size_of(ref.stored or ref.info.dtype)


def _check(recipe: Recipe) -> None:
    """Raise `ModelError` where a core alone cannot run a segment."""
    if recipe.report.host_nodes:
        raise ModelError(
            f"{recipe.report.host_nodes[0]} of '{recipe.name}' runs on the host, so that its cores "
            "run no single program; run the model in segments, or change that operator"
        )
    for step in recipe.steps:
        if isinstance(step, KernelStep) and step.checks:
            raise ModelError(
                f"{step.checks[0].node} of '{recipe.name}' takes rows by indices that the host "
                "checks first, so that its cores run no single program; shard what follows it"
            )


def _check_stored(there: TensorRef, ref: TensorRef) -> None:
    if (there.stored or there.info.dtype) != (ref.stored or ref.info.dtype):
        raise ModelError(
            f"'{ref.info.name}' is {there.stored or there.info.dtype} in memory and "
            f"{ref.stored or ref.info.dtype} where it is read; its cores run no single program"
        )
