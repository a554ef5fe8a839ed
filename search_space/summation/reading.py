"""The order of summation, read off a schedule.

The schedule's primitives are replayed, so no scheduler lists which of its knobs matter, and a new
one is covered at once. Stages that only move elements or end in something else than a product are
put where they are read: storing them rounds nothing, and no multiply-add can come of them.
"""

from collections.abc import Mapping

from tilesmith.search_space.expressions.dtypes import is_floating, is_narrow
from tilesmith.search_space.expressions.scalar import Call, Load, Scalar, is_product, rewrite
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage
from tilesmith.search_space.scheduling.nest import Nest
from tilesmith.search_space.scheduling.plan import rewrite_stages
from tilesmith.search_space.scheduling.schedule import Schedule, StagePrimitive
from tilesmith.search_space.summation.order import ReduceLoop, Sum, Summation


def summation_of(schedule: Schedule) -> Summation:
    """The order of summation of a schedule.

    Raises:
        ScheduleError: a primitive does not fit the stage or loop it names.
    """
    compute = rewrite_stages(schedule.compute, schedule.primitives)
    placed: dict[str, Stage] = {}
    sums = []
    for stage in compute.stages:
        value = _resolved(stage.value, placed)
        if stage is not compute.output and _is_moved(stage):
            placed[stage.name] = Stage(stage.name, stage.axes, value)
            continue
        once = is_product(stage.value)
        if stage.reducer not in ("sum", "product") or not _is_rounded(compute, stage):
            sums.append(Sum(f"{stage.name} {stage.reducer or ''}", value, False))
            continue
        extents = tuple((axis.name, axis.extent) for axis in stage.reduce_axes)
        loops = _loops(stage, schedule)
        sums.append(Sum(f"{stage.name} {stage.reducer}", value, once, extents, loops))
    return Summation(tuple(sums))


def _is_rounded(compute: ComputeDefinition, stage: Stage) -> bool:
    """Whether a stage's sums are rounded."""
    return is_floating(compute.dtype(compute.home(stage.name)))


def _is_moved(stage: Stage) -> bool:
    """Whether a stage may stand where it is read: see the module's docstring."""
    if stage.reducer is not None or stage.store is not None or stage.guard or stage.into:
        return False
    narrowed = isinstance(stage.value, Call) and is_narrow(stage.dtype)
    return not is_product(stage.value) and not narrowed


def _resolved(value: Scalar, placed: Mapping[str, Stage]) -> Scalar:
    """A value that reads no stage which may stand in it."""

    def access(load: Load) -> Scalar:
        stage = placed.get(load.buffer)
        if stage is None:
            return load
        values = {a.name: index for a, index in zip(stage.axes, load.indices, strict=True)}
        return rewrite(stage.value, lambda index: index.substitute(values))

    return rewrite(value, lambda index: index, access)


def _loops(stage: Stage, schedule: Schedule) -> tuple[ReduceLoop, ...]:
    """The loops over a stage's terms, outermost first."""
    nest = Nest.of(stage, {}, set())
    for primitive in schedule.primitives:
        if isinstance(primitive, StagePrimitive) and primitive.stage == stage.name:
            nest.apply(primitive)
    loops, how = [], ""
    for loop in nest.loops:
        how = f"@{loop.intrinsic}" if loop.intrinsic else how
        if not loop.reduce:
            continue
        lanes = "@lanes" if loop.kind == "vector" else ""
        for axis in stage.reduce_axes:
            step = nest.axis_values[axis.name].coefficient(loop.variable)
            if step is not None and step.terms:
                loops.append(ReduceLoop(axis.name, step, loop.limit, how or lanes))
    return tuple(loops)


def adds(compute: ComputeDefinition) -> bool:
    """Whether a computation has sums or products that are rounded, so that their order matters."""
    return any(
        stage.reducer in ("sum", "product") and _is_rounded(compute, stage)
        for stage in compute.stages
    )
