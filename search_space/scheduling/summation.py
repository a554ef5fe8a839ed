"""The order in which a schedule adds the terms of its sums, and the schedules that keep one order.

Floating-point sums depend on their order in their last bits. Schedules of one computation whose
orders are equal compute the same bits on one instruction set, whatever their tiles, layouts, loops
over outputs and threads are. The order is read off the schedule itself, so that no scheduler lists
which of its knobs matter:

    c = sum over k, in blocks of 64 and unrolled by 4         k:1
    conv = sum over c, r, s, channels in blocks of 16         c:16 r:1 s:1 c:1
    s.wide = sum over k, 32 partial sums (`rfactor`)          k.step:1 of x[k.step*32 + k.lane]

A letter stands for the loops over an axis that follow each other, the number for the step of the
innermost of them. Loops that step through an axis one in another are one (an accumulator tile goes
on from what the iteration before left in memory, see `emission`). What is in an order besides: the
term that is added, whether product and sum are rounded once, loops over lanes, instructions that
add several terms, and what is done to a sum afterwards. Whole numbers wrap around and extremes
choose: these reductions have no order.

Invariant: unequal orders may give equal bits, equal orders give equal bits. Stages that only move
elements or end in something else than a product are put where they are read: storing them rounds
nothing, and no multiply-add can come of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tilesmith.search_space.expressions.dtypes import is_floating, is_narrow
from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import Call, Load, Scalar, expressions, rewrite
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage
from tilesmith.search_space.scheduling.nest import Nest
from tilesmith.search_space.scheduling.plan import rewrite_stages
from tilesmith.search_space.scheduling.schedule import Schedule, StagePrimitive

Numbers = Mapping[str, int]
"""Tile sizes by their symbols."""


@dataclass(frozen=True)
class _ReduceLoop:
    """One loop over terms: of its axis, the step, the most iterations, and how they are added."""

    axis: str
    step: Expr
    limit: Expr
    how: str


@dataclass(frozen=True)
class _Sum:
    """One stage: its term, and for a sum the loops over terms, outermost first."""

    stage: str
    value: Scalar
    once: bool
    extents: tuple[tuple[str, Expr], ...] = ()
    loops: tuple[_ReduceLoop, ...] = ()

    @cached_property
    def variables(self) -> frozenset[str]:
        """Symbols in it, loop variables and axes among them."""
        inside = [*expressions(self.value), *(extent for _, extent in self.extents)]
        inside += [e for loop in self.loops for e in (loop.step, loop.limit)]
        return frozenset().union(*(e.variables() for e in inside))

    def at(self, numbers: Numbers) -> "StageOrder":
        """The order at these tile sizes."""
        value = self.value
        if not self.variables.isdisjoint(numbers):
            value = rewrite(value, lambda index: index.substitute(numbers))
        extents = {axis: extent.substitute(numbers) for axis, extent in self.extents}
        steps: list[tuple[str, str, int]] = []
        for loop in self.loops:
            step, limit = (e.substitute(numbers).constant for e in (loop.step, loop.limit))
            extent = extents[loop.axis].constant
            if limit == 1 or (step is not None and extent is not None and step >= extent):
                continue
            assert step is not None, (self.stage, loop)
            inside = limit is not None and (loop.axis, loop.how, step * limit)
            if steps and steps[-1] == inside:
                steps.pop()
            steps.append((loop.axis, loop.how, step))
        return StageOrder(self.stage, value, self.once, tuple(extents.items()), tuple(steps))


@dataclass(frozen=True)
class StageOrder:
    """The order of one stage at given tile sizes; equal ones add equally.

    Attributes:
        value: the term, or what is done to sums.
        once: whether a product and its addition are rounded once.
        extents: of the axes that are summed over.
        steps: (axis, how, step) of loops, as the module's docstring has them.
    """

    stage: str
    value: Scalar
    once: bool
    extents: tuple[tuple[str, Expr], ...]
    steps: tuple[tuple[str, str, int], ...]

    def __str__(self) -> str:
        steps = " ".join(f"{axis}{how}:{step}" for axis, how, step in self.steps)
        return f"{self.stage} {steps} of {self.value}"


@dataclass(frozen=True)
class Summation:
    """The order of every sum of a schedule, tile sizes symbolic."""

    sums: tuple[_Sum, ...]

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names in it: symbols of tile sizes among others."""
        return frozenset().union(*(one.variables for one in self.sums))

    def at(self, numbers: Numbers) -> tuple[StageOrder, ...]:
        """The order at these tile sizes, stage by stage."""
        return tuple([one.at(numbers) for one in self.sums])


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
        once = isinstance(stage.value, Call) and stage.value.function == "multiply"
        if stage.reducer not in ("sum", "product") or not _is_rounded(compute, stage):
            sums.append(_Sum(f"{stage.name} {stage.reducer or ''}", value, False))
            continue
        extents = tuple((axis.name, axis.extent) for axis in stage.reduce_axes)
        loops = _loops(stage, schedule)
        sums.append(_Sum(f"{stage.name} {stage.reducer}", value, once, extents, loops))
    return Summation(tuple(sums))


def _is_rounded(compute: ComputeDefinition, stage: Stage) -> bool:
    """Whether a stage's sums are rounded."""
    return is_floating(compute.dtype(compute.home(stage.name)))


def _is_moved(stage: Stage) -> bool:
    """Whether a stage may stand where it is read: see the module's docstring."""
    if stage.reducer is not None or stage.store is not None or stage.guard or stage.into:
        return False
    product = isinstance(stage.value, Call) and stage.value.function == "multiply"
    computes = isinstance(stage.value, Call)
    return not product and not (computes and is_narrow(stage.dtype))


def _resolved(value: Scalar, placed: Mapping[str, Stage]) -> Scalar:
    """A value that reads no stage which may stand in it."""

    def access(load: Load) -> Scalar:
        stage = placed.get(load.buffer)
        if stage is None:
            return load
        values = {a.name: index for a, index in zip(stage.axes, load.indices, strict=True)}
        return rewrite(stage.value, lambda index: index.substitute(values))

    return rewrite(value, lambda index: index, access)


def _loops(stage: Stage, schedule: Schedule) -> tuple[_ReduceLoop, ...]:
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
                loops.append(_ReduceLoop(axis.name, step, loop.limit, how or lanes))
    return tuple(loops)


def adds(compute: ComputeDefinition) -> bool:
    """Whether a computation has sums or products that are rounded, so that their order matters."""
    return any(
        stage.reducer in ("sum", "product") and _is_rounded(compute, stage)
        for stage in compute.stages
    )
