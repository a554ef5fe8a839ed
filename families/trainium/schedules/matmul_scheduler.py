"""The scheduler of matrix products on Trainium-like cores (`matmul` says which schedules)."""

from tilesmith.families.trainium.schedules.building_blocks.common import CoreScheduler
from tilesmith.families.trainium.schedules.building_blocks.machine import FLOATS
from tilesmith.families.trainium.schedules.matrix_products.matmul import MatmulSpace
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.workload import Workload


@schedules("matmul", on="trainium")
class MatmulOnCore(CoreScheduler):
    """See the module's docstring."""

    dtypes = FLOATS

    def prepare(self, workload: Workload, target: Target) -> MatmulSpace:
        return MatmulSpace(workload, target)
