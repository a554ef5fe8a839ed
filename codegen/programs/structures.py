"""Spaces, defaults and lowered programs of workloads: what a scheduler answers, lowered once.

One lowering serves every tile size: a workload's configurations that differ only in tile sizes
share one symbolic program; it is kept here, and `lowered` binds it. The cache is bounded, so that
long tuning runs don't grow.

A space's limits are told before anything is lowered. Where a configuration keeps them and no code
comes of it all the same, the next one is taken (`first_that_works`): not every kernel that could
run is worth a formula of its own.

A kernel for sizes that vary is one configuration, lowered with the sizes left open:

    program = KernelSpec(workload, target, config, sizes, typical).program()

The configuration is one of the workload at typical sizes; the program of it keeps the sizes as
symbols (`Program.sizes`) and is right at every size of their ranges.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.expressions.sizes import Size, samples
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.program import Program
from tilesmith.search_space.ir.transforms.simplification import simplify
from tilesmith.search_space.ir.transforms.specialisation import finish
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.results.judging import judges
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.spaces.transfer import carried_over
from tilesmith.search_space.summation.spaces import order_of, same_bits
from tilesmith.search_space.support.errors import (
    CodegenError,
    ScheduleError,
    VerificationError,
    WorkloadError,
)
from tilesmith.search_space.workloads.scheduler import scheduler_of
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

CLEARLY_FASTER = 0.9
"""Share of the default's seconds below which another algorithm is used untuned."""

MOST_TRIED = 8
"""Configurations that are tried beside one that no code comes of."""

WITHOUT_CODE = (CodegenError, ScheduleError, VerificationError)
"""What is raised where no code comes of a configuration of the space."""

T = TypeVar("T")


@lru_cache(maxsize=1024)
def space_of(workload: Workload, target: Target) -> SearchSpace:
    """The search space of a workload on a target."""
    scheduler = scheduler_of(workload, target)
    space = scheduler.space(workload, target)
    return same_bits(scheduler, space, workload, target) if workload.sums == "same" else space


@lru_cache(maxsize=1024)
def default_of(workload: Workload, target: Target) -> Config:
    """The configuration of a workload that is used on a target without tuning.

    It is the first of the scheduler's default and its alternatives, the most accurate of which come
    first, than which the family's simulator estimates none to be clearly faster. What was measured
    of one machine has no say in it, so that all machines of a kind agree.

    Raises:
        ConfigError: not even the smallest tiles fit; the message names the limit.
    """
    scheduler = scheduler_of(workload, target)
    configs = (scheduler.default(workload, target), *scheduler.alternatives(workload, target))
    if workload.sums == "same":
        configs = _with_same_bits(workload, target, configs)
    judge = judges.find(target.family) if len(configs) > 1 else None
    if judge is None:
        return configs[0]
    seconds = judge(workload, target.uncalibrated, configs)
    enough = np.fmin.reduce(seconds) / CLEARLY_FASTER
    return configs[int(np.argmax(seconds <= enough))]


@lru_cache(maxsize=1024)
def simulated(workload: Workload, target: Target, config: Config) -> float | None:
    """Seconds of a configuration by the family's simulator, as `default_of` compares; None where
    there is none."""
    judge = judges.find(target.family)
    return None if judge is None else float(judge(workload, target.uncalibrated, (config,))[0])


def _with_same_bits(
    workload: Workload, target: Target, configs: tuple[Config, ...]
) -> tuple[Config, ...]:
    """Those of the workload's space; where none is, what is most like the canonical one there."""
    space = space_of(workload, target)
    if kept := tuple(config for config in configs if config in space):
        return kept
    canonical = scheduler_of(workload, target).canonical(workload, target)
    return (carried_over(canonical, space) or next(iter(space)),)


@lru_cache(maxsize=1024)
def inside_of(workload: Workload, target: Target) -> Config:
    """Return the default of a kernel between others: it keeps tensors on chip if a target can."""
    config = scheduler_of(workload, target).inside(workload, target)
    same = workload.sums == "any" or config in space_of(workload, target)
    return config if same else default_of(workload, target)


@lru_cache(maxsize=2048)
def structure_program(workload: Workload, target: Target, structure: Config) -> Program:
    """The symbolic program of a structural configuration, verified."""
    program = lower(scheduler_of(workload, target).schedule(workload, target, structure))
    verify(program, target)
    return program


