"""Rows of lanes: maps, softmax and normalisations.

Every tensor lies as its last dimension across lanes, so that maps go row by row. What is one number
for each row (a maximum, a mean) is kept on all lanes of a row of its own, which is what reducing
along lanes gives. Stages flow into each other, but for those that several read.

    for `rows` rows of the first dimension:  stage after stage
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilesmith.families.lpu.schedules.building_blocks.common import (
    LpuScheduler,
    prepared,
    result_stage,
    with_numbers,
)
from tilesmith.families.lpu.schedules.building_blocks.functions import not_computed
from tilesmith.families.lpu.schedules.building_blocks.machine import LANES
from tilesmith.search_space.expressions.expression import Expr, const, var
from tilesmith.search_space.expressions.scalar import Load, Scalar, call, load, rewrite
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.operator_parts.formula import expanded, parse_formula
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.template import compute_of, template_of
from tilesmith.search_space.workloads.workload import Workload


def map_compute(workload: Workload) -> ComputeDefinition:
    """`elementwise` over the axes of its output as they are."""
    template = template_of("elementwise")
    output = template.output(workload)
    axes = tuple(axis(f"d{i}", extent) for i, extent in enumerate(output.shape))
    tensors, elements = [], []
    for operand in template.inputs(workload):
        shape = operand.shape
        own = axes[len(axes) - len(shape) :]
        places = tuple(
            a.var if extent == n else const(0)
            for a, extent, n in zip(own, shape, output.shape[len(axes) - len(shape) :], strict=True)
        )
        constant = workload.is_constant(operand.name)
        tensors.append(Tensor(operand.name, shape, operand.dtype, constant))
        elements.append(Load(operand.name, places))
    value = expanded(parse_formula(workload.text("expression")), elements)
    stage = Stage("y", axes, value, dtype=workload.dtype)
    return ComputeDefinition("elementwise", tuple(tensors), (stage,))


def on_all_lanes(compute: ComputeDefinition) -> ComputeDefinition:
    """Stages of one number a row, on every lane of a row of their own.

    m[r] = max over k of x[r, k]; y[r, k] = x[r, k] - m[r]
    -->  m[r, l] = max over k of x[r, k]; y[r, k] = x[r, k] - m[r, k % LANES]
    """
    rank = len(compute.output.axes)
    small = {
        s.name
        for s in compute.stages
        if len(s.axes) < rank and all(a.name != _last(compute) for a in s.axes)
    }
    stages = []
    for stage in compute.stages:
        own = axis(f"{stage.name}.l", LANES)
        along = [a for a in (*stage.axes, *stage.reduce_axes) if a.name == _last(compute)]
        lane: Expr = own.var if stage.name in small and not along else const(0)
        if along:
            lane = along[0].var % LANES

        def access(load: Load, lane: Expr = lane) -> Scalar:
            if load.buffer not in small:
                return load
            return Load(load.buffer, (*load.indices, lane))

        value = rewrite(stage.value, lambda index: index, access)
        axes = (*stage.axes, own) if stage.name in small else stage.axes
        stages.append(replace(stage, axes=axes, value=value))
    return replace(compute, stages=tuple(stages))


def _is_small(stage: Stage) -> bool:
    """Whether a stage is one number a row, on all lanes (`on_all_lanes`)."""
    return stage.axes[-1].name == f"{stage.name}.l"


def _last(compute: ComputeDefinition) -> str:
    return compute.output.axes[-1].name


@dataclass(frozen=True)
class VectorRowsSpace:
    """Space and schedule of stages over the same rows.

    Args:
        compute: its last stage is pointwise; all have its first axes first.
    """

    compute: ComputeDefinition

    @property
    def rows(self) -> int:
        """Extent of the first axis, if it is not the lanes."""
        axes = self.compute.output.axes
        return (axes[0].extent.constant or 1) if len(axes) > 1 else 1

    @property
    def parted(self) -> bool:
        """Whether rows go some at a time."""
        return len(self.compute.output.axes) > 1

    def space(self) -> SearchSpace:
        parts = {-(-self.rows // parts) for parts in (1, 2, 3, 4, 8, 16)}
        return SearchSpace((Subspace((("algorithm", "rows"),), (tile("rows", parts),)),))

    def default(self) -> Config:
        return Config.of(algorithm="rows", rows=self.rows)

    def schedule(self, structure: Config) -> Schedule:
        """See the module's docstring; `rows` stays a symbol."""
        schedule = prepared(Schedule(self.compute))
        *before, last = (s for s in self.compute.stages if not self.compute.is_constant(s.name))
        if self.parted:
            schedule = schedule.split(last.name, last.axes[0].name, var("rows"), "ro", "ri")
            schedule = schedule.unroll(last.name, "ro")
        for stage in before:
            if stage.reducer is not None:
                loops = (*stage.reduce_axes, *stage.axes)
                schedule = schedule.reorder(stage.name, tuple(a.name for a in loops))
            scope = "mem" if self._shared(stage) else "stream"
            if self.parted:
                schedule = schedule.compute_at(stage.name, last.name, "ro", scope)
            else:
                schedule = schedule.set_scope(stage.name, scope)
        return schedule

    def _shared(self, stage: Stage) -> bool:
        """Whether several read what a stage makes: stages, or rows of lanes beside each other."""
        *_, last = self.compute.output.axes
        wide = (last.extent.constant or LANES) > LANES
        wide = wide and len(stage.axes) == len(self.compute.output.axes) and _is_small(stage)
        readers = sum(stage.name in other.reads for other in self.compute.stages)
        return stage.reducer is None and (wide or readers > 1)


