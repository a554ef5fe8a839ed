"""Running sums on CPUs: one addition waits for the next, so several rows run beside each other.

Where the axis is not the last, its neighbours are vectors, several of them unrolled. Else rows are:
a few scalars, as many as an addition takes cycles.
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


@schedules("cumulative_sum", on="cpu")
class CpuCumulativeSum(OneKnobScheduler):
    """See the module's docstring."""

    def choices(self, workload: Workload, target: Target) -> tuple[str, str, list[int]]:
        rows, *across = (a.extent.constant or 1 for a in compute_of(workload).output.axes)
        if across:
            vectors = -(-across[0] // vector_width(target))
            return "across", "n_vectors", up_to(vectors)
        return "along", "rows", up_to(rows)

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        schedule = Schedule(compute_of(workload))
        if structure.text("algorithm") == "along":
            schedule = schedule.split("y", "o", var("rows"), "tile", "row")
            schedule = schedule.reorder("y", ("tile", "k", "row")).unroll("y", "row")
            return schedule.cache_write("y", "register", "tile").parallel("y", "tile")
        schedule = schedule.split("y", "t", vector_width(target), "vector", "lane")
        schedule = schedule.split("y", "vector", var("n_vectors"), "tile", "part")
        schedule = schedule.reorder("y", ("o", "tile", "k", "part", "lane"))
        schedule = schedule.unroll("y", "part").vectorize("y", "lane")
        return schedule.cache_write("y", "register", "tile").parallel("y", "o", "tile")