def lowered(workload: Workload, target: Target, config: Config) -> Program:
    """The concrete program of a configuration.

    Raises:
        ConfigError: the configuration is not in the space; the message names the limit.
    """
    space = space_of(workload, target)
    space.validate(config)
    return structure_program(workload, target, space.structure(config)).bind(space.tiles(config))


def others_of(workload: Workload, target: Target, config: Config) -> Iterator[Config]:
    """What to try instead of a configuration: the first legal ones of up to `MOST_TRIED` parts of
    the space, from all over it, in the same layouts."""
    template, space = template_of(workload.operator), space_of(workload, target)
    step = -(-len(space.subspaces) // MOST_TRIED)
    for subspace in space.subspaces[::step]:
        first = next(iter(SearchSpace((subspace,))), config)
        same = template.layouts(workload, first) == template.layouts(workload, config)
        if first != config and same:
            yield first


def first_that_works(
    workload: Workload, target: Target, config: Config, attempt: Callable[[Config], T]
) -> tuple[Config, T]:
    """What comes of a configuration, or of the first of `others_of` it that something comes of.

    Raises:
        CodegenError, ScheduleError, VerificationError: nothing comes of any; that of the first.
    """
    try:
        return config, attempt(config)
    except WITHOUT_CODE:
        for other in others_of(workload, target, config):
            try:
                return other, attempt(other)
            except WITHOUT_CODE:
                continue
        raise


CHECKED = 4
"""Sizes at which a program that keeps them is verified."""


@dataclass(frozen=True)
class KernelSpec:
    """What a kernel is compiled from: a workload, and the configuration by which a target runs it.

    Attributes:
        workload: varies with `sizes`, if there are any.
        sizes: those for all values of which the kernel is, in the order in which it is given them.
        typical: values of the sizes at which `config` is in the workload's space.
    """

    workload: Workload
    target: Target
    config: Config
    sizes: tuple[Size, ...] = ()
    typical: Mapping[str, int] = field(default_factory=dict)

    def program(self) -> Program:
        """Lower it.

        Raises:
            ConfigError: the configuration is not in the space; the message names the limit.
            WorkloadError: a size has no range, or the workload makes no sense at an end of one.
            ScheduleError: the configuration works at fixed sizes only.
        """
        if self.sizes:
            return _lowered_varying(self)
        return lowered(self.workload, self.target, self.config)


def _lowered_varying(spec: KernelSpec) -> Program:
    """The program of a configuration for all sizes in their ranges."""
    workload, target, config, sizes = spec.workload, spec.target, spec.config, spec.sizes
    names = {size.name for size in sizes}
    if missing := sorted(workload.sizes - names):
        raise WorkloadError(f"'{workload.key}' varies with '{missing[0]}', which has no range")
    usual = workload.at(spec.typical)
    largest = workload.at({size.name: size.high for size in sizes})
    workload.at({size.name: size.low for size in sizes})
    scheduler, space = scheduler_of(usual, target), space_of(usual, target)
    space.validate(config)
    chosen = scheduler.varying(workload, usual, largest, target, config)
    own = {size.name: own_name(number) for number, size in enumerate(sizes)}
    neutral = workload.substituted({name: var(own[name]) for name in workload.sizes})
    if workload.sums == "same":  # kernels for all sizes may add in an order of their own
        usual_one = scheduler.varying(workload, usual, largest, target, default_of(usual, target))
        here, there = (
            order_of(scheduler, space, neutral, target, one) for one in (chosen, usual_one)
        )
        chosen = chosen if here == there else usual_one
    program = structure_program(neutral, target, space.structure(chosen)).bind(space.tiles(chosen))
    kept = tuple(Size(own[size.name], size.low, size.high) for size in sizes)
    return replace(program, sizes=kept)


def own_name(number: int) -> str:
    """Return the name of a program's size by its number.

    It is no name of a loop or knob, and programs whose sizes have the same ranges under other names
    become the same code.
    """
    return f"size{number}"


def verify_sizes(program: Program, target: Target) -> None:
    """Verify a program; one of varying sizes at some sizes, before and after its tails are cut.

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
