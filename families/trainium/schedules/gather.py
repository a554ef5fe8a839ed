"""Gathering rows by index on Trainium-like cores: 128 picked rows at a time, one on each partition.

    for slices before the axis: for 128 indices: for columns:  gather; store     (1 to 3 copies)

DMA fetches each partition's row from where its index says; columns are only there to make long rows
fit SBUF.
"""

from dataclasses import replace

from tilesmith.families.trainium.schedules.building_blocks.common import CoreScheduler
from tilesmith.families.trainium.schedules.building_blocks.machine import memories
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import minimum, var
from tilesmith.search_space.expressions.scalar import Load
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, axis
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Constraint, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.template import compute_of
from tilesmith.search_space.workloads.workload import Workload


class GatherSpace:
    """Space and schedule of `y[o, i, t] = x[o, indices[i], t]`.

    Args:
        compute: that one stage; t may be missing.
        dtype: of the elements.
    """

    def __init__(self, compute: ComputeDefinition, dtype: str, target: Target) -> None:
        stage = compute.output
        if len(stage.axes) == 2:  # rows of one element: the tile's free axis
            stage = replace(
                stage,
                axes=(*stage.axes, axis("t", 1)),
                store=stage.indices,
                shape=stage.tensor_shape,
            )
        self.stage, self.compute, self.size = stage, compute, size_of(dtype)
        self.partitions = target.integer("sbuf.partitions")
        self.capacity = memories(target)["sbuf"].bytes
        self.columns = stage.axes[2].extent.constant or 1

    def space(self) -> SearchSpace:
        """Columns at a time, copies of the tiles."""
        widths = sorted({1 << e for e in range(6, 16) if 1 << e < self.columns} | {self.columns})
        spaces = []
        for copies in (1, 2, 3):
            limit = Constraint(
                minimum(var("columns"), self.columns) * (self.size * copies),
                self.capacity - 1024,  # indices and their fp32 forms
                "bytes of SBUF a partition that the tiles take",
                "choose fewer columns or copies",
            )
            fixed = (("algorithm", "rows"), ("copies", copies))
            spaces.append(Subspace(fixed, (tile("columns", widths),), (limit,)))
        return SearchSpace(tuple(s for s in spaces if s.size))

    def default(self) -> Config:
        """Double-buffered, whole rows if they fit."""
        configs = list(self.space())
        return min(configs, key=lambda c: (abs(c.integer("copies") - 2), -c.integer("columns")))

    def schedule(self, structure: Config) -> Schedule:
        """The schedule of a structural configuration; `columns` stays a symbol."""
        name, axes = self.stage.name, self.stage.axes
        picked = Stage("picked", axes, self.stage.value, dtype=self.stage.dtype)
        value = Load("picked", tuple(a.var for a in axes))
        stages = (picked, replace(self.stage, value=value))
        schedule = Schedule(replace(self.compute, stages=stages))
        o, i, t = (a.name for a in axes)
        schedule = schedule.split(name, i, self.partitions, "io", "ii")
        schedule = schedule.split(name, t, var("columns"), "to", "ti")
        schedule = schedule.reorder(name, (o, "io", "to", "ii", "ti"))
        schedule = schedule.compute_at("picked", name, "to", "sbuf")
        schedule = schedule.set_layout("picked", Layout.permuted((1, 0, 2)))
        return schedule.pipeline(name, "to", structure.integer("copies"))


@schedules("gather", on="trainium")
class GatherOnCore(CoreScheduler):
    """See the module's docstring."""

    def prepare(self, workload: Workload, target: Target) -> GatherSpace:
        return GatherSpace(compute_of(workload), workload.dtype, target)
