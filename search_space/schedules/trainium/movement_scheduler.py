"""The scheduler of operators that only copy, on Trainium-like cores (`movement` says how)."""

from __future__ import annotations

from tilesmith.search_space.scheduler import schedules
from tilesmith.search_space.schedules.trainium.common import CoreScheduler
from tilesmith.search_space.schedules.trainium.movement import MovementSpace
from tilesmith.search_space.target import Target
from tilesmith.search_space.template import compute_of
from tilesmith.search_space.workload import Workload


@schedules("concat", "pad", "resize", "slice", on="trainium")
class MovementOnCore(CoreScheduler):
    """See the module's docstring."""

    def prepare(self, workload: Workload, target: Target) -> MovementSpace:
        return MovementSpace(compute_of(workload), workload.dtype, target)
