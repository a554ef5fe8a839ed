"""A product over chips of a node, tensor-parallel, as one program that all of them run.

    columns   every chip has some columns of the weights and all of x; what it makes goes to all
    rows      every chip has some rows of the weights and the columns of x that meet them; what it
              makes is a term of a sum, which all chips get
    batch     every chip has all of the weights and some rows of x, and what it makes stays there

A chip's part of the product is scheduled as the same product of fewer columns (rows) is; sends
follow as soon as rows are made, so that they go on beside the product. Partial sums travel in the
type of the result, as they would from kernel to kernel.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

from tilesmith.codegen.programs.structures import default_of
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import Dataflow
from tilesmith.families.lpu.codegen.exchange import ChipExchange, RowRange, exchange
from tilesmith.families.lpu.codegen.fabric import ChipFabric, aligned, check_links
from tilesmith.families.lpu.codegen.isa.bursts import BurstSchedule
from tilesmith.families.lpu.codegen.scheduling.together import together
from tilesmith.families.lpu.codegen.selection.from_program import Selection
from tilesmith.families.lpu.codegen.verification.together import Together, check_together
from tilesmith.families.lpu.simulator.selected import selected
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.workload import Workload

Split = Literal["columns", "rows", "batch"]
SPLITS: tuple[Split, ...] = get_args(Split)

EXTENTS: Mapping[Split, str] = {"columns": "n", "rows": "k", "batch": "m"}
"""The parameter of a product that each cuts."""

_WHAT = {"columns": "columns of the weights", "rows": "rows of the weights",
         "batch": "rows of what meets the weights, which all chips have,"}  # fmt: skip


def part_of(workload: Workload, chips: int, split: Split) -> Workload:
    """What one chip computes of a product.

    Raises:
        WorkloadError: the product does not divide so.
    """
    name = EXTENTS[split]
    extent = workload.integer(name)
    if extent % chips:
        raise WorkloadError(
            f"workload '{workload}': {name} = {extent} does not divide among {chips} chips"
        )
    return workload.with_parameters(**{name: extent // chips})


def tensor_parallel(
    workload: Workload, chip: Chip, chips: int, flight: int, split: Split
) -> tuple[Together, Selection]:
    """A product over chips, scheduled and proved; and the selection of a chip's part.

    Args:
        flight: cycles from chip to chip.

    Raises:
        WorkloadError: the product, or the rows of its result, do not divide so.
        CodegenError: it cannot be placed.
    """
    part = part_of(workload, chips, split)
    chosen = selected(part, chip.target, default_of(part, chip.target))
    flow, name = chosen.dataflow, chosen.operands[-1].name
    operand, fabric = flow.tensors[name], ChipFabric((chips,))
    group = fabric.group()
    if split == "columns":
        operand = replace(operand, copies=2)  # sent to both sides
        moved = exchange(
            "all_gather", "gathered", [RowRange(operand, 0, operand.rows)], group, flight
        )
    elif split == "batch":
        moved = ChipExchange((), (), (RowRange(operand, 0, operand.rows),))
    else:
        if operand.rows % chips:
            raise WorkloadError(
                f"workload '{workload}': the {operand.rows} vectors of its result do not divide "
                f"among {chips} chips"
            )
        each = operand.rows // chips
        parts = [RowRange(operand, each * far, each) for far in range(chips)]
        moved = exchange("all_reduce", "summed", parts, group, flight)
    tensors = {**flow.tensors, name: operand, **{t.name: t for t in moved.tensors}}
    whole = Dataflow(f"{workload.operator} over {chips}", tensors, (*flow.chains, *moved.chains))
    program = together(whole, chip, fabric, flight)
    check_together(program)
    return program, chosen


def best_split(
    workload: Workload, target: Target, chips: int, alone: int
) -> tuple[BurstSchedule, tuple[str, ...]]:
    """The fastest way to cut a product over chips, and a note on every way.

    Args:
        alone: cycles of one chip.

    Raises:
        WorkloadError: it is no product, or divides neither way.
        TargetError: so many chips are not linked each to each other.
    """
    if workload.operator != "matmul":
        raise WorkloadError(
            f"workload '{workload}': operator '{workload.operator}' is not cut over chips; "
            "'matmul' is, and whole models are cut into pipelines"
        )
    chip = Chip.of(target)
    check_links(chips, chip)
    flight = aligned(chip.delay("link"), chip)
    schedules: list[BurstSchedule] = []
    notes: list[str] = []
    refused: WorkloadError | None = None
    for split in SPLITS:
        try:
            program, _ = tensor_parallel(workload, chip, chips, flight, split)
        except WorkloadError as error:
            refused = error
            notes.append(f"by {split}: {error}")
            continue
        schedules.append(program.schedule)
        cycles = program.schedule.cycles
        notes.append(
            f"by {_WHAT[split]} over {chips} chips: {cycles:,} cycles, "
            f"{alone / cycles:.2f} times as fast as one"
        )
    if not schedules:
        assert refused is not None, "there are ways to cut it"
        raise refused
    return min(schedules, key=lambda schedule: schedule.cycles), tuple(notes)
