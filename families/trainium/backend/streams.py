"""Programs of several cores as instruction streams: kernels and collectives linked to one a core.

An exchange becomes a kernel of its own, one instruction for a collective, loads and stores for a
copy, and is linked with its neighbours like any kernel: collectives overlap with whatever does not
need them. Cores that differ in their groups only share one linked program; those that differ in
addresses are linked as the first of them is fastest.
Invariant: collectives keep the order in which the programs name them, so that streams meet.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

from tilesmith.compiler.backends.many_cores import (
    CoreMemory,
    CorePlayed,
    CoreProgram,
    Exchange,
    LinkedCores,
    Played,
    View,
)
from tilesmith.families.kit.simulation.accounting import exclusive
from tilesmith.families.trainium.backend.program import (
    THOROUGH,
    Effort,
    fastest_and_how,
    part_of,
    places_of,
)
from tilesmith.families.trainium.codegen.isa.core import COLLECTIVE_QUEUE, FIRST_DMA_QUEUE, Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream
from tilesmith.families.trainium.codegen.isa.memory import Dims, HbmView
from tilesmith.families.trainium.codegen.isa.storage import from_bytes
from tilesmith.families.trainium.codegen.isa.verification import verify_together
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.codegen.linking.draft import KernelDraft, Range
from tilesmith.families.trainium.codegen.linking.linker import Linked
from tilesmith.families.trainium.simulator.many_cores import execute_many_in, fabric, timeline_many
from tilesmith.families.trainium.simulator.timelines.timeline import Timeline
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.meshes.mesh import Mesh

COPIED = 4096
"""Elements of a partition that a copy through SBUF moves at a time."""

Groups = tuple[tuple[int, ...], ...]


def linked_streams(programs: Mapping[int, CoreProgram], mesh: Mesh) -> "LinkedStreams":
    """A stream for each core, verified together.

    Raises:
        VerificationError: cores would wait for each other for ever.
    """
    known: dict[object, Linked] = {}
    efforts: dict[object, Effort] = {}
    streams = {}
    for core, program in programs.items():
        groups = _groups(program)
        key = _key(program, groups)
        if key not in known:
            work = _work(program)
            effort = efforts.get(work, THOROUGH)
            known[key], efforts[work] = _linked(program, mesh, core, effort)
        linked = known[key]
        streams[core] = replace(linked, stream=replace(linked.stream, groups=groups))
    verify_together({core: linked.stream for core, linked in streams.items()})
    return LinkedStreams(mesh, streams)


@dataclass(frozen=True, eq=False)
class LinkedStreams(LinkedCores):
    """See `linked_streams`.

    Attributes:
        linked: by the number of the core.
    """

    mesh: Mesh
    linked: Mapping[int, Linked]

    @property
    def streams(self) -> dict[int, InstructionStream]:
        return {core: linked.stream for core, linked in self.linked.items()}

    def run(self, memories: Mapping[int, CoreMemory]) -> None:
        """Instruction by instruction, in numpy; see `execute_many_in`."""
        hbm = {
            core: [memories[core][r.region][r.offset : r.stop] for r in linked.ranges]
            for core, linked in self.linked.items()
        }
        execute_many_in(self.streams, hbm, self.mesh)

    def play(self) -> Played:
        """On one timeline; see `timeline_many`."""
        streams = self.streams
        played = timeline_many(streams, self.mesh)
        return Played(
            played.makespan / 1e3,
            {core: _played(one, played.waited[core]) for core, one in played.cores.items()},
            sum(len(stream) for stream in streams.values()),
            len(verify_together(streams)),
        )


def _groups(program: CoreProgram) -> Groups:
    """Groups of a program's collectives in the order in which it names them."""
    named = (step.group for step in program.order if _communicates(step))
    return tuple(dict.fromkeys(named))


def _communicates(step: object) -> TypeGuard[Exchange]:
    return isinstance(step, Exchange) and step.kind not in ("copy", "zero")


def _key(program: CoreProgram, groups: Groups) -> object:
    """What a program is but for its groups: those of equal keys become equal streams."""
    steps = tuple(
        replace(step, group=(groups.index(step.group), len(step.group)))
        if _communicates(step)
        else step
        if isinstance(step, Exchange)
        else (step.arguments, program.codes[step.code].code)
        for step in program.order
    )
    return steps, tuple(ref.place for ref in program.outputs)


def _work(program: CoreProgram) -> object:
    """What a program does, wherever in memory."""
    return tuple(
        (step.kind, len(step.group), step.source.elements, step.result.elements)
        if isinstance(step, Exchange)
        else (step.workload, step.config)
        for step in program.order
    )


