"""The first burst of a kernel step whose output differs from its loop program's.

Two questions, one after the other: do the kernel's chains compute what the loop program means, and
does their schedule compute what the chains do? A wrong chain is found among the bursts that do its
work. What the host does as it hands tensors over has no bursts.
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
from tilesmith.families.lpu.backend.programs.kernel_code import ChainKernelCode
from tilesmith.families.lpu.backend.programs.program import ChipProgram, linked
from tilesmith.families.lpu.codegen.dataflow import Compute, Product, Read, Shuffle
from tilesmith.families.lpu.codegen.isa.bursts import BurstOp
from tilesmith.families.lpu.codegen.isa.text import burst_text
from tilesmith.families.lpu.codegen.selection.from_program import single_numbers
from tilesmith.families.lpu.codegen.selection.layout.images import in_rows
from tilesmith.families.lpu.codegen.selection.tracing import StoreInstance, TracedNests, trace
from tilesmith.families.lpu.simulator.execution.first_difference import first_difference
from tilesmith.families.lpu.simulator.execution.first_step import WrongChainStep, first_step
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

Arrays = Mapping[str, NDArray[Any]]
_OPS = {Compute: BurstOp.ALU, Shuffle: BurstOp.SHUFFLE, Read: BurstOp.READ, Product: BurstOp.MOVE}


def wrong_instruction(
    recipe: Recipe, step: KernelStep, memory: RunMemory
) -> WrongInstruction | None:
    """See `Backend.wrong_instruction`."""
    linked_program = linked(recipe, [step])
    if not linked_program.steps:
        return None
    code = ChainKernelCode.from_bytes(recipe.codes[step.code].code)
    workload = Workload.parse(step.workload)
    program = lowered(workload, recipe.target, Config.from_json(step.config))
    later = frozenset(buffer.name for buffer in single_numbers(program))
    traced = trace(program, frozenset(workload.constants), later)
    arrays: dict[str, NDArray[Any]] = {
        parameter.name: np.array(memory.view(place, to_numpy(parameter.dtype), parameter.shape))
        for parameter, place in zip(code.parameters[:-1], step.arguments, strict=False)
        if place.region != "none"
    }
    contents: dict[str, NDArray[Any]] = dict(linked_program.joined.literals)
    for held in linked_program.joined.inputs:
        view = memory.view(held.place, np.dtype(to_numpy(held.dtype)), held.shape)
        contents[held.tensor] = in_rows(held.shape, held.dtype, view)
    wrong = first_step(linked_program.joined.flow, contents, _renamed(traced), program, arrays)
    if wrong is not None:
        return _of_chain(wrong, linked_program, step)
    return _of_burst(linked_program, contents, step)


def _renamed(traced: TracedNests) -> TracedNests:
    """Chains as they are called in the program of one kernel (`joining`)."""
    instances = (
        StoreInstance(one.statement, one.around, one.buffer, f"0.{one.chain}", one.step)
        for one in traced.instances
    )
    return TracedNests(tuple(instances), traced.statements)


def _of_burst(program: ChipProgram, contents: Arrays, step: KernelStep) -> WrongInstruction | None:
    """A burst that differs from its chain."""
    placed = program.schedule
    difference = first_difference(program.joined.flow, placed, contents, program.matching)
    if difference is None:
        return None
    burst = placed.table[difference.row]
    return WrongInstruction(
        difference.row,
        burst_text(placed, difference.row),
        placed.chip.queues[int(burst["queue"])],
        int(burst["cycle"]),
        (difference.row,),
        step.name,
        step.sources,
        f"chain '{placed.chains[int(burst['chain'])]}'",
        "vector",
        (difference.vector, difference.lane),
        difference.computed,
        difference.wanted,
        difference.reason,
    )


def _of_chain(wrong: WrongChainStep, program: ChipProgram, step: KernelStep) -> WrongInstruction:
    """A chain that differs from the loop program: the bursts that do the work of its step."""
    rows = [row for one in wrong.among for row in _bursts(program, *one)]
    placed, chain = program.schedule, program.joined.flow.chains[wrong.among[0][0]]
    first = rows[0] if rows else 0
    burst = placed.table[first]
    nest = nest_of(wrong.instance.statement)
    assert nest is not None, "an instance is of a nest"
    where = ", ".join(f"{name} = {value}" for name, value in wrong.instance.around.items())
    part = f"chain '{chain.name}', stage '{nest[1].stage}' of the loop program"
    return WrongInstruction(
        first,
        burst_text(placed, first),
        placed.chip.queues[int(burst["queue"])],
        int(burst["cycle"]),
        tuple(dict.fromkeys(rows)) or (first,),
        step.name,
        step.sources,
        part + (f" at {where}" if where else ""),
        wrong.instance.buffer.name,
        wrong.index,
        wrong.computed,
        wrong.wanted,
        wrong.repair,
    )


def _bursts(program: ChipProgram, chain: int, at: int, operation: int) -> list[int]:
    """Rows of the schedule that do a step of a chain, by cycle."""
    placed, whole = program.schedule, program.joined.flow.chains[chain]
    if whole.name not in placed.chains:
        return []
    table, step = placed.table, whole.steps[at]
    mine = (table["chain"] == placed.chains.index(whole.name)) & (
        table["op"] == _OPS.get(type(step), BurstOp.ALU)
    )
    rows = np.flatnonzero(mine).tolist()
    if isinstance(step, Compute) and operation >= 0:
        wanted = step.operations[operation]
        rows = [row for row in rows if _operation(program, row) == wanted] or rows
    elif isinstance(step, Shuffle):
        units = placed.units
        rows = [r for r in rows if units[int(table["unit"][r])].lanes == step.lanes] or rows
    elif isinstance(step, Read):
        names = [place.name for place in placed.places]
        number = names.index(step.rows.tensor) if step.rows.tensor in names else -1
        rows = [row for row in rows if table["tensor"][row] == number] or rows
    return sorted(rows, key=lambda row: int(table["cycle"][row]))


def _operation(program: ChipProgram, row: int) -> Any:
    burst = program.schedule.table[row]
    return program.schedule.units[int(burst["unit"])].operations[int(burst["step"])]
