"""2-D convolution on Trainium-like cores: which algorithms apply, and which is preferred.

Shifted products (`conv`), stacked on partitions (`conv_stacked`), and sums in parts
(`conv_parts`).
"""

from tilesmith.families.trainium.schedules.building_blocks.common import CoreScheduler
from tilesmith.families.trainium.schedules.building_blocks.machine import FLOATS
from tilesmith.families.trainium.schedules.convolution.conv import ConvSpace
from tilesmith.families.trainium.schedules.convolution.conv_parts import PartsSpace, many
from tilesmith.families.trainium.schedules.convolution.conv_stacked import (
    PackedSpace,
    StackedSpace,
    packs,
)
from tilesmith.families.trainium.schedules.convolution.conv_stacked import applies as stacks
from tilesmith.search_space.convolution.geometry import Geometry
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.template import compute_of
from tilesmith.search_space.workloads.workload import Workload


class Conv2dSpace:
    """Space and schedule of one convolution, whatever the algorithm."""

    def __init__(self, workload: Workload, target: Target) -> None:
        g, compute = Geometry.of(workload).view(), compute_of(workload)
        kinds: list[type[StackedSpace]] = []
        if stacks(workload, g, target):
            kinds = [PackedSpace, StackedSpace] if packs(g, target) else [StackedSpace]
        stacked = [kind(workload, target, g, compute) for kind in kinds]
        stacked.sort(key=lambda kind: kind.quickest())
        usual = (ConvSpace, PartsSpace) if g.groups == 1 else (ConvSpace,)
        others = [kind(workload, target, g, compute) for kind in usual]
        self.kinds = {kind.algorithm: kind for kind in (*stacked, *others)}
        self.many = many(g, target)

    def fitting(self) -> list[SearchSpace]:
        """The spaces of algorithms whose tiles fit, the preferred one first; sums in parts where
        channels are many or nothing else fits. If nothing at all does, the one with the smallest
        tiles."""
        spaces = {name: kind.space() for name, kind in self.kinds.items()}
        fitting = [s for name, s in spaces.items() if s.size and name != PartsSpace.algorithm]
        parts = spaces.get(PartsSpace.algorithm)
        if parts is not None and (not fitting or self.many):
            fitting.append(parts)
        return fitting or list(spaces.values())[-1:]

    def space(self) -> SearchSpace:
        """The knobs of every algorithm that fits."""
        return SearchSpace(tuple(s for space in self.fitting() for s in space.subspaces))

    def default(self) -> Config:
        """That of the preferred algorithm."""
        first = self.fitting()[0].subspaces[0]
        return self.kinds[str(dict(first.fixed)["algorithm"])].default()

    def schedule(self, structure: Config) -> Schedule:
        """The schedule of a structural configuration."""
        return self.kinds[structure.text("algorithm")].schedule(structure)


@schedules("conv2d", on="trainium")
class Conv2dOnCore(CoreScheduler):
    """See the module's docstring."""

    dtypes = FLOATS

    def prepare(self, workload: Workload, target: Target) -> Conv2dSpace:
        return Conv2dSpace(workload, target)
