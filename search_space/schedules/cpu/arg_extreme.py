"""Indices of extremes on CPUs: the extreme of a row first, then the first place that has it.

Along the last axis the vectors run along the row, with several accumulators; the second look finds
the row in a cache. Along another axis they run across the rows, which are neighbours in memory.
"""

from __future__ import annotations

from tilesmith.search_space.instruction_set import vector_width
from tilesmith.search_space.ir.expression import var
from tilesmith.search_space.scheduler import schedules
from tilesmith.search_space.schedules.cpu.element_types import CpuScheduler
from tilesmith.search_space.schedules.cpu.row_reduction import accumulator_counts, reduce_row
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.target import Target
from tilesmith.search_space.template import compute_of
from tilesmith.search_space.workload import Workload


@schedules("arg_extreme", on="cpu")
class CpuArgExtreme(CpuScheduler):
    """See the module's docstring."""

    def _counts(self, workload: Workload, target: Target) -> list[int]:
        """Accumulators that a row can fill; none where vectors run across rows."""
        found = compute_of(workload).stage("m")
        if len(found.axes) > 1:
            return []
        length = found.reduce_axes[0].extent.constant or 1
        return accumulator_counts(length, vector_width(target))

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        counts = self._counts(workload, target)
        if not counts:
            return SearchSpace((Subspace((("algorithm", "across"),), ()),))
        return SearchSpace((Subspace((("algorithm", "along"),), (tile("accumulators", counts),)),))

    def default(self, workload: Workload, target: Target) -> Config:
        counts = self._counts(workload, target)
        if not counts:
            return Config.of(algorithm="across")
        return Config.of(algorithm="along", accumulators=max(c for c in counts if c <= 4))

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        schedule, lanes = Schedule(compute_of(workload)), vector_width(target)
        if structure.text("algorithm") == "along":
            for name in ("m", "p"):
                place = ("y", "o")
                schedule = reduce_row(schedule, name, "k", var("accumulators"), lanes, place)
                schedule = schedule.compute_at(name, *place, scope="register")
            return schedule.parallel("y", "o")
        schedule = schedule.split("y", "t", lanes, "vector", "lane").vectorize("y", "lane")
        for name in ("m", "p"):
            schedule = schedule.reorder(name, ("o", "k", "t")).vectorize(name, "t")
            schedule = schedule.compute_at(name, "y", "vector", scope="register")
        return schedule.parallel("y", "o", "vector")
