"""Reductions on CPUs.

Where the last axis is reduced, vectors run along it, with several accumulators and one step across
the lanes at the end; where it is kept, vectors run along it and the reduction adds whole rows, a
tile of the output staying in registers.
"""

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.vectorisation.one_knob import OneKnobScheduler, up_to
from tilesmith.search_space.schedules.cpu.vectorisation.row_reduction import (
    accumulator_counts,
    reduce_row,
)
from tilesmith.search_space.schedules.cpu.vectorisation.stages import compute_of
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.workload import Workload


@schedules("reduce", on="cpu")
class CpuReduce(OneKnobScheduler):
    """See the module's docstring."""

    def choices(self, workload: Workload, target: Target) -> tuple[str, str, list[int]]:
        compute, lanes = compute_of(workload), vector_width(target)
        shape, over = compute.inputs[0].shape, compute.stage("total").reduce_axes
        length = shape[-1]
        if over and over[-1].name == f"d{len(shape) - 1}":
            return "along", "accumulators", accumulator_counts(length, lanes)
        vectors = -(-length // lanes)
        return "across", "n_vectors", up_to(vectors)

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
