"""A sharded model on chips of a node: kernels and exchanges of all of them as one checked program.

Programs of the chips are alike but for their weights, so that they become one, scheduled once
(`families.lpu.codegen.scheduling.together`): what one chip receives, its like on another sent in
time, and the cycles are exact. Every chip's schedule is proved, and that vectors are received as
they come. Nothing waits, so that nothing can wait for ever.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.backends.many_cores import (
    CoreMemory,
    CorePlayed,
    CoreProgram,
    Exchange,
    LinkedCores,
    Played,
)
from tilesmith.compiler.recipe.areas import NOTHING, Bytes, RunMemory
from tilesmith.compiler.recipe.program import KernelStep, Place, view_of
from tilesmith.families.kit.simulation.accounting import exclusive
from tilesmith.families.lpu.backend.chips.exchanging import Exchanging
from tilesmith.families.lpu.backend.programs.joining import Joined, Joining
from tilesmith.families.lpu.backend.programs.kernel_code import ChainKernelCode
from tilesmith.families.lpu.backend.programs.program import simplified_program
from tilesmith.families.lpu.backend.programs.recutting import BoundaryTensor
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import Dataflow
from tilesmith.families.lpu.codegen.fabric import ChipFabric
from tilesmith.families.lpu.codegen.isa.bursts import BurstOp, BurstSchedule
from tilesmith.families.lpu.codegen.scheduling.scheduler import SchedulerOptions
from tilesmith.families.lpu.codegen.scheduling.together import together
from tilesmith.families.lpu.codegen.selection.layout.images import content, in_rows
from tilesmith.families.lpu.codegen.verification.together import Together, check_together
from tilesmith.families.lpu.simulator.drawing import COMPUTING, ends
from tilesmith.families.lpu.simulator.execution.several import execute_together, node_of
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.meshes.mesh import Mesh
from tilesmith.search_space.support.errors import CodegenError, ModelError

TRIES = (SchedulerOptions("critical"), SchedulerOptions("program"))
"""Ways in which chains are taken; the shortest schedule is kept."""


def linked_chips(programs: Mapping[int, CoreProgram], mesh: Mesh) -> "LinkedChips":
    """One program for all chips, scheduled and proved.

    Raises:
        TargetError: they are not linked each to each other.
        ModelError: chips do not do the same, or there is no schedule.
    """
    cores = sorted(programs)
    one = programs[cores[0]]
    chip, flight = node_of(mesh, len(cores))
    fabric = ChipFabric(one.extents or (len(cores),))
    _check_alike(one, [programs[core] for core in cores], fabric)
    weights = _Weights(NOTHING, one.constants, others=tuple(p.constants for p in programs.values()))
    codes = [ChainKernelCode.from_bytes(code.code) for code in one.codes]
    outside = tuple(
        BoundaryTensor(ref.info.name, ref.place, ref.info.dims, ref.stored or ref.info.dtype)
        for ref in one.outputs
    )
    joining = Joining(outside, weights)
    widths = {ref.place.offset: ref.info.dims[-1] for ref in one.inputs if ref.info.dims}
    exchanging = Exchanging(joining, fabric, cores[0], flight, widths)
    for number, step in enumerate(one.order):
        if isinstance(step, KernelStep):
            joining.add(number, step, codes[step.code])
        else:
            same = [programs[core].order[number] for core in cores]
            exchanging.add(number, [s for s in same if isinstance(s, Exchange)])
    joined = simplified_program(joining.joined(one.name), weights)
    shortest = _shortest(joined.flow, chip, fabric, flight)
    check_together(shortest)
    met = sum(isinstance(s, Exchange) and s.kind not in ("copy", "zero") for s in one.order)
    return LinkedChips(tuple(cores), joined, shortest, met)


@dataclass(frozen=True, eq=False)
class LinkedChips(LinkedCores):
    """See `linked_chips`.

    Attributes:
        cores: numbers of the chips, as the fabric counts them.
        collectives: how many of them the program has.
    """

    cores: tuple[int, ...]
    joined: Joined
    program: Together
    collectives: int

    def run(self, memories: Mapping[int, CoreMemory]) -> None:
        """Burst by burst, in numpy; see `execute_together`."""
        given = []
        for core in self.cores:
            rows: dict[str, NDArray[np.generic]] = dict(self.joined.literals)
            for held in self.joined.inputs:
                rows[held.tensor] = in_rows(held.shape, held.dtype, _read(memories[core], held))
            given.append(rows)
        for core, left in zip(self.cores, execute_together(self.program, given), strict=True):
            for held in self.joined.outputs:
                _write(memories[core], held, left.tensors[held.tensor])

    def play(self) -> Played:
        """By its schedule: all chips do the same in the same cycles."""
        schedule = self.program.schedule
        us = schedule.seconds * 1e6
        each = CorePlayed(us, *_times(schedule))
        size = len(schedule.table) * len(self.cores)
        return Played(us, dict.fromkeys(self.cores, each), size, self.collectives)


@dataclass(frozen=True, eq=False)
class _Weights(RunMemory):
    """Weights that chips have alike: what becomes a part of the program has to be.

    Attributes:
        others: the constants of all chips.
    """

    others: tuple[Bytes, ...] = field(default=())

    def view(self, place: Place, dtype: np.dtype[np.generic], shape: object) -> NDArray[np.generic]:
        """As `RunMemory.view`; `ModelError` where chips differ."""
        array = super().view(place, dtype, shape)
        for other in self.others:
            if not np.array_equal(view_of(other, place.offset, dtype, shape), array):
                raise ModelError(
                    "chips have different numbers in one operation, so that they run no single "
                    "program; give that tensor a spec that cuts nothing (-)"
                )
        return array

    def alike(self, place: Place, nbytes: int) -> bool:
        """Whether all chips have the same bytes there."""
        mine = self.constants[place.offset : place.offset + nbytes]
        return all(
            np.array_equal(mine, other[place.offset : place.offset + nbytes])
            for other in self.others
        )


def _check_alike(one: CoreProgram, programs: Sequence[CoreProgram], fabric: ChipFabric) -> None:
    """Raise `ModelError` unless chips run the same kernels on the same places."""
    if fabric.chips != len(programs):
        raise ModelError(
            f"chips of '{one.name}' in different stages run different kernels, and those of a node "
            "run one program; leave --pipeline out ('--chips' cuts a model into a pipeline)"
        )
    for other in programs:
        same = [code.code for code in one.codes] == [code.code for code in other.codes]
        same &= [_what(step) for step in one.order] == [_what(step) for step in other.order]
        if not same:
            raise ModelError(
                f"chips of '{one.name}' run different kernels: a number in which they differ is "
                "part of one; give that tensor a spec that cuts nothing (-)"
            )


def _what(step: KernelStep | Exchange) -> object:
    """What has to be alike on all chips."""
    return (step.code, step.arguments) if isinstance(step, KernelStep) else "exchange"


def _shortest(flow: Dataflow, chip: Chip, fabric: ChipFabric, flight: int) -> Together:
    candidates: list[Together] = []
    reason: CodegenError | None = None
    for options in TRIES:
        try:
            candidates.append(together(flow, chip, fabric, flight, options))
        except CodegenError as error:
            reason = reason or error
    if not candidates:
        raise ModelError(
            f"'{flow.name}' has no schedule over {fabric.chips} chips of '{chip.target.name}': "
            f"{reason}"
        )
    return min(candidates, key=lambda candidate: candidate.schedule.cycles)


def _read(memory: CoreMemory, held: BoundaryTensor) -> NDArray[np.generic]:
    """The elements of a tensor, in its order."""
    region = memory[held.place.region]
    dtype = np.dtype(to_numpy(held.dtype))
    if held.offsets is None:
        return view_of(region, held.place.offset, dtype, held.shape)
    count = held.nbytes // dtype.itemsize
    return view_of(region, held.place.offset, dtype, (count,))[held.offsets]


def _write(memory: CoreMemory, held: BoundaryTensor, rows: NDArray[np.generic]) -> None:
    """Leave a tensor's rows in memory; those beyond it are padding."""
    *lead, last = held.shape
    count = int(np.prod(lead, dtype=np.int64)) * -(-last // rows.shape[1])
    dtype = np.dtype(to_numpy(held.dtype))
    lanes = content(held.shape, rows[:count]).reshape(-1)
    size = held.nbytes // dtype.itemsize
    flat = view_of(memory[held.place.region], held.place.offset, dtype, (size,))
    flat[slice(None) if held.offsets is None else held.offsets] = lanes


def _times(schedule: BurstSchedule) -> tuple[float, float, float, float]:
    """us that a chip computes, that collectives are under way, that it waits for others, and that
    collectives lie behind computing."""
    table, us = schedule.table, schedule.chip.ghz * 1e3
    start, end = table["cycle"].astype(np.float64), ends(schedule).astype(np.float64)
    computing = np.isin(table["op"], COMPUTING)
    linked = np.isin(table["op"], (BurstOp.SEND, BurstOp.RECEIVE))
    work, links = (start[computing], end[computing]), (start[linked], end[linked])
    alone = exclusive({"work": work, "links": links}, schedule.cycles)
    under_way = exclusive({"links": links}, schedule.cycles)["links"]
    return alone["work"] / us, under_way / us, 0.0, (under_way - alone["links"]) / us
