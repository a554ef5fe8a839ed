"""`judges`: what estimates schedules before any code is made of them, by family of targets.

The untuned configuration of a workload depends on what its algorithms cost, and a family's
simulator, which knows that, stands above the code that asks. It registers here, in the room where
the family's simulator is. A family without a judge keeps its schedulers' defaults.

Invariant: a judge is deterministic; it knows no more of the target than the facts it is given.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.support.registry import Registry
from tilesmith.search_space.workloads.workload import Workload

Judge = Callable[[Workload, Target, Sequence[Config]], NDArray[np.float64]]
"""Seconds of n configurations of a workload on a target, shape (n,); NaN: it cannot be run."""

judges: Registry[Judge] = Registry(
    "family of simulated targets", "tilesmith.simulator", TargetError, room="simulator"
)
