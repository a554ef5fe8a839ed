"""Chains of configurations, and their schedules: made once, kept for who asks again."""

from functools import lru_cache

import numpy as np

from tilesmith.codegen.programs.structures import lowered
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.isa.bursts import BurstSchedule
from tilesmith.families.lpu.codegen.scheduling.scheduler import schedule
from tilesmith.families.lpu.codegen.selection.from_program import Selection, select, single_numbers
from tilesmith.families.lpu.codegen.selection.layout.accesses import shape_of
from tilesmith.families.lpu.codegen.verification.checker import check
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

KEPT = 32
"""Selections kept."""


@lru_cache(maxsize=KEPT)
def selected(workload: Workload, target: Target, config: Config) -> Selection:
    """The chains of one configuration; constants lie as their chains want them.

    Raises:
        ConfigError: the configuration is outside the workload's space.
        CodegenError, VerificationError: the operator has a part that no slice does.
    """
    program = lowered(workload, target, config)
    numbers = {b.name: np.ones(shape_of(b)) for b in single_numbers(program)}  # any will do
    return select(program, target, frozenset(workload.constants), numbers)


@lru_cache(maxsize=KEPT)
def scheduled(workload: Workload, target: Target, config: Config) -> BurstSchedule:
    """The schedule of one configuration, proved.

    Raises:
        ConfigError, CodegenError, VerificationError: as `selected`; also where MEM is too small.
    """
    placed = schedule(selected(workload, target, config).dataflow, Chip.of(target))
    check(placed)
    return placed
