"""Pointwise expressions on CPUs.

The innermost merged axis is cut into vectors: with nothing to broadcast it is one long loop, bound
by memory.
"""

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.vectorisation.one_knob import OneKnobScheduler, up_to
from tilesmith.search_space.schedules.cpu.vectorisation.stages import compute_of
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.workload import Workload


@schedules("elementwise", on="cpu")
class CpuElementwise(OneKnobScheduler):
    """See the module's docstring."""

    def choices(self, workload: Workload, target: Target) -> tuple[str, str, list[int]]:
        """Vectors along the innermost merged axis."""
        length = compute_of(workload).output.axes[-1].extent.constant or 1
        return "vectors", "unroll", up_to(-(-length // vector_width(target)))

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        compute = compute_of(workload)
        *outer, inner = (a.name for a in compute.output.axes)
        schedule = Schedule(compute)
        schedule = schedule.split("y", inner, vector_width(target), "vector", "lane")
        schedule = schedule.split("y", "vector", var("unroll"), "step", "part")
        schedule = schedule.vectorize("y", "lane").unroll("y", "part")
        return schedule.parallel("y", *outer, "step")
