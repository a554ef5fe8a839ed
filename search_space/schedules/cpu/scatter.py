"""Scatters on CPUs: a copy in vectors, then the updates in their order.

What is written is disjoint along the axes that indices do not choose: vectors run along the last of
these where it is the last of the tensor, threads share all of them. Along the others one thread
goes through the updates one by one.
"""

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.vectorisation.element_types import CpuScheduler
from tilesmith.search_space.schedules.cpu.vectorisation.one_knob import up_to
from tilesmith.search_space.schedules.cpu.vectorisation.stages import compute_of
from tilesmith.search_space.scheduling.compute import Stage
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.workload import Workload


def _is_row(stage: Stage) -> bool:
    """Whether neighbours along the stage's last axis are neighbours in memory."""
    return bool(stage.axes) and stage.indices[-1] == stage.axes[-1].var


def _vectors(stage: Stage, target: Target) -> int:
    """Vectors along a row."""
    length = stage.axes[-1].extent.constant or 1 if _is_row(stage) else 1
    return -(-length // vector_width(target))


@schedules("scatter_elements", "scatter_nd", on="cpu")
class CpuScatter(CpuScheduler):
    """See the module's docstring."""

    def _counts(self, workload: Workload, target: Target, name: str) -> list[int]:
        return up_to(_vectors(compute_of(workload).stage(name), target))

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        """How many vectors of the copy, and of an update, are unrolled."""
        copy, row = (self._counts(workload, target, name) for name in ("base", "y"))
        return SearchSpace(
            (Subspace((("algorithm", "copy"),), (tile("copy", copy), tile("row", row))),)
        )

    def default(self, workload: Workload, target: Target) -> Config:
        copy, row = (self._counts(workload, target, name) for name in ("base", "y"))
        return Config.of(algorithm="copy", copy=min(4, copy[-1]), row=min(4, row[-1]))

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        schedule, lanes = Schedule(compute_of(workload)), vector_width(target)
        for name, knob in (("base", "copy"), ("y", "row")):
            stage = schedule.compute.stage(name)
            over = [a.name for a in stage.reduce_axes]
            if not _is_row(stage):
                schedule = schedule.parallel(name, *(a.name for a in stage.axes))
                continue
            *outer, inner = (a.name for a in stage.axes)
            schedule = schedule.split(name, inner, lanes, "vector", "lane")
            schedule = schedule.split(name, "vector", var(knob), "step", "part")
            schedule = schedule.reorder(name, (*outer, "step", *over, "part", "lane"))
            schedule = schedule.vectorize(name, "lane").unroll(name, "part")
            schedule = schedule.parallel(name, *outer, "step")
        return schedule
