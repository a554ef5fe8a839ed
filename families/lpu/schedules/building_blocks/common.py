"""What schedules for LPU-like machines share: operands as MXM wants them, the way out.

MXM takes weights as [columns, k]: a matrix that is stored otherwise is turned, at compile time if
it is known then, else by a product of its own:

    turned[j, k] = sum over j' of identity[j, j'] * matrix[k, j']       exact, for one term is not 0

One number that all lanes need is spread over a row (`with_numbers`). Results of narrow types are
narrowed where they are stored.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import ClassVar

from tilesmith.families.lpu.schedules.building_blocks.machine import (
    DTYPES,
    LANES,
    MULTIPLIED,
    check_slices,
)
from tilesmith.search_space.expressions.expression import Expr, as_expr, const, minimum
from tilesmith.search_space.expressions.scalar import (
    Call,
    Const,
    Load,
    Scalar,
    Select,
    call,
    load,
    rewrite,
)
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.integer_products import product_stage
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage, axis
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.workloads.scheduler import PreparingScheduler
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload


class LpuScheduler(PreparingScheduler):
    """A scheduler for LPU-like machines, which have instructions for some dtypes."""

    dtypes: ClassVar[tuple[str, ...]] = DTYPES

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        check_slices(target)
        return super().space(workload, target)

    def refusal(self, workload: Workload, target: Target) -> str | None:
        if workload.dtype in self.dtypes:
            return None
        return (
            f"operator '{workload.operator}' has no instructions for dtype '{workload.dtype}' on "
            f"target '{target.name}'; one of {', '.join(self.dtypes)} is expected"
        )


class ProductScheduler(LpuScheduler):
    """A scheduler of products."""

    dtypes = MULTIPLIED

    def refusal(self, workload: Workload, target: Target) -> str | None:
        if workload.dtype not in self.dtypes:
            return (
                f"{target.name} multiplies float16 and int8, not {workload.dtype}; give "
                "dtype=float16"
            )
        if dict(workload.parameters).get("weights") == "uint8":
            return f"{target.name} multiplies by weights of int8, not uint8"
        return None


ENOUGH = 384
"""Vectors of a chain from which on it is not worth while to have it longer: its weights are loaded
and its first results made in the time of a few dozen, and whoever reads them waits for all."""


FEW = ENOUGH // 2
"""The same without weights: nothing is loaded for a chain, and one of fewer vectors fits between
loads of weights for others, which take ports of many slices."""


def at_a_time(options: Iterable[int], each: int, enough: int = ENOUGH) -> int:
    """Rows of an image at a time, of `each` vectors: the fewest that are enough."""
    rows = sorted(options)
    return next((count for count in rows if count * each >= enough), rows[-1])


def planes(workload: Workload, target: Target) -> int:
    """Passes of MXM at once: those of float16 take two planes each."""
    number = target.integer("mxm.planes")
    return number if workload.dtype != "float16" else max(1, number // 2)


def result_stage(compute: ComputeDefinition, workload: Workload) -> ComputeDefinition:
    """The same computation whose last stage is pointwise and of the result's element type."""
    dtype = template_of(workload.operator).result_dtype(workload)
    *before, last = compute.stages
    if last.reducer is None:
        return replace(compute, stages=(*before, replace(last, dtype=dtype)))
    element = Load(last.name, tuple(a.var for a in last.axes))
    result = Stage("result", last.axes, element, dtype=dtype)
    return replace(compute, stages=(*before, last, result))


def identity(name: str, dtype: str, size: int) -> Stage:
    """A matrix of ones on the diagonal, known at compile time."""
    i, j = axis(f"{name}.i", size), axis(f"{name}.j", size)
    same = (i.var - j.var, j.var - i.var)
    return Stage(name, (i, j), Select(same, Const(1.0), Const(0.0)), dtype=dtype)


def lanes_a_cycle(workload: Workload, target: Target) -> int:
    """Lanes of a moving vector that MXM takes in a cycle, where vectors are whole such parts."""
    lanes = target.integer("mxm.k_float16") if workload.dtype == "float16" else LANES
    return lanes if LANES % lanes == 0 else LANES


def picking_stage(
    workload: Workload,
    name: str,
    axes: tuple[Axis, ...],
    picked: Axis,
    source: Callable[[Expr], Scalar],
    mirror: Stage,
    width: int,
) -> Stage:
    """The product with the identity that picks lane `picked` of a source: exact, since one term is
    not 0. Only the `width` lanes are added up that the one stands among, so that no more cycles are
    spent on a vector than these take.

    `source` is the matrix at a lane; `mirror` made by `identity`; the summed axis is `NAME.jj`.
    """
    first = picked.var // width * width
    jj = axis(f"{name}.jj", minimum(width, as_expr(picked.extent) - first))
    one = load(mirror.name, picked.var % LANES, first % LANES + jj.var)
    return product_stage(workload, name, axes, one, source(first + jj.var), (jj,))


