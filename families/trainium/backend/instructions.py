"""The first instruction of a kernel step whose output differs from its loop program's.

Constants lie in memory in the order in which a kernel loads them (`staging`); what the loop program
reads is put together from that again, so that the packing of weights has no part in it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.programs.structures import lowered
from tilesmith.compiler.backends.wrong_instruction import WrongInstruction
from tilesmith.compiler.recipe.areas import RunMemory
from tilesmith.compiler.recipe.program import KernelStep, Recipe
from tilesmith.families.kit.programs.in_arrays import nest_of
from tilesmith.families.trainium.codegen.isa.core import ENGINES, Core, queue_name
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream
from tilesmith.families.trainium.codegen.isa.storage import from_bytes
from tilesmith.families.trainium.codegen.isa.text import instruction_text
from tilesmith.families.trainium.codegen.selection.staging import (
    SUFFIX,
    Staged,
    constants_of,
    stage,
)
from tilesmith.families.trainium.codegen.selection.tracing import NestInstance, trace
from tilesmith.families.trainium.codegen.timing.dependences import with_semaphores
from tilesmith.families.trainium.simulator.execution.first_difference import (
    InstructionDifference,
    first_difference,
)
from tilesmith.families.trainium.simulator.timelines.timeline import timeline
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.ir.program import Program
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

Array = NDArray[Any]


def wrong_instruction(
    recipe: Recipe, step: KernelStep, memory: RunMemory
) -> WrongInstruction | None:
    """See `Backend.wrong_instruction`."""
    core = Core.of(recipe.target)
    workload = Workload.parse(step.workload)
    stream = from_bytes(recipe.codes[step.code].code, core)
    program = lowered(workload, recipe.target, Config.from_json(step.config))
    traced = trace(program, core)
    staged = stage(traced.stream, constants_of(program, workload))
    hbm = [
        np.array(memory.view(place, to_numpy(tensor.dtype), tensor.shape))
        .reshape(-1)
        .view(np.uint8)
        if place.region != "none"
        else np.zeros(tensor.elements * to_numpy(tensor.dtype).itemsize, np.uint8)
        for place, tensor in zip(step.arguments, stream.tensors, strict=True)
    ]
    arrays = _arrays(program, staged, stream, hbm)
    difference = first_difference(stream, hbm, traced, program, arrays)
    return None if difference is None else _told(difference, with_semaphores(stream), step)


def _arrays(
    program: Program, staged: Staged, stream: InstructionStream, hbm: list[Array]
) -> dict[str, Array]:
    """The program's parameters as they were before constants were staged."""
    held = {
        tensor.name: part.view(to_numpy(tensor.dtype)).reshape(tensor.shape)
        for tensor, part in zip(stream.tensors, hbm, strict=True)
    }
    tensors = {}
    for buffer in program.parameters:
        shape = tuple(extent.constant or 0 for extent in buffer.shape)
        blocks = staged.blocks.get(buffer.name)
        if blocks is None or buffer.name + SUFFIX not in held:
            if buffer.name in held:
                tensors[buffer.name] = held[buffer.name]
            continue
        whole = np.zeros(int(np.prod(shape)), to_numpy(buffer.dtype))
        rest = held[buffer.name + SUFFIX].reshape(-1)
        for offset, counts, strides in blocks:
            size = int(np.prod(counts))
            steps = [stride * whole.itemsize for stride in strides]
            view = np.lib.stride_tricks.as_strided(whole[offset:], counts, steps)
            view[...] = rest[:size].reshape(counts)
            rest = rest[size:]
        tensors[buffer.name] = whole.reshape(shape)
    return tensors


def _told(
    difference: InstructionDifference, stream: InstructionStream, step: KernelStep
) -> WrongInstruction:
    """A difference in the words of the machine."""
    queue = int(stream.rows["queue"][difference.row])
    start = float(timeline(stream).start[difference.row])
    clock = stream.core.clocks[queue] if queue < len(ENGINES) else stream.core.clocks[0]
    return WrongInstruction(
        difference.row,
        instruction_text(stream, difference.row),
        queue_name(queue),
        round(start * clock),
        difference.among,
        step.name,
        step.sources,
        part_of(difference.instance),
        difference.buffer,
        difference.index,
        difference.computed,
        difference.wanted,
        difference.repair,
    )


def part_of(instance: NestInstance) -> str:
    """A nest in a few words: its stage, what it writes, and where the loops around it stand."""
    nest = nest_of(instance.statement)
    assert nest is not None, "an instance is of a nest"
    block, at = nest[1], instance.around
    where: Mapping[str, int] = dict(at)
    loops = ", ".join(f"{name} = {value}" for name, value in where.items())
    return f"stage '{block.stage}' of the loop program" + (f" at {loops}" if loops else "")
