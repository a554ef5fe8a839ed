"""Movements on LPU-like machines: rows copied, lanes shifted and permuted by SXM.

Whatever goes from a place to another by rows is a read and a write; what goes from lanes to lanes
is moved by SXM on the way; what has to change rows for lanes is turned by a product with ones on
the diagonal (`transpose`).

    for `rows` of the first dimension:  y = x elsewhere
"""

from dataclasses import dataclass, replace

from tilesmith.families.lpu.schedules.building_blocks.common import (
    LpuScheduler,
    identity,
    lanes_a_cycle,
    picking_stage,
    prepared,
    with_numbers,
)
from tilesmith.families.lpu.schedules.building_blocks.functions import not_computed
from tilesmith.families.lpu.schedules.building_blocks.machine import LANES, MULTIPLIED
from tilesmith.families.lpu.schedules.rows import VectorRowsSpace
from tilesmith.search_space.expressions.expression import as_expr
from tilesmith.search_space.expressions.scalar import Const, Load, Select, load
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import choice
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.template import compute_of, template_of
from tilesmith.search_space.workloads.workload import Workload


class MovesOnLpu(LpuScheduler):
    """A scheduler of movements whose stages are over the axes of the result as they are."""

    def compute(self, workload: Workload) -> ComputeDefinition:
        return compute_of(workload)

    def refusal(self, workload: Workload, target: Target) -> str | None:
        return super().refusal(workload, target) or not_computed(self.compute(workload), target)

    def prepare(self, workload: Workload, target: Target) -> VectorRowsSpace:
        return VectorRowsSpace(with_numbers(self.compute(workload)))


@schedules("slice", on="lpu")
class SliceOnLpu(MovesOnLpu):
    """See the module's docstring."""

    def compute(self, workload: Workload) -> ComputeDefinition:
        shape, starts = workload.shape("shape"), workload.shape("starts")
        sizes = workload.shape("sizes")
        steps = workload.shape("steps") or (1,) * len(shape)
        axes = tuple(axis(f"d{i}", size) for i, size in enumerate(sizes))
        places = (a.var * step + start for a, step, start in zip(axes, steps, starts, strict=True))
        stage = Stage("y", axes, load("x", *places), dtype=workload.dtype)
        return ComputeDefinition("slice", (Tensor("x", shape, workload.dtype),), (stage,))


@schedules("gather", on="lpu")
class GatherOnLpu(LpuScheduler):
    """Whole rows are picked by Gather, row numbers being of int32."""

    def refusal(self, workload: Workload, target: Target) -> str | None:
        shape, place = workload.shape("shape"), workload.integer("axis")
        if place % len(shape) == len(shape) - 1:
            return f"operator 'gather' picks whole rows only on target '{target.name}'"
        if workload.text("index") != "int32":
            return f"row numbers on {target.name} are of int32; give index=int32"
        if len(shape) - place % len(shape) > 2:
            return f"operator 'gather' picks along the last axis but one only on '{target.name}'"
        return super().refusal(workload, target)

    def prepare(self, workload: Workload, target: Target) -> "_PartsSpace":
        return _PartsSpace(compute_of(workload))


@schedules("resize", on="lpu")
class ResizeOnLpu(MovesOnLpu):
    """See the module's docstring."""


@dataclass(frozen=True)
class TurnSpace:
    """Rows and lanes exchanged, by a product with the identity for every pair of 320 of either.

    y[.., q, .., p] = sum over q' of identity[q, q'] * x[.., p, .., q']
    """

    compute: ComputeDefinition
    turned: str
    width: int

    def space(self) -> SearchSpace:
        return SearchSpace(
            (Subspace((("algorithm", "turn"),), (choice("order", ("p,q", "q,p")),)),)
        )

    def default(self) -> Config:
        return Config.of(algorithm="turn", order="p,q")

    def schedule(self, structure: Config) -> Schedule:
        schedule = prepared(Schedule(self.compute))
        *others, lane = (a.name for a in self.compute.output.axes)
        outer = [name for name in others if name != self.turned]
        schedule = schedule.split("y", self.turned, self.width, "qo", "qi").split(
            "y", lane, LANES, "po", "pi"
        )
        blocks = ("po", "qo") if structure.text("order") == "p,q" else ("qo", "po")
        schedule = schedule.reorder("y", (*outer, *blocks, "qi", "pi", "y.jj"))
        schedule = schedule.unroll("y", *outer)
        return schedule.cache_write("y", "sums", blocks[-1])