def turned(
    compute: ComputeDefinition, name: str, reader: str, workload: Workload, width: int = LANES
) -> ComputeDefinition:
    """A matrix turned before its reader: `NAME.turned[.., j, k] = NAME[.., k, j]`, of constants at
    once, else as a product with `NAME.identity` (see the module's docstring), `width` lanes of a
    vector at once."""
    tensor = next(t for t in compute.inputs if t.name == name)
    *lead, rows, columns = tensor.extents
    batch = tuple(axis(f"{name}.b{n}", extent) for n, extent in enumerate(lead))
    j, k = axis(f"{name}.j", columns), axis(f"{name}.k", rows)
    over = tuple(b.var for b in batch)
    result, axes = f"{name}.turned", (*batch, j, k)
    if compute.is_constant(name):
        turning = [Stage(result, axes, Load(name, (*over, k.var, j.var)), dtype=tensor.dtype)]
    else:
        size = as_expr(columns).constant or LANES
        mirror = identity(f"{name}.identity", tensor.dtype, min(size, LANES))
        products = picking_stage(
            workload, result, axes, j, lambda lane: load(name, *over, k.var, lane), mirror, width
        )
        turning = [mirror, replace(products, dtype=tensor.dtype)]

    def access(load: Load) -> Scalar:
        if load.buffer != name:
            return load
        return Load(result, (*load.indices[:-2], load.indices[-1], load.indices[-2]))

    stages = []
    for stage in compute.stages:
        if stage.name == reader:
            stages += turning
            stage = replace(stage, value=rewrite(stage.value, lambda index: index, access))
        stages.append(stage)
    return replace(compute, stages=tuple(stages))


def with_turned(schedule: Schedule, name: str, width: int = LANES) -> Schedule:
    """How a matrix that `turned` made is made."""
    result = f"{name}.turned"
    if schedule.compute.is_constant(result):
        return schedule
    schedule = schedule.split(result, f"{name}.j", width, f"{name}.jo", f"{name}.ji")
    schedule = schedule.split(result, f"{name}.k", LANES, f"{name}.ko", f"{name}.ki")
    batch = [a.name for a in schedule.compute.stage(result).axes[:-2]]
    order = ("jo", "ko", "ji", "ki")
    loops = (*(f"{name}.{loop}" for loop in order), f"{result}.jj")
    schedule = schedule.reorder(result, (*batch, *loops))
    return schedule.cache_write(result, "sums", f"{name}.ko")


def prepared(schedule: Schedule) -> Schedule:
    """All that is known at compile time, made then; but for parts of what is not."""
    for stage in schedule.compute.stages:
        if schedule.compute.is_constant(stage.name) and not stage.into:
            schedule = schedule.compile_time(stage.name)
    return schedule


def with_numbers(compute: ComputeDefinition, across: int = -1) -> ComputeDefinition:
    """Single numbers that rows are computed with, each over a row of its own, and zero points as
    whole numbers:

        y[i, j] = f(x[i, j], q[0])     -->  q.all[e, l] = q[e]
                                            y[i, j] = f(x[i, j], q.all[0, j % L])
        to_uint8(round(x) + q[1])      -->  q.zero[0, l] = to_int32(floor(q[1]))
                                            to_uint8(clip(to_int32(round(x)) + q.zero[0, j % L]))

    `across` is the axis of stages that lies across the lanes. The latter sum is cut towards zero,
    and to 0 below: for an unsigned byte any z gives the same.
    """
    broadcasts: dict[str, Stage] = {}
    stages = [_with_numbers(compute, stage, broadcasts, across) for stage in compute.stages]
    return replace(compute, stages=(*broadcasts.values(), *stages))


def _with_numbers(
    compute: ComputeDefinition, stage: Stage, added: dict[str, Stage], across: int
) -> Stage:
    vectors = {t.name: t for t in compute.inputs if len(t.extents) == 1}
    if not stage.axes or len(stage.axes) <= across:
        return stage
    lane, lanes = stage.axes[across].var % LANES, axis("all.l", LANES)
    value = stage.value
    match value:
        case Call("to_uint8", (Call("add", (Call("round") as rounded, Load() as z)),)) if (
            z.buffer in vectors
        ):
            name, one = f"{z.buffer}.zero", axis("all.e", 1)
            whole = call("to_int32", call("floor", z))
            added[name] = Stage(name, (one, lanes), whole, dtype="int32")
            total = call("add", call("to_int32", rounded), Load(name, (const(0), lane)))
            value = call("to_uint8", call("minimum", call("maximum", total, 0.0), 255.0))

    def access(load: Load) -> Scalar:
        single = len(load.indices) == 1 and load.indices[0].constant is not None
        if not single or load.buffer not in vectors:
            return load
        name, tensor = f"{load.buffer}.all", vectors[load.buffer]
        e = axis("all.e", tensor.extents[0])
        added[name] = Stage(name, (e, lanes), Load(tensor.name, (e.var,)), dtype=tensor.dtype)
        return Load(name, (load.indices[0], lane))

    return replace(stage, value=rewrite(value, lambda index: index, access))
