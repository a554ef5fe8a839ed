"""Kernels for sizes that vary: one configuration, lowered with the sizes left open.

    program = lowered_varying(workload, sizes, typical, target, config)

The configuration is one of the workload at typical sizes; the program of it keeps the sizes as
symbols (`Program.sizes`) and is right at every size of their ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilesmith.codegen.programs.structures import space_of, structure_program
from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.expressions.sizes import Size, samples
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.program import Program
from tilesmith.search_space.ir.transforms.simplification import simplify
from tilesmith.search_space.ir.transforms.specialisation import finish
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.scheduler import scheduler_of
from tilesmith.search_space.workloads.workload import Workload

CHECKED = 4
"""Sizes at which a program that keeps them is verified."""


def lowered_varying(
    workload: Workload,
    sizes: tuple[Size, ...],
    typical: Mapping[str, int],
    target: Target,
    config: Config,
) -> Program:
    """The program of a configuration for all sizes in their ranges.

    Args:
        typical: sizes at which `config` is in the workload's space.

    Raises:
        ConfigError: it is not.
        WorkloadError: a size has no range, or the workload makes no sense at an end of one.
        ScheduleError: the configuration works at fixed sizes only.
    """
    names = {size.name for size in sizes}
    if missing := sorted(workload.sizes - names):
        raise WorkloadError(f"'{workload.key}' varies with '{missing[0]}', which has no range")
    usual = workload.at(typical)
    largest = workload.at({size.name: size.high for size in sizes})
    workload.at({size.name: size.low for size in sizes})
    space_of(usual, target).validate(config)
    chosen = scheduler_of(usual, target).varying(workload, usual, largest, target, config)
    space = space_of(usual, target)
    own = {size.name: own_name(number) for number, size in enumerate(sizes)}
    neutral = workload.substituted({name: var(own[name]) for name in workload.sizes})
    program = structure_program(neutral, target, space.structure(chosen)).bind(space.tiles(chosen))
    kept = tuple(Size(own[size.name], size.low, size.high) for size in sizes)
    return replace(program, sizes=kept)


def own_name(number: int) -> str:
    """What a program calls its size of that number: no name of a loop or knob, and the same code
    for the same ranges, whatever they are called."""
    return f"size{number}"


def verify_sizes(program: Program, target: Target) -> None:
    """Verify a program; one that keeps sizes at some of them, before and after its tails are cut.

    Raises:
        VerificationError: naming the block, buffer or loop, and the rule or limit that is broken.
    """
    if not program.sizes:
        verify(program, target)
        return
    whole, sizes = replace(program, prologue=None), list(samples(program.sizes))
    for values in sizes[:: -(-len(sizes) // CHECKED)]:
        at = whole.bind(values)
        verify(replace(at, body=simplify(at.body)), target)
        verify(finish(whole).bind(values), target)
