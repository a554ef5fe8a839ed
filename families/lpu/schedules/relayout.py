"""Changes of layout on LPU-like machines: a copy, row by row of the result.

    y[.., l] = x[where that element lies]

Lanes that stay lanes are moved by SXM; where lanes become rows, rows of the source are installed in
MXM and picked lane by lane (`families.lpu.codegen.selection.turning`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tilesmith.families.lpu.schedules.building_blocks.common import LpuScheduler
from tilesmith.families.lpu.schedules.building_blocks.machine import LANES, MULTIPLIED
from tilesmith.search_space.expressions.expression import Expr, const
from tilesmith.search_space.expressions.ranges import floordiv, mod
from tilesmith.search_space.expressions.scalar import Load
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.relayout import Relayout, relayout_of
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import choice
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.workload import Workload


@dataclass(frozen=True)
class MoveSpace:
    """Space and schedule of a change of layout: there is one way."""

    relayout: Relayout
    workload: Workload

    def space(self) -> SearchSpace:
        return SearchSpace((Subspace((("algorithm", "moved"),), (choice("order", ("rows",)),)),))

    def default(self) -> Config:
        return Config.of(algorithm="moved", order="rows")

    def schedule(self, structure: Config) -> Schedule:
        schedule = Schedule(copy(self.relayout, self.workload))
        stage = schedule.compute.output
        last = stage.axes[-1]
        if (last.extent.constant or 0) > LANES:
            schedule = schedule.split(stage.name, last.name, LANES, "lo", "li")
        return schedule


def copy(relayout: Relayout, workload: Workload) -> ComputeDefinition:
    """A copy between plain tensors whose lanes are the last dimension and the blocks before it."""
    shape = relayout.shape
    lead, inner = _extents(relayout.target, shape)
    axes = [axis(f"d{number}", extent) for number, extent in enumerate((*lead, prod(inner)))]
    bounds = {a.name: a.extent - 1 for a in axes}
    places = [*(a.var for a in axes[:-1]), *_apart(axes[-1].var, inner, bounds)]
    logical: list[Expr] = [const(0)] * len(shape)
    for dimension, place in zip(relayout.target.dimensions, places, strict=True):
        step = (dimension.factor.constant or 1) if dimension.part == "outer" else 1
        logical[dimension.axis] = logical[dimension.axis] + place * step
    lead, inner = _extents(relayout.source, shape)
    indices = relayout.source.indices(logical, bounds)
    lane: Expr = const(0)
    for index, extent in zip(indices[len(lead) :], inner, strict=True):
        lane = lane * extent + index
    source = Tensor("x", (*lead, prod(inner)), workload.dtype)
    value = Load("x", (*indices[: len(lead)], lane))
    stage = Stage("y", tuple(axes), value, dtype=workload.dtype)
    return ComputeDefinition(workload.operator, (source,), (stage,))


def _extents(layout: Layout, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of the dimensions that count rows, and of those across the lanes: what stands in a block."""
    parts = [dimension.part for dimension in layout.dimensions]
    first = parts.index("inner") if "inner" in parts else len(parts) - 1
    concrete = layout.concrete_shape(shape)
    return concrete[:first], concrete[first:]


def _apart(lane: Expr, inner: tuple[int, ...], bounds: Mapping[str, Expr]) -> list[Expr]:
    """A lane as indices of the dimensions across the lanes."""
    indices: list[Expr] = []
    step = prod(inner)
    for number, extent in enumerate(inner):
        step //= extent
        index = floordiv(lane, const(step), bounds)
        indices.append(index if number == 0 else mod(index, const(extent), bounds))
    return indices


def blocks_divide(relayout: Relayout) -> bool:
    """Whether every block of either layout is full."""
    return all(
        relayout.shape[d.axis] % (d.factor.constant or 1) == 0
        for layout in (relayout.source, relayout.target)
        for d in layout.dimensions
    )


@schedules("layout_transform", on="lpu")
class LpuRelayout(LpuScheduler):
    """See the module's docstring."""

    def refusal(self, workload: Workload, target: Target) -> str | None:
        relayout = relayout_of(workload)
        if not blocks_divide(relayout):
            return f"{target.name} changes between layouts whose blocks are full"
        lanes = [layout.dimensions[-1].axis for layout in (relayout.source, relayout.target)]
        if workload.dtype not in MULTIPLIED and lanes[0] != lanes[1]:
            return (
                f"{target.name} turns lanes into rows by products, of {', '.join(MULTIPLIED)}, not "
                f"of {workload.dtype}; give dtype=float16"
            )
        return super().refusal(workload, target)

    def prepare(self, workload: Workload, target: Target) -> MoveSpace:
        return MoveSpace(relayout_of(workload), workload)
