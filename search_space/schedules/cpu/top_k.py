"""The largest elements on CPUs: by counting in short rows, by a heap in long ones.

Counting compares every key with every other, in vectors: nothing waits for anything, but the work
grows with the square of the row. The intrinsic `select` keeps the best so far in a heap.
A single one is the extreme of a row, and scheduled as that.
"""

from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.arg_extreme import CpuArgExtreme
from tilesmith.search_space.schedules.cpu.vectorisation.element_types import CpuScheduler
from tilesmith.search_space.schedules.cpu.vectorisation.stages import compute_of
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.workload import Workload

COUNTED = 64
"""Elements of a row up to which counting is offered."""


@schedules("top_k", on="cpu")
class CpuTopK(CpuScheduler):
    """See the module's docstring."""

    _single = CpuArgExtreme()

    def _length(self, workload: Workload) -> int:
        return workload.shape("shape")[workload.integer("axis")]

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        if workload.integer("k") == 1:
            return self._single.space(workload, target)
        names = ["heap"] + ["counting"] * (self._length(workload) <= COUNTED)
        return SearchSpace(tuple(Subspace((("algorithm", name),), ()) for name in names))

    def default(self, workload: Workload, target: Target) -> Config:
        if workload.integer("k") == 1:
            return self._single.default(workload, target)
        counting = self._length(workload) <= vector_width(target)
        return Config.of(algorithm="counting" if counting else "heap")

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        if workload.integer("k") == 1:
            return self._single.schedule(workload, target, structure)
        schedule, lanes = Schedule(compute_of(workload)), vector_width(target)
        row = [a.name for a in schedule.compute.stage("key").axes[:-1]]
        place = ("y", row[-1])
        schedule = schedule.reorder("y", (*row, "j"))
        schedule = schedule.split("y", "j", lanes, "vector", "lane").vectorize("y", "lane")
        schedule = schedule.split("key", "i", lanes, "vector", "lane").vectorize("key", "lane")
        if structure.text("algorithm") == "heap":
            schedule = schedule.compute_at("rank", "sorted", "j")
            schedule = schedule.tensorize("sorted", "j", "select")
        else:
            for name, along, over in (("rank", "i", "l"), ("sorted", "j", "i")):
                schedule = schedule.split(name, along, lanes, "vector", "lane")
                schedule = schedule.reorder(name, (*row, "vector", over, "lane"))
                schedule = schedule.vectorize(name, "lane").cache_write(name, "register", "vector")
            schedule = schedule.compute_at("rank", *place)
        for name in ("sorted", "key"):
            schedule = schedule.compute_at(name, *place)
        return schedule.parallel("y", *row)
