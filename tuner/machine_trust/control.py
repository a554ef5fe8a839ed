"""The control kernel: the same one on all machines of one identity, timed beside every trial.

Its time is what machines are compared by (`tuner.machines.standing`). It has to be quick, as it
costs time beside every trial; long enough that a clock's steps and a call do not show; and of both
arithmetic and caches, since either may be what is throttled. An untuned product is that, wherever
products can be scheduled: its schedule depends on nothing but the target's identity.
"""

from tilesmith.codegen.programs.structures import default_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.measurement.runner import Candidate

WORKLOAD = "matmul m=192 n=192 k=192 const=b"


def control_kernel(target: Target) -> Candidate | None:
    """The control kernel of a target; None where it has no schedule for it."""
    workload = Workload.parse(WORKLOAD)
    try:
        return workload, default_of(workload, target)
    except TilesmithError:
        return None
