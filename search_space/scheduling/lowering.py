"""Lowering: a schedule becomes a `Program`.

Three steps, each in one pass over the stages:

1. the *plan*: primitives that change the graph of stages, the others sorted by stage;
2. *nests*, consumers before producers: each stage gets its loops; a stage attached to a
   consumer's loop covers just the region which that iteration reads;
3. *emission*, producers before consumers: loops, allocations, initialisation, update, write-back.

A structure is lowered once: factors may be symbols, `Program.bind` gives them numbers later.
"""

from collections.abc import Iterable
from dataclasses import replace

from tilesmith.search_space.expressions import ranges
from tilesmith.search_space.expressions.expression import ONE, ZERO, Expr, maximum, minimum, var
from tilesmith.search_space.expressions.scalar import Load, loads
from tilesmith.search_space.ir.program import Program
from tilesmith.search_space.scheduling.compute import Stage
from tilesmith.search_space.scheduling.emission import Emitter
from tilesmith.search_space.scheduling.nest import Nest
from tilesmith.search_space.scheduling.plan import Plan
from tilesmith.search_space.scheduling.schedule import Schedule, StagePrimitive
from tilesmith.search_space.support.errors import ScheduleError


def lower(schedule: Schedule) -> Program:
    """Lower a schedule.

    Raises:
        ScheduleError: a primitive does not fit the stage or loop it names.
    """
    plan = Plan.of(schedule)
    taken: set[str] = set()
    for stage in reversed(plan.compute.stages):
        _make_nest(plan, stage, schedule, taken)
    for name in plan.reverse_at:
        _mirror(plan, name, schedule)
    return Emitter(plan).program()


def _make_nest(plan: Plan, stage: Stage, schedule: Schedule, taken: set[str]) -> None:
    """Loops of one stage, its region cut to what the consumers at its place read.

    An epilogue follows its producer, so that what is attached for its sake knows its loops.
    """
    if stage.name in plan.nests:
        return
    regions = {}
    if stage.name in plan.compute_at:
        place, kept = plan.host(stage.name), plan.lives(stage.name)
        assert place is not None and kept is not None
        regions = _region(plan, stage, place)
        if kept != place:
            plan.kept[stage.name] = Nest.of(stage, _region(plan, stage, kept), set(taken))
    attached = plan.reverse_at.get(stage.name)
    if attached is not None and attached.producer not in plan.compute_at:
        _make_nest(plan, plan.compute.stage(attached.producer), schedule, taken)
    nest = Nest.of(stage, regions, taken)
    plan.nests[stage.name] = nest
    if attached is not None:
        if attached.producer in plan.nests:
            _mirror(plan, stage.name, schedule)
        return
    for primitive in schedule.primitives:
        if isinstance(primitive, StagePrimitive) and primitive.stage == stage.name:
            nest.apply(primitive)


def _consumers(plan: Plan, name: str) -> Iterable[Stage]:
    return (stage for stage in plan.compute.stages if name in stage.reads)


def _region(plan: Plan, stage: Stage, host: tuple[str, str]) -> dict[str, tuple[Expr, Expr, Expr]]:
    """(base, extent, limit) of each axis of an attached stage: the box that its consumers inside a
    loop read there."""
    fixed = set(plan.enclosing(stage.name, host))
    bases: list[Expr] | None = None
    tops: list[Expr] = []
    ends: list[set[Expr]] = [set() for _ in stage.axes]
    everywhere = plan.lives(stage.name) == host
    for consumer in _consumers(plan, stage.name):
        if not everywhere and not plan.is_inside(consumer.name, host[0]):
            continue
        values, own = plan.nests[consumer.name].spans(fixed)
        around = _all_bounds(plan, consumer.name)
        moving = {**{v: top for v, top in around.items() if v not in fixed}, **own}
        own_ends = {var(name): end for name, end in plan.nests[consumer.name].ends.items()}
        accesses = [access for access in loads(consumer.value) if access.buffer == stage.name]
        if consumer.onto == stage.name:
            accesses.append(Load(stage.name, tuple(axis.var for axis in consumer.axes)))
        for load in accesses:
            indices = [index.substitute(values) for index in load.indices]
            for known, index, axis in zip(ends, load.indices, stage.axes, strict=True):
                end = own_ends.get(index, axis.extent)
                known.add(axis.extent if moving.keys() & end.variables() else end)
            low = [ranges.lower(index, moving) for index in indices]
            high = [ranges.upper(index, moving) for index in indices]
            if bases is None:
                bases, tops = low, high
            else:
                bases = [minimum(a, b) for a, b in zip(bases, low, strict=True)]
                tops = [maximum(a, b) for a, b in zip(tops, high, strict=True)]
    if bases is None:
        raise ScheduleError(f"stage '{stage.name}' is attached but nobody reads it")
    regions = {}
    bounds = _all_bounds(plan, host[0])
    for axis, base, top, known in zip(stage.axes, bases, tops, ends, strict=True):
        end = next(iter(known)) if len(known) == 1 else axis.extent
        limit = top - base + 1
        base = _inside(base, bounds)
        whole = base == ZERO and (limit - axis.extent).constant is not None
        if whole and ((limit - axis.extent).constant or 0) >= 0:
            regions[axis.name] = (ZERO, axis.extent, axis.extent)
        elif limit == ONE or (base == ZERO and limit.constant is not None):
            regions[axis.name] = (base, limit, limit)
        else:
            regions[axis.name] = (base, minimum(top - base + 1, end - base), limit)
    return regions


def _inside(base: Expr, bounds: dict[str, Expr]) -> Expr:
    """The first index of a region: a last, short tile that is read backwards would begin its whole
    tile below zero.

        y[j] = x[130 - 3*j] in tiles of 32, x of 131:  x from 37 - 96*t, in the last from 0
    """
    return base if ranges.nonnegative(ranges.lower(base, bounds)) else maximum(base, ZERO)


def _all_bounds(plan: Plan, name: str) -> dict[str, Expr]:
    """Bounds of a stage's own loop variables and of those around it."""
    bounds = plan.nests[name].bounds()
    host = plan.host(name)
    return {**_all_bounds(plan, host[0]), **bounds} if host else bounds


def _mirror(plan: Plan, name: str, schedule: Schedule) -> None:
    """Give an epilogue its producer's tile loops: the spatial loops inside the attachment.

    Its axes take the values of the producer's axes, which it must read one to one. Primitives on an
    epilogue speak of these loops.
    """
    attached = plan.reverse_at[name]
    producer, nest = plan.nests[attached.producer], plan.nests[name]
    accesses = [load for load in loads(nest.stage.value) if load.buffer == attached.producer]
    identity = tuple(axis.var for axis in nest.stage.axes)
    if not accesses or any(load != Load(attached.producer, identity) for load in accesses):
        raise ScheduleError(f"stage '{name}' must read '{attached.producer}' point by point")
    source = producer
    while source.stage.name in plan.reverse_at:
        source = plan.nests[plan.reverse_at[source.stage.name].producer]
    inner = source.loops[source.position(attached.loop) + 1 :]
    nest.loops = [replace(loop, intrinsic="", initial="") for loop in inner if not loop.reduce]
    for primitive in schedule.primitives:
        if isinstance(primitive, StagePrimitive) and primitive.stage == name:
            nest.apply(primitive)
    for axis, ours in zip(source.stage.axes, nest.stage.axes, strict=True):
        nest.axis_values[ours.name] = source.axis_values[axis.name]
