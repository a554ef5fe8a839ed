"""The program of one core: its segments compiled, its moves as exchanges, in one arena.

A core's segments are compiled with its own parts of the weights as constants, as a whole model's
are, and share one arena: a tensor that crosses from one to the next lies where it was written. Of a
pipeline a core runs one stage: it receives what the stage before sends, for one microbatch after
another, each in memory of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.sharding.cores.exchanges import CoreTensor, Seat, exchanges, needs_spare
from tilesmith.capabilities.sharding.partitioning.program import (
    Move,
    ProgramSegment,
    ShardedProgram,
)
from tilesmith.compiler.backends.many_cores import CoreProgram, Exchange, ExchangeKind
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.graph.graph import Graph, TensorInfo
from tilesmith.compiler.recipe.memory import ALIGNMENT
from tilesmith.compiler.recipe.program import (
    CodeObject,
    IndexCheck,
    KernelStep,
    Place,
    Recipe,
    TensorRef,
)
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.meshes.mesh import Mesh
from tilesmith.search_space.support.errors import ModelError

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class CoreInStage:
    """A core of a pipeline's stage; of a model in one stage, stage 0 of one microbatch.

    Attributes:
        seat: its place in the mesh of the stage.
        stored: by tensor that the stage before sends, the element type that it has in memory.
    """

    seat: Seat
    stage: int = 0
    microbatches: int = 1
    stored: Mapping[str, str] = field(default_factory=dict)

    @property
    def core(self) -> int:
        """The machine's number."""
        return self.seat.mesh.cores[self.seat.number]


@dataclass(frozen=True, eq=False)
class OneCore:
    """The program of one core, and where its tensors lie.

    Attributes:
        program: for all microbatches, one after another.
        batch_bytes: from a place in the arena to its like of the next microbatch.
        inputs, outputs: of the first microbatch.
        checks: indices among the inputs that must be in range.
        stored: by tensor that it sends on, the element type that it has in memory.
    """

    where: CoreInStage
    program: CoreProgram
    batch_bytes: int
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]
    checks: tuple[IndexCheck, ...]
    stored: Mapping[str, str]


Recipes = dict[tuple[str, bytes], Recipe]
"""Segments compiled so far, by name and by the core's parts of weights."""


def one_core(
    program: ShardedProgram,
    machine: Mesh,
    where: CoreInStage,
    own: Arrays,
    known: Recipes,
    pieces: int,
) -> OneCore:
    """Compile what a core runs.

    Args:
        program: what is left for cores (`ahead`).
        own: its weights and starts by name; of inputs only the shapes count.
        known: compiled by other cores; added to.
        pieces: into how many sums are cut.

    Raises:
        ModelError: part of it would run on the host, or is checked by it meanwhile.
    """
    return _Core(program, machine, where, own, known, pieces).compiled()


