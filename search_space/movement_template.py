"""What templates of data movement share: one schedule for CPUs, one for Trainium-like cores.

`CopyTemplate` is for operators that read along their innermost axis (slice, pad, concat, gather),
`RelayoutTemplate` for those that permute axes (transpose, layout_transform). A template adds what
its operator computes.
"""

from __future__ import annotations

from abc import abstractmethod

from tilesmith.search_space.schedules.cpu.movement import copy_default, copy_schedule, copy_space
from tilesmith.search_space.schedules.cpu.relayout import Relayout
from tilesmith.search_space.schedules.trainium import common as accelerator
from tilesmith.search_space.schedules.trainium.gather import GatherSpace
from tilesmith.search_space.schedules.trainium.movement import MovementSpace
from tilesmith.search_space.schedules.trainium.transpose import PermutationSpace
from tilesmith.search_space.scheduling.compute import ComputeDefinition
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.target import Target
from tilesmith.search_space.template import Template
from tilesmith.search_space.workload import Workload


class CopyTemplate(Template):
    """Vectors along the innermost axis on CPUs, DMA on accelerators."""

    @abstractmethod
    def compute(self, workload: Workload) -> ComputeDefinition:
        """What the operator computes."""

    @abstractmethod
    def run(self, workload: Workload) -> int:
        """Extent that the vectors run along."""

    def on_accelerator(self, workload: Workload, target: Target) -> MovementSpace | GatherSpace:
        return MovementSpace(self.compute(workload), workload.dtype, target)

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        if target.family == accelerator.FAMILY:
            return self.on_accelerator(workload, target).space()
        return copy_space(self.run(workload), target.integer("vector.lanes"))

    def default(self, workload: Workload, target: Target) -> Config:
        if target.family == accelerator.FAMILY:
            return self.on_accelerator(workload, target).default()
        return copy_default(self.run(workload), target.integer("vector.lanes"))

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        if target.family == accelerator.FAMILY:
            return self.on_accelerator(workload, target).schedule(structure)
        return copy_schedule(self.compute(workload), target.integer("vector.lanes"))


class RelayoutTemplate(Template):
    """Tiles turned in registers on CPUs, on the tensor engine or by DMA on accelerators."""

    @abstractmethod
    def relayout(self, workload: Workload) -> Relayout:
        """The change of layout that this workload is."""

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage, a copy over the merged axes of the input."""
        return self.relayout(workload).compute(self.operator, workload.dtype)

    def _on_accelerator(self, workload: Workload, target: Target) -> PermutationSpace:
        return PermutationSpace(self.relayout(workload), self.operator, workload.dtype, target)

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        if target.family == accelerator.FAMILY:
            return self._on_accelerator(workload, target).space()
        return self.relayout(workload).space(target.integer("vector.lanes"))

    def default(self, workload: Workload, target: Target) -> Config:
        if target.family == accelerator.FAMILY:
            return self._on_accelerator(workload, target).default()
        return self.relayout(workload).default(target.integer("vector.lanes"))

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        if target.family == accelerator.FAMILY:
            return self._on_accelerator(workload, target).schedule(structure)
        lanes = target.integer("vector.lanes")
        return self.relayout(workload).schedule(self.operator, workload.dtype, lanes, structure)