class RowsOnLpu(LpuScheduler):
    """A scheduler of stages over the same rows."""

    def compute(self, workload: Workload) -> ComputeDefinition:
        return compute_of(workload)

    def refusal(self, workload: Workload, target: Target) -> str | None:
        return super().refusal(workload, target) or not_computed(self.compute(workload), target)

    def prepare(self, workload: Workload, target: Target) -> VectorRowsSpace:
        compute = result_stage(self.compute(workload), workload)
        return VectorRowsSpace(on_all_lanes(with_numbers(compute)))


@schedules("elementwise", on="lpu")
class MapOnLpu(RowsOnLpu):
    """See the module's docstring."""

    def compute(self, workload: Workload) -> ComputeDefinition:
        return map_compute(workload)


FEW_ROWS = 16
"""Rows up to which sums along the lanes are taken by rotations, in a few steps."""


MOST_ROWS = 1024
"""Rows that are reduced to one at most: each is an operand of the expression."""


def softmax_over_rows(workload: Workload) -> ComputeDefinition:
    """`softmax` along another axis than the last, which stays across the lanes."""
    axes = tuple(axis(f"d{n}", extent) for n, extent in enumerate(workload.shape("shape")))
    along = axes[workload.integer("axis") % len(axes)]
    kept = tuple(a for a in axes if a is not along)
    every, one = tuple(a.var for a in axes), tuple(a.var for a in kept)
    x, e, m, t = load("x", *every), load("e", *every), load("m", *one), load("t", *one)
    log = workload.integer("log")
    value = call("subtract", call("subtract", x, m), t) if log else call("multiply", e, t)
    stages = (
        Stage("m", kept, x, (along,), "max"),
        Stage("e", axes, call("exp", call("subtract", x, m))),
        Stage("s", kept, e, (along,), "sum"),
        Stage("t", kept, call("log" if log else "reciprocal", load("s", *one))),
        Stage("y", axes, value),
    )
    tensors = (Tensor("x", workload.shape("shape"), workload.dtype),)
    return ComputeDefinition("softmax", tensors, stages)


class WholeRows(VectorRowsSpace):
    """All rows at once: the first axis is one that is reduced."""

    @property
    def parted(self) -> bool:
        return False

    def space(self) -> SearchSpace:
        return SearchSpace((Subspace((("algorithm", "rows"),), (tile("rows", (self.rows,)),)),))


@schedules("softmax", on="lpu")
class SoftmaxOnLpu(RowsOnLpu):
    """See the module's docstring. Powers are 1 at most: in float16, products add them up. Along
    another axis than the last, rows are combined."""

    def compute(self, workload: Workload) -> ComputeDefinition:
        if not _along_lanes(workload):
            return softmax_over_rows(workload)
        compute = compute_of(workload)
        if workload.dtype != "float16" or product(workload.shape("shape")[:-1]) <= FEW_ROWS:
            return compute
        stages = (replace(s, dtype="float16") if s.name == "e" else s for s in compute.stages)
        return replace(compute, stages=tuple(stages))

    def refusal(self, workload: Workload, target: Target) -> str | None:
        length = workload.shape("shape")[workload.integer("axis")]
        if not _along_lanes(workload) and length > MOST_ROWS:
            return (
                f"operator 'softmax' combines at most {MOST_ROWS} rows on target '{target.name}', "
                f"not {length}; along the last axis it takes any number"
            )
        return super().refusal(workload, target)

    def prepare(self, workload: Workload, target: Target) -> VectorRowsSpace:
        space = super().prepare(workload, target)
        shape = workload.shape("shape")
        first = workload.integer("axis") % len(shape) == 0 and not _along_lanes(workload)
        return WholeRows(space.compute) if first else space


def _along_lanes(workload: Workload) -> bool:
    shape = workload.shape("shape")
    return workload.integer("axis") % len(shape) == len(shape) - 1


def _instead(name: str, value: Scalar) -> Callable[[Load], Scalar]:
    """What a stage computes where it is read."""
    return lambda load: value if load.buffer == name else load


@schedules("layer_norm", "rms_norm", on="lpu")
class NormOnLpu(RowsOnLpu):
    """See the module's docstring. Differences are taken from the total's share as they are squared:
    results want the mean later."""

    def compute(self, workload: Workload) -> ComputeDefinition:
        definition = compute_of(workload)
        mean = next((s.value for s in definition.stages if s.name == "mean"), None)
        if mean is None:
            return definition
        stages = [
            replace(s, value=rewrite(s.value, lambda i: i, _instead("mean", mean)))
            if s.name == "squares"
            else s
            for s in definition.stages
        ]
        return replace(definition, stages=tuple(stages))

    def refusal(self, workload: Workload, target: Target) -> str | None:
        shape, axes = workload.shape("shape"), workload.integer("axes")
        if axes > 1 and product(shape[-axes:-1]) > 1:
            return (
                f"operator '{workload.operator}' runs over the last axis only "
                f"on target '{target.name}'"
            )
        return super().refusal(workload, target)
