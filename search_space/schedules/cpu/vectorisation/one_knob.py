"""Schedulers whose workloads each have one algorithm, with one number to choose.

How many vectors are unrolled, rows done together, accumulators kept: a power of two, as far as
there is work for it. Untuned it is 4, or as many as there are.
"""

from abc import abstractmethod

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.vectorisation.element_types import CpuScheduler
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.workload import Workload

_UNTUNED = 4


def up_to(limit: int) -> list[int]:
    """1, 2, 4 and 8, but for those above a limit."""
    return [count for count in (1, 2, 4, 8) if count <= limit]


class OneKnobScheduler(CpuScheduler):
    """See the module's docstring."""

    @abstractmethod
    def choices(self, workload: Workload, target: Target) -> tuple[str, str, list[int]]:
        """The algorithm, its knob, and the knob's values."""

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        algorithm, knob, values = self.choices(workload, target)
        return SearchSpace((Subspace((("algorithm", algorithm),), (tile(knob, values),)),))

    def default(self, workload: Workload, target: Target) -> Config:
        algorithm, knob, values = self.choices(workload, target)
        chosen = max(value for value in values if value <= _UNTUNED)
        return Config.of({"algorithm": algorithm, knob: chosen})
