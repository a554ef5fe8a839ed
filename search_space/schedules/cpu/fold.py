"""Columns added up on CPUs: vectors along rows of pixels, the cells of a window unrolled.

The cell of a window that a pixel is lies in one block; where blocks step by one, those of a row of
pixels are a row of memory.
"""

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.vectorisation.one_knob import OneKnobScheduler
from tilesmith.search_space.schedules.cpu.vectorisation.stages import compute_of
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.workload import Workload

_UNROLLED = 8
"""Cells of a window's row up to which they are unrolled."""


@schedules("fold", on="cpu")
class CpuFold(OneKnobScheduler):
    """See the module's docstring."""

    def choices(self, workload: Workload, target: Target) -> tuple[str, str, list[int]]:
        """Untuned, whole rows if they are short: which lanes have a block is known then."""
        vectors = -(-workload.integer("w") // vector_width(target))
        return "rows", "w_tile", [size for size in (1, 2, 3, 4) if size <= vectors]

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        schedule = Schedule(compute_of(workload))
        schedule = schedule.split("y", "j", vector_width(target), "jv", "lane")
        schedule = schedule.split("y", "jv", var("w_tile"), "jt", "ji")
        schedule = schedule.reorder("y", ("n", "c", "i", "jt", "r", "s", "ji", "lane"))
        schedule = schedule.vectorize("y", "lane").unroll("y", "ji")
        if workload.integer("kw") <= _UNROLLED:
            schedule = schedule.unroll("y", "s")
        schedule = schedule.cache_write("y", "register", "jt")
        return schedule.parallel("y", "n", "c", "i")
