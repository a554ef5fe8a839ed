"""Data movement on CPUs: copies of boxes, a vector at a time.

Slices, concatenations, padding and gathers copy boxes of tensors. Axes that are copied whole are
merged with their neighbours already (`flattening`); the innermost run is cut into vectors, several
of them unrolled.
"""

from __future__ import annotations

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.vectorisation.element_types import CpuScheduler
from tilesmith.search_space.schedules.cpu.vectorisation.stages import compute_of
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.workload import Workload


def _vectors(workload: Workload, target: Target) -> int:
    """Vectors along the longest innermost run of a stage."""
    runs = (stage.axes[-1].extent.constant or 1 for stage in compute_of(workload).stages)
    return -(-max(runs) // vector_width(target))


@schedules(
    "concat", "gather", "gather_elements", "gather_nd", "gather_packed", "one_hot", "pad", "slice",
    "trilu", on="cpu",
)  # fmt: skip
class CpuCopies(CpuScheduler):
    """See the module's docstring."""

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        """How many vectors of the innermost run are unrolled."""
        counts = [u for u in (1, 2, 4, 8) if u <= _vectors(workload, target)]
        return SearchSpace((Subspace((("algorithm", "copy"),), (tile("unroll", counts),)),))

    def default(self, workload: Workload, target: Target) -> Config:
        """Four vectors, or as many as there are."""
        counts = [u for u in (1, 2, 4) if u <= _vectors(workload, target)]
        return Config.of(algorithm="copy", unroll=max(counts))

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
