"""Data movement on CPUs: copies of boxes, a vector at a time.

Slices, concatenations, padding and gathers copy boxes of tensors. Axes that are copied whole are
merged with their neighbours already (`flattening`); the innermost run is cut into vectors, several
of them unrolled.
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


@schedules(
    "concat", "gather", "gather_elements", "gather_nd", "gather_packed", "one_hot", "pad", "slice",
    "trilu", on="cpu",
)  # fmt: skip
class CpuCopies(OneKnobScheduler):
    """See the module's docstring."""

    def choices(self, workload: Workload, target: Target) -> tuple[str, str, list[int]]:
        """How many vectors of the longest innermost run are unrolled."""
        runs = (stage.axes[-1].extent.constant or 1 for stage in compute_of(workload).stages)
        return "copy", "unroll", up_to(-(-max(runs) // vector_width(target)))

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        """Every stage: innermost axis in vectors, `unroll` of them at a time, the rest parallel."""
        schedule, lanes = Schedule(compute_of(workload)), vector_width(target)
        for stage in schedule.compute.stages:
            *outer, inner = (a.name for a in stage.axes)
            schedule = schedule.split(stage.name, inner, lanes, "vector", "lane")
            schedule = schedule.split(stage.name, "vector", var("unroll"), "step", "part")
            schedule = schedule.vectorize(stage.name, "lane").unroll(stage.name, "part")
            schedule = schedule.parallel(stage.name, *outer, "step")
        return schedule