@dataclass
class _Core:
    """The program of one core in the making; see `one_core`.

    Attributes:
        where: tensors that are there so far.
    """

    whole: ShardedProgram
    machine: Mesh
    place: CoreInStage
    own: Arrays
    known: Recipes
    pieces: int
    where: dict[str, TensorRef] = field(default_factory=dict)
    inputs: dict[str, TensorRef] = field(default_factory=dict)
    checks: list[IndexCheck] = field(default_factory=list)
    order: list[KernelStep | Exchange] = field(default_factory=list)
    codes: dict[bytes, int] = field(default_factory=dict)
    code_list: list[CodeObject] = field(default_factory=list)
    constants: list[NDArray[np.uint8]] = field(default_factory=list)
    constant_bytes: int = 0
    arena_bytes: int = 0

    def compiled(self) -> OneCore:
        stage = self.place.stage
        for name in self.whole.crossing(stage - 1):
            self._receive(name)
        for item in self.whole.stage(stage):
            if isinstance(item, ProgramSegment):
                self._segment(item.graph)
            else:
                self._move(item)
        ends = [p.local for p in self.whole.outputs if self.whole.made_in(p.local) == stage]
        outputs = tuple(self._found(name) for name in ends)
        sent = self.whole.crossing(stage)
        for name in sent:
            self._send(name)
        stored = {name: self.where[name].stored for name in sent}
        return OneCore(
            self.place, self._program(outputs), self.arena_bytes, tuple(self.inputs.values()),
            outputs, self._checked(), stored,
        )  # fmt: skip

    def _program(self, outputs: tuple[TensorRef, ...]) -> CoreProgram:
        """The program once for each microbatch, each in memory of its own."""
        starts = [number * self.arena_bytes for number in range(self.place.microbatches)]
        return CoreProgram(
            self.whole.name,
            self.machine.target,
            tuple(_shifted(step, start) for start in starts for step in self.order),
            tuple(self.code_list),
            np.concatenate([np.zeros(0, np.uint8), *self.constants]),
            self.arena_bytes * len(starts),
            tuple(ref_at(ref, start) for start in starts for ref in self.inputs.values()),
            tuple(ref_at(ref, start) for start in starts for ref in outputs),
            tuple(size for _, size in self.whole.mesh.axes),
        )

    def _checked(self) -> tuple[IndexCheck, ...]:
        """The checks of indices before a run; `ModelError` where a core computes the indices."""
        for check in self.checks:
            if check.indices.info.name not in self.inputs:
                raise ModelError(
                    f"{check.node} of '{self.whole.name}' takes rows by indices that the host "
                    "checks when its cores have made them, so that they run no single program; "
                    "give the indices to the model, or shard what follows it"
                )
        return tuple(self.checks)

    def _receive(self, name: str) -> None:
        """From this core's like in the stage before."""
        info = self.whole.tensors[name]
        stored = self.place.stored[name]
        ref = TensorRef(info, Place("arena", self._room(info.nbytes)), stored)
        self.where[name] = ref
        core, size = self.place.core, self.whole.mesh.size
        self.order.append(_sending("receive", ref, (core - size, core)))

    def _send(self, name: str) -> None:
        core, size = self.place.core, self.whole.mesh.size
        self.order.append(_sending("send", self.where[name], (core, core + size)))

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
            if ref.place.region != "arena":
                continue
            there = self.where.get(ref.info.name)
            alone = ref.info.name in recipe.private
            if there is None:
                fresh = place(ref.place) if alone else Place("arena", self._room(_nbytes(ref)))
                there = self._given(replace(ref, place=fresh))
            _check_stored(there, ref)
            if alone:
                moved.append((ref.place.offset, _nbytes(ref), there.place))
            else:  # it lies inside another tensor here
                self.order.append(self._copy(there, replace(ref, place=place(ref.place))))
        for ref in recipe.outputs:
            self.where[ref.info.name] = replace(ref, place=place(ref.place))
        for step in recipe.steps:
            assert isinstance(step, KernelStep), "checked"
            code = self._code(recipe.codes[step.code])
            arguments = tuple(map(place, step.arguments))
            self.checks += step.checks
            self.order.append(replace(step, code=code, arguments=arguments, checks=()))

    def _copy(self, source: TensorRef, result: TensorRef) -> Exchange:
        what = f"copy {source.info.name}"
        views = _held(source).dense(), _held(result).dense()
        return Exchange(what, "copy", (self.place.core,), *views)

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
        spare = CoreTensor(Place("arena", self._room(elements * size_of(dtype))), dtype, elements)
        self.order += exchanges(
            move, self.place.seat, _held(source), _held(result), spare, self.pieces
        )
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


def _held(ref: TensorRef) -> CoreTensor:
    return CoreTensor(ref.place, ref.stored or ref.info.dtype, ref.info.elements)


def _nbytes(ref: TensorRef) -> int:
    return ref.info.elements * size_of(ref.stored or ref.info.dtype)


def _check(recipe: Recipe) -> None:
    """Raise `ModelError` where a core alone cannot run a segment."""
    if recipe.report.host_nodes:
        raise ModelError(
            f"{recipe.report.host_nodes[0]} of '{recipe.title}' runs on the host, so that its "
            "cores run no single program; run the model in segments, or change that operator"
        )


def _sending(kind: ExchangeKind, ref: TensorRef, group: tuple[int, int]) -> Exchange:
    view = _held(ref).dense()
    return Exchange(f"{kind} {ref.info.name}", kind, group, view, view)


def ref_at(ref: TensorRef, distance: int) -> TensorRef:
    """The same tensor in the memory of another microbatch."""
    return replace(ref, place=_place_at(ref.place, distance))


def _shifted(step: KernelStep | Exchange, distance: int) -> KernelStep | Exchange:
    if isinstance(step, KernelStep):
        places = tuple(_place_at(place, distance) for place in step.arguments)
        return replace(step, arguments=places)
    views = (replace(v, place=_place_at(v.place, distance)) for v in (step.source, step.result))
    source, result = views
    return replace(step, source=source, result=result)


def _place_at(place: Place, distance: int) -> Place:
    return replace(place, offset=place.offset + distance) if place.region == "arena" else place


def _check_stored(there: TensorRef, ref: TensorRef) -> None:
    if (there.stored or there.info.dtype) != (ref.stored or ref.info.dtype):
        raise ModelError(
            f"'{ref.info.name}' is {there.stored or there.info.dtype} in memory and "
            f"{ref.stored or ref.info.dtype} where it is read; its cores run no single program"
        )