@schedules("transpose", on="lpu")
class TransposeOnLpu(LpuScheduler):
    """Rows are copied in another order where the last dimension stays last."""

    def _stays(self, workload: Workload) -> bool:
        shape, perm = workload.shape("shape"), workload.shape("perm")
        return perm[-1] == len(shape) - 1 or shape[-1] == 1

    def refusal(self, workload: Workload, target: Target) -> str | None:
        if not self._stays(workload) and workload.dtype not in MULTIPLIED:
            return (
                f"{target.name} turns rows of float16 and int8 by products, not of "
                f"{workload.dtype}; give dtype=float16"
            )
        return super().refusal(workload, target)

    def prepare(self, workload: Workload, target: Target) -> VectorRowsSpace | TurnSpace:
        shape, perm = workload.shape("shape"), workload.shape("perm")
        axes = tuple(axis(f"d{i}", shape[p]) for i, p in enumerate(perm))
        places = [axes[perm.index(i)].var for i in range(len(shape))]
        x = Tensor("x", shape, workload.dtype)
        if self._stays(workload):
            stage = Stage("y", axes, Load("x", tuple(places)), dtype=workload.dtype)
            return VectorRowsSpace(ComputeDefinition("transpose", (x,), (stage,)))
        q = axes[perm.index(len(shape) - 1)]
        mirror = identity("identity", workload.dtype, min(shape[-1], LANES))
        width = lanes_a_cycle(workload, target)
        stage = picking_stage(
            workload, "y", axes, q, lambda lane: Load("x", (*places[:-1], lane)), mirror, width
        )
        stage = replace(stage, dtype=workload.dtype)
        return TurnSpace(ComputeDefinition("transpose", (x,), (mirror, stage)), q.name, width)


@schedules("pad", on="lpu")
class PadOnLpu(MovesOnLpu):
    """Frames of one number."""

    def refusal(self, workload: Workload, target: Target) -> str | None:
        if workload.text("mode") != "constant":
            return f"operator 'pad' has mode=constant only on target '{target.name}'"
        return super().refusal(workload, target)

    def compute(self, workload: Workload) -> ComputeDefinition:
        shape, before = workload.shape("shape"), workload.shape("before")
        axes = tuple(
            axis(f"d{i}", size) for i, size in enumerate(template_of("pad").output(workload).shape)
        )
        places = [a.var - b for a, b in zip(axes, before, strict=True)]
        tests = [
            test
            for a, place, extent, b in zip(axes, places, shape, before, strict=True)
            for test, fails in (
                (place, b > 0),
                (as_expr(extent) - 1 - place, (a.extent.constant or 0) - b > extent),
            )
            if fails
        ]
        inside = load("x", *places)
        outside = Const(float(workload.text("value")))
        value = Select(tuple(tests), inside, outside) if tests else inside
        stage = Stage("y", axes, value, dtype=workload.dtype)
        return ComputeDefinition("pad", (Tensor("x", shape, workload.dtype),), (stage,))


@schedules("concat", on="lpu")
class ConcatOnLpu(LpuScheduler):
    """Every part is written to its place."""

    def prepare(self, workload: Workload, target: Target) -> "_PartsSpace":
        return _PartsSpace(concatenated(workload))


@dataclass(frozen=True)
class _PartsSpace:
    """Space and schedule of stages one after the other, each over all it writes."""

    compute: ComputeDefinition

    def space(self) -> SearchSpace:
        return SearchSpace((Subspace((("algorithm", "parts"),), (choice("order", ("parts",)),)),))

    def default(self) -> Config:
        return Config.of(algorithm="parts", order="parts")

    def schedule(self, structure: Config) -> Schedule:
        return prepared(Schedule(self.compute))


def concatenated(workload: Workload) -> ComputeDefinition:
    """Every part as a stage that writes into the result."""
    shape, place = workload.shape("shape"), workload.integer("axis")
    place %= len(shape)
    parts = workload.shape("parts")
    tensors, stages, offset = [], [], 0
    for number, part in enumerate(parts):
        extents = (*shape[:place], part, *shape[place + 1 :])
        name, last = f"x{number}", number == len(parts) - 1
        axes = tuple(axis(f"{name}.d{i}", extent) for i, extent in enumerate(extents))
        constant = workload.is_constant(name)
        tensors.append(Tensor(name, extents, workload.dtype, constant))
        own = tuple(a.var for a in axes)
        store = tuple(v + offset if i == place else v for i, v in enumerate(own))
        stages.append(
            Stage(
                "y" if last else f"y.{name}", axes, Load(name, own), store=store,
                shape=tuple(map(as_expr, shape)), dtype=workload.dtype,
                into="" if last else "y",
            )
        )  # fmt: skip
        offset += part
    return ComputeDefinition("concat", tuple(tensors), tuple(stages))
