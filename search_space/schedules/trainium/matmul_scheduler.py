"""The scheduler of matrix products on Trainium-like cores (`matmul` says which schedules)."""

from __future__ import annotations

from tilesmith.search_space.scheduler import schedules
from tilesmith.search_space.schedules.trainium.common import CoreScheduler
from tilesmith.search_space.schedules.trainium.machine import FLOATS
from tilesmith.search_space.schedules.trainium.matmul import MatmulSpace
from tilesmith.search_space.target import Target
from tilesmith.search_space.workload import Workload


@schedules("matmul", on="trainium")
class MatmulOnCore(CoreScheduler):
    """See the module's docstring."""

    dtypes = FLOATS

    def prepare(self, workload: Workload, target: Target) -> MatmulSpace:
        return MatmulSpace(workload, target)
