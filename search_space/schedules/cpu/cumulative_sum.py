"""Running sums on CPUs: one addition waits for the next, so several rows run beside each other.

Where the axis is not the last, its neighbours are vectors, several of them unrolled. Else rows are:
a few scalars, as many as an addition takes cycles.
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


@schedules("cumulative_sum", on="cpu")
class CpuCumulativeSum(CpuScheduler):
    """See the module's docstring."""

    def _choices(self, workload: Workload, target: Target) -> tuple[str, str, list[int]]:
        """(algorithm, its knob, the knob's values)."""
        rows, *across = (a.extent.constant or 1 for a in compute_of(workload).output.axes)
        if across:
            vectors = -(-across[0] // vector_width(target))
            return "across", "n_vectors", [v for v in (1, 2, 4, 8) if v <= vectors]
        return "along", "rows", [r for r in (1, 2, 4, 8) if r <= rows]

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        algorithm, knob, values = self._choices(workload, target)
        return SearchSpace((Subspace((("algorithm", algorithm),), (tile(knob, values),)),))

    def default(self, workload: Workload, target: Target) -> Config:
        algorithm, knob, values = self._choices(workload, target)
        return Config.of({"algorithm": algorithm, knob: max(v for v in values if v <= 4)})

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
