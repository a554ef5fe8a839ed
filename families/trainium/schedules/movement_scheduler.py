"""The scheduler of operators that only copy, on Trainium-like cores (`movement` says how)."""

from tilesmith.families.trainium.schedules.building_blocks.common import CoreScheduler
from tilesmith.families.trainium.schedules.data_movement.movement import MovementSpace
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.template import compute_of
from tilesmith.search_space.workloads.workload import Workload


@schedules("concat", "pad", "resize", "slice", on="trainium")
class MovementOnCore(CoreScheduler):
    """See the module's docstring."""

    def prepare(self, workload: Workload, target: Target) -> MovementSpace:
        return MovementSpace(compute_of(workload), workload.dtype, target)
