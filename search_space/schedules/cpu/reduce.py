"""Reductions on CPUs.

Where the last axis is reduced, vectors run along it, with several accumulators and one step across
the lanes at the end; where it is kept, vectors run along it and the reduction adds whole rows, a
tile of the output staying in registers.
"""

from __future__ import annotations

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.vectorisation.element_types import CpuScheduler
from tilesmith.search_space.schedules.cpu.vectorisation.row_reduction import (
    accumulator_counts,
    reduce_row,
)
from tilesmith.search_space.schedules.cpu.vectorisation.stages import compute_of
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.workload import Workload


@schedules("reduce", on="cpu")
class CpuReduce(CpuScheduler):
    """See the module's docstring."""

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        algorithm, knob, values = self._choices(workload, target)
        return SearchSpace((Subspace((("algorithm", algorithm),), (tile(knob, values),)),))

    def _choices(self, workload: Workload, target: Target) -> tuple[str, str, list[int]]:
        """(algorithm, its knob, the knob's values)."""
        compute, lanes = compute_of(workload), vector_width(target)
        shape, over = compute.inputs[0].shape, compute.stage("total").reduce_axes
        length = shape[-1]
        if over and over[-1].name == f"d{len(shape) - 1}":
            return "along", "accumulators", accumulator_counts(length, lanes)
        vectors = -(-length // lanes)
        return "across", "n_vectors", [v for v in (1, 2, 4, 8) if v <= vectors]

    def default(self, workload: Workload, target: Target) -> Config:
        algorithm, knob, values = self._choices(workload, target)
        return Config.of({"algorithm": algorithm, knob: max(v for v in values if v <= 4)})

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        lanes = vector_width(target)
        schedule = Schedule(compute_of(workload))
        total = schedule.compute.stage("total")
        kept, over = [a.name for a in total.axes], [a.name for a in total.reduce_axes]
        final = schedule.compute.output.name
        if not over and final == "y":  # all reduced extents are 1
            schedule = schedule.inline("total")
        name = "total" if over else final
        if structure.text("algorithm") == "along":
            last, place = over[-1], (name, kept[-1])
            schedule = reduce_row(schedule, name, last, var("accumulators"), lanes, place)
            outer = kept
        else:
            schedule = schedule.split(name, kept[-1], lanes, "vector", "lane")
            schedule = schedule.split(name, "vector", var("n_vectors"), "tile", "part")
            outer = [*kept[:-1], "tile"]
            schedule = schedule.reorder(name, (*outer, *over, "part", "lane"))
            schedule = schedule.vectorize(name, "lane").unroll(name, "part")
        if over:
            schedule = schedule.cache_write(name, "register", outer[-1])
        if over and final == "y":
            schedule = schedule.reverse_compute_at("y", name, outer[-1])
        return schedule.parallel(name, *outer)
