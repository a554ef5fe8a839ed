"""Indices of extremes on CPUs: the extreme of a row first, then the first place that has it.

Along the last axis the vectors run along the row, with several accumulators; the second look finds
the row in a cache. Along another axis they run across the rows, which are neighbours in memory.
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


@schedules("arg_extreme", on="cpu")
class CpuArgExtreme(OneKnobScheduler):
    """See the module's docstring."""

    def choices(self, workload: Workload, target: Target) -> tuple[str, str, list[int]]:
        stage, lanes = compute_of(workload).stage("m"), vector_width(target)
        if len(stage.axes) > 1:
            vectors = -(-(stage.axes[-1].extent.constant or lanes) // lanes)
            return "across", "n_vectors", up_to(vectors)
        length = stage.reduce_axes[0].extent.constant or 1
        return "along", "accumulators", accumulator_counts(length, lanes)

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        schedule, lanes = Schedule(compute_of(workload)), vector_width(target)
        if structure.text("algorithm") == "along":
            for name in ("m", "p"):
                place = ("y", "o")
                schedule = reduce_row(schedule, name, "k", var("accumulators"), lanes, place)
                schedule = schedule.compute_at(name, *place, scope="register")
            return schedule.parallel("y", "o")
        schedule = schedule.split("y", "t", var("n_vectors") * lanes, "tile", "t")
        for name, over in (("m", ["k"]), ("p", ["k"]), ("y", [])):
            schedule = schedule.split(name, "t", lanes, "part", "lane")
            outer = ["o"] if name != "y" else ["o", "tile"]
            schedule = schedule.reorder(name, (*outer, *over, "part", "lane"))
            schedule = schedule.unroll(name, "part").vectorize(name, "lane")
            if name != "y":
                schedule = schedule.compute_at(name, "y", "tile", scope="register")
        return schedule.parallel("y", "o", "tile")