def _linked(program: CoreProgram, mesh: Mesh, core: int, effort: Effort) -> tuple[Linked, Effort]:
    """A core's program, and how the fastest of those tried was linked."""
    machine = Core.of(program.target)
    codes = [from_bytes(code.code, machine) for code in program.codes]
    parts = [
        _exchange(step, machine, mesh, core)
        if isinstance(step, Exchange)
        else part_of(step, codes[step.code])
        for step in program.order
    ]
    return fastest_and_how(program.name, parts, machine, places_of(program.outputs), effort)


def _exchange(step: Exchange, machine: Core, mesh: Mesh, core: int) -> KernelDraft:
    """An exchange as a kernel of its own."""
    kernel = Kernel(step.name, machine, fabric(mesh, core))
    given, result = step.source, step.result
    if step.kind == "send":
        kernel.send(
            _view(kernel.input("source", (given.elements,), given.dtype), given), step.group[1]
        )
        return KernelDraft(step.name, kernel.finish(), (_range(given),))
    out = _view(kernel.output("result", (result.elements,), result.dtype), result)
    places: list[Range | None] = [_range(result)]
    if step.kind == "receive":
        kernel.receive(out, step.group[0])
        return KernelDraft(step.name, kernel.finish(), tuple(places))
    if step.kind == "zero":
        for piece in _pieces(out):
            tile = kernel.sbuf(piece.shape, piece.dtype)
            kernel.memset(tile, 0.0)
            kernel.store(piece, tile)
            kernel.free(tile)
        return KernelDraft(step.name, kernel.finish(), tuple(places))
    source = _view(kernel.input("source", (given.elements,), given.dtype), given)
    places.append(_range(given))
    match step.kind:
        case "all_reduce":
            kernel.all_reduce(out, source, step.group)
        case "reduce_scatter":
            kernel.reduce_scatter(out, source, step.group)
        case "all_gather":
            kernel.all_gather(out, source, step.group)
        case "all_to_all":
            kernel.all_to_all(out, source, step.group)
        case _:
            _copy(kernel, out, source)
    return KernelDraft(step.name, kernel.finish(), tuple(places))


def _copy(kernel: Kernel, out: HbmView, source: HbmView) -> None:
    """Through SBUF, as large pieces as both views allow."""
    shape = tuple(count for count, _ in source.dims)
    if out.shape != shape:  # one of them is row-major: it takes the other's axes
        out = replace(out, dims=_dense(shape))
    for to, piece in zip(_pieces(out), _pieces(source), strict=True):
        tile = kernel.sbuf(piece.shape, piece.dtype)
        kernel.load(tile, piece)
        kernel.store(to, tile)
        kernel.free(tile)


def _dense(shape: tuple[int, ...]) -> Dims:
    return tuple((n, math.prod(shape[axis + 1 :])) for axis, n in enumerate(shape))


def _pieces(view: HbmView) -> Iterator[HbmView]:
    """A view in pieces whose first axis fits the partitions and whose others fit a tile."""
    if len(view.dims) == 1:
        count = view.dims[0][0]
        rows = max(n for n in range(1, 129) if count % n == 0)
        view = view.split(0, rows, count // rows)
    for first in range(0, view.shape[0], 128):
        yield from _narrow(view[first : min(first + 128, view.shape[0])])


def _narrow(view: HbmView) -> Iterator[HbmView]:
    """The same partitions of a view, as many other elements at a time as a copy takes."""
    _, outer, *inner = view.shape
    step = max(1, COPIED // math.prod(inner))
    if math.prod(inner) > COPIED:
        for place in range(outer):
            yield from _narrow(view[:, place])
        return
    for first in range(0, outer, step):
        yield view[:, first : min(first + step, outer)]


def _view(tensor: HbmView, view: View) -> HbmView:
    return replace(tensor, offset=view.first, dims=view.dims)


def _range(view: View) -> Range:
    return Range(view.place.region, view.place.offset, view.elements * size_of(view.dtype))


def _played(one: Timeline, waited: float) -> CorePlayed:
    queue = one.stream.rows["queue"]
    computing, between = (
        (one.start[mine], one.end[mine])
        for mine in (queue < FIRST_DMA_QUEUE, queue == COLLECTIVE_QUEUE)
    )
    alone = exclusive({"computing": computing, "between": between}, one.makespan)
    under_way = exclusive({"between": between}, one.makespan)["between"]
    hidden = under_way - alone["between"]
    times = (one.makespan, alone["computing"], under_way, waited, hidden)
    return CorePlayed(*(ns / 1e3 for ns in times))
