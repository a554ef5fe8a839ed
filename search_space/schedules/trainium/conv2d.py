"""2-D convolution on Trainium-like cores: which algorithms apply, and which is preferred.

Shifted products (`conv`), stacked on partitions (`conv_stacked`, `conv_packed`), and sums in parts
(`conv_parts`).
"""

from __future__ import annotations

from tilesmith.search_space.convolution.geometry import Geometry
from tilesmith.search_space.scheduler import Scheduler, schedules
from tilesmith.search_space.schedules.trainium.conv import ConvSpace
from tilesmith.search_space.schedules.trainium.conv_packed import PackedSpace, packs
from tilesmith.search_space.schedules.trainium.conv_parts import PartsSpace, many
from tilesmith.search_space.schedules.trainium.conv_stacked import StackedSpace
from tilesmith.search_space.schedules.trainium.conv_stacked import applies as stacks
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.target import Target
from tilesmith.search_space.template import compute_of
from tilesmith.search_space.workload import Workload


@schedules("conv2d", on="trainium")
class Conv2dOnCore(Scheduler):
    """See the module's docstring."""

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        fitting = _fitting(workload, target)
        return SearchSpace(tuple(subspace for space in fitting for subspace in space.subspaces))

    def default(self, workload: Workload, target: Target) -> Config:
        first = _fitting(workload, target)[0].subspaces[0]
        algorithm = str(dict(first.fixed)["algorithm"])
        return _kinds(workload, target)[algorithm].default()

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        return _kinds(workload, target)[structure.text("algorithm")].schedule(structure)


def _kinds(workload: Workload, target: Target) -> dict[str, ConvSpace]:
    """The algorithms of an accelerator that apply, by name, the preferred one first."""
    g = Geometry.of(workload).view()
    compute = compute_of(workload)
    kinds: list[type[StackedSpace]] = []
    if stacks(workload, g, target):
        kinds = [PackedSpace, StackedSpace] if packs(g, target) else [StackedSpace]
    stacked = [kind(workload, target, g, compute) for kind in kinds]
    stacked.sort(key=lambda found: found.quickest())
    usual = (ConvSpace, PartsSpace) if g.groups == 1 else (ConvSpace,)
    others = [kind(workload, target, g, compute) for kind in usual]
    return {found.algorithm: found for found in (*stacked, *others)}


def _fitting(workload: Workload, target: Target) -> list[SearchSpace]:
    """The spaces of algorithms on a core whose tiles fit; sums in parts where channels are many
    or nothing else fits. If nothing at all does, the one with the smallest tiles."""
    kinds = _kinds(workload, target)
    spaces = {name: found.space() for name, found in kinds.items()}
    found = [s for name, s in spaces.items() if s.size and name != PartsSpace.algorithm]
    parts = spaces.get(PartsSpace.algorithm)
    if parts is not None and (not found or many(Geometry.of(workload).view(), target)):
        found.append(parts)
    return found or list(spaces.values())[-1:]
