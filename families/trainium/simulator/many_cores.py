"""Several cores of a mesh: their streams run in lockstep, and played on one timeline.

Every core has a stream of its own. Collectives are where they meet: values are exchanged when all
members of the group have come to one, and time stands still for who comes first. That streams fit
each other is verified before (`verify_together`), so neither ever waits in vain.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.codegen.isa.fabric import CoreFabric
from tilesmith.families.trainium.codegen.isa.instructions import (
    OPERATIONS,
    Instruction,
    InstructionStream,
)
from tilesmith.families.trainium.codegen.isa.verification import (
    ByteSpan,
    verify_dataflow,
    verify_together,
)
from tilesmith.families.trainium.codegen.isa.verification.collectives import Meeting
from tilesmith.families.trainium.codegen.timing.costs import costs
from tilesmith.families.trainium.simulator.execution.functional import outputs, placed, run, view_in
from tilesmith.families.trainium.simulator.timelines.timeline import Timeline, play
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.meshes.mesh import COLLECTIVE_KINDS, CollectiveKind, Mesh
from tilesmith.search_space.support.errors import InputError
from tilesmith.simulator.collectives import collective_cost
from tilesmith.simulator.collectives.values import exchanged

Array = NDArray[Any]


def fabric(mesh: Mesh, core: int) -> CoreFabric:
    """A core's place in a mesh, for `Kernel`; collectives cost what `collective_cost` says.

    Raises:
        TargetError: the mesh has no such core.
    """
    mesh.check_group((core,))
    return CoreFabric(mesh, core, _seconds)


def _seconds(
    mesh: Mesh, kind: CollectiveKind, size: int, group: tuple[int, ...]
) -> tuple[float, float]:
    cost = collective_cost(mesh, kind, size, group)
    return cost.seconds, cost.engine_s


def execute_many(
    streams: Mapping[int, InstructionStream],
    inputs: Mapping[int, Mapping[str, Array]],
    mesh: Mesh,
) -> dict[int, dict[str, Array]]:
    """Run a stream on each of several cores.

    Args:
        streams, inputs: by the number of the core; inputs as `execute` takes them.

    Returns:
        The outputs of each core by name. Sums are added in the order of the algorithm that the
        mesh takes, and are the same bits on every member.

    Raises:
        InputError: an input is missing or of another shape.
        VerificationError: a stream reads what nothing wrote, or the streams do not meet.
    """
    memories = {}
    for core, stream in streams.items():
        verify_dataflow(stream, wanted=())
        if core not in inputs:
            raise InputError(f"core {core} runs kernel '{stream.name}' and is given no inputs")
        memories[core] = placed(stream, inputs[core])
    _together(streams, memories, mesh)
    return {core: outputs(stream, memories[core]) for core, stream in streams.items()}


def execute_many_in(
    streams: Mapping[int, InstructionStream], hbm: Mapping[int, Sequence[Array]], mesh: Mesh
) -> None:
    """Run a stream on each of several cores, on memory that is there already.

    Args:
        hbm: by core, the bytes of each tensor of its stream, in its order; changed in place.

    Raises:
        VerificationError: a stream reads memory on chip that nothing wrote, or they do not meet.
    """
    for core, stream in streams.items():
        verify_dataflow(stream, [ByteSpan(n, 0, t.nbytes) for n, t in enumerate(hbm[core])], ())
    _together(streams, hbm, mesh)


def _together(
    streams: Mapping[int, InstructionStream], memories: Mapping[int, Sequence[Array]], mesh: Mesh
) -> None:
    meetings = verify_together(streams)
    running = {core: run(stream, memories[core]) for core, stream in streams.items()}
    for meeting in meetings:
        _exchange(meeting, running, memories, mesh)
    for rest in running.values():
        assert next(rest, None) is None, "every collective was met"


def _exchange(
    meeting: Meeting,
    running: Mapping[int, Iterator[Instruction]],
    memories: Mapping[int, Sequence[Array]],
    mesh: Mesh,
) -> None:
    """Run every member up to the collective, and take part in it for all of them."""
    here = [next(running[core]) for core in meeting.group]
    assert tuple(i.index for i in here) == meeting.rows, "each core meets in its own order"
    given, views = [], []
    for core, instruction in zip(meeting.group, here, strict=True):
        operands = instruction.operands
        if "in0" in operands:
            given.append(view_in(memories[core], operands["in0"]).reshape(-1).copy())
        views.append(view_in(memories[core], operands["out"]) if "out" in operands else None)
    kind = next(known for known in COLLECTIVE_KINDS if known == meeting.kind)
    operation = OPERATIONS[here[0].accumulate]
    received = exchanged(mesh, kind, meeting.group, given, operation)
    for view, values in zip(views, received, strict=True):
        if view is not None:
            view[...] = values.reshape(view.shape)


@dataclass(frozen=True)
class ManyTimelines:
    """When everything happened on each core.

    Args:
        waited: ns that each core's queue of collectives waited for others to come.
    """

    cores: Mapping[int, Timeline]
    waited: Mapping[int, float]

    @property
    def makespan(self) -> float:
        """ns until the last core is done."""
        return max((one.makespan for one in self.cores.values()), default=0.0)


def timeline_many(streams: Mapping[int, InstructionStream], mesh: Mesh) -> ManyTimelines:
    """Play a stream on each of several cores; a collective goes on when all have come to it.

    Collectives cost what the mesh says now (`collective_cost`), not what it said when the streams
    were written.

    Raises:
        VerificationError: the streams do not meet.
    """
    meetings = verify_together(streams)
    cost = {core: costs(stream) for core, stream in streams.items()}
    seconds = [_meeting_seconds(streams, meeting, mesh) for meeting in meetings]
    waits = [dict.fromkeys(meeting.group, 0.0) for meeting in meetings]
    cached: dict[int, Timeline] = {}
    for _ in range(len(meetings) + 1):
        for core, stream in streams.items():
            if core not in cached:
                latency, work = cost[core].latency.copy(), cost[core].dma_work.copy()
                for meeting, took, wait in zip(meetings, seconds, waits, strict=True):
                    if core in wait:
                        row = meeting.rows[meeting.group.index(core)]
                        latency[row], work[row] = took[0] * 1e9 + wait[core], took[1] * 1e9
                cached[core] = play(
                    stream, stream.core, replace(cost[core], latency=latency, dma_work=work)
                )
        late = _late(cached, meetings, waits)
        if not late:
            break
        for core in late:
            del cached[core]
    waited = {core: sum(wait.get(core, 0.0) for wait in waits) for core in streams}
    return ManyTimelines(cached, waited)


def _late(
    played: Mapping[int, Timeline], meetings: tuple[Meeting, ...], waits: list[dict[int, float]]
) -> set[int]:
    """Cores that wait for others otherwise than they were played; `waits` is put right."""
    late: set[int] = set()
    for meeting, wait in zip(meetings, waits, strict=True):
        came = {
            core: float(played[core].start[row])
            for core, row in zip(meeting.group, meeting.rows, strict=True)
        }
        last = max(came.values())
        for core, time in came.items():
            if not np.isclose(wait[core], last - time, rtol=1e-9, atol=1e-6):
                wait[core] = last - time
                late.add(core)
    return late


def _meeting_seconds(
    streams: Mapping[int, InstructionStream], meeting: Meeting, mesh: Mesh
) -> tuple[float, float]:
    first, row = streams[meeting.group[0]], meeting.rows[0]
    operands = first[row].operands
    whole = operands["out" if meeting.kind == "all_gather" else "in0"]
    size = int(np.prod(whole.shape)) * size_of(whole.dtype)
    kind = next(known for known in COLLECTIVE_KINDS if known == meeting.kind)
    return _seconds(mesh, kind, size, meeting.group)
