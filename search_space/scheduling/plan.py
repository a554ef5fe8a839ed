"""`Plan`: what a schedule's primitives say, sorted by stage, and the nests made from it.

It exists so that the steps of lowering need not read the primitives again: nests are added to it,
emission reads it. Invariant: every stage and tensor it names exists.

The primitives cache_read, cache_result, inline and rfactor change the graph of stages. They run
before any loop exists; each takes a compute definition and returns another that computes the same
output. (Primitives that only arrange loops are in `nest.py`.)
"""

from dataclasses import dataclass, field, replace

from tilesmith.search_space.expressions.dtypes import widened
from tilesmith.search_space.expressions.expression import ceildiv, var
from tilesmith.search_space.expressions.scalar import REDUCERS, Const, Load, Scalar, Select, rewrite
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.nest import Nest
from tilesmith.search_space.scheduling.schedule import (
    AssignEngine,
    CacheRead,
    CacheResult,
    CacheWrite,
    CompileTime,
    ComputeAt,
    Inline,
    Primitive,
    ReverseComputeAt,
    Rfactor,
    Rotate,
    Schedule,
    SetLayout,
    SetScope,
    StagePrimitive,
)
from tilesmith.search_space.support.errors import ScheduleError


@dataclass
class Plan:
    """What the primitives say, sorted by stage, and the nests made from it.

    Attributes:
        compute_at: producer -> where it is attached.
        kept: producer -> the nest of all that its tensor keeps, where that is more than it makes.
        reverse_at: epilogue stage -> where it is attached.
        cache_write: stage -> its accumulator tile.
        scopes: memory scope of a stage's tensor (where a primitive names one).
        homes: memory scope of a tensor outside the loops (parameters, root stages).
    """

    compute: ComputeDefinition
    nests: dict[str, Nest] = field(default_factory=dict)
    kept: dict[str, Nest] = field(default_factory=dict)
    compute_at: dict[str, ComputeAt] = field(default_factory=dict)
    reverse_at: dict[str, ReverseComputeAt] = field(default_factory=dict)
    cache_write: dict[str, CacheWrite] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    scopes: dict[str, str] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    engines: dict[str, str] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    compile_time: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, schedule: Schedule) -> "Plan":
        plan = cls(rewrite_stages(schedule.compute, schedule.primitives))
        for primitive in schedule.primitives:
            match primitive:
                case ComputeAt(stage, scope=scope):
                    plan.compute_at[stage] = primitive
                    plan.scopes[stage] = scope
                case ReverseComputeAt(stage, _, _, scope):
                    plan.reverse_at[stage] = primitive
                    plan.scopes[stage] = scope
                case CacheWrite(stage):
                    plan.cache_write[stage] = primitive
                case CacheRead(_, _, name, scope, _):
                    plan.scopes.setdefault(name, scope)
                case SetLayout(tensor, layout):
                    plan.layouts[tensor] = layout
                case SetScope(tensor, scope):
                    plan.homes[tensor] = scope
                case Rotate(stage, places):
                    plan.places[stage] = places
                case AssignEngine(stage, engine):
                    plan.engines[stage] = engine
                case CompileTime(stage):
                    plan.compile_time.add(stage)
                case _:
                    pass
        for primitive in schedule.primitives:
            plan.check_stage(primitive)
        plan.check()
        return plan

    def check_stage(self, primitive: Primitive) -> None:
        """Raise `ScheduleError` for a stage that does not exist (an inlined one is gone)."""
        order = [stage.name for stage in self.compute.stages]
        if not isinstance(primitive, StagePrimitive) or isinstance(primitive, Inline):
            return
        named = [primitive.stage]
        if isinstance(primitive, ComputeAt):
            named.append(primitive.consumer)
        elif isinstance(primitive, ReverseComputeAt):
            named.append(primitive.producer)
        for name in named:
            if name not in order:
                known = ", ".join(order)
                raise ScheduleError(f"'{self.compute.name}' has no stage '{name}'; it has {known}")

    def check(self) -> None:
        """Raise `ScheduleError` for a tensor that does not exist, or cannot be made beforehand."""
        tensors = {stage.name for stage in self.compute.stages}
        tensors |= {tensor.name for tensor in self.compute.inputs}
        for name in (*self.layouts, *self.homes):
            if name not in tensors:
                raise ScheduleError(f"'{self.compute.name}' has no tensor '{name}' to place")
        for name in self.compile_time:
            if not self.compute.is_constant(name):
                raise ScheduleError(f"stage '{name}' depends on inputs that are not constant")

    def host(self, name: str) -> tuple[str, str] | None:
        """(stage, loop) that a stage is attached to, or None at the root."""
        if name in self.compute_at:
            return self.compute_at[name].consumer, self.compute_at[name].loop
        if name in self.reverse_at:
            return self.reverse_at[name].producer, self.reverse_at[name].loop
        return None

    def lives(self, name: str) -> tuple[str, str] | None:
        """(stage, loop) that what an attached stage makes is read in."""
        attached = self.compute_at.get(name)
        return (attached.kept or self.host(name)) if attached else None

    def owner(self, name: str) -> Nest:
        """The nest whose regions a stage's tensor has."""
        return self.kept.get(name) or self.nests[name]

    def is_inside(self, name: str, host: str) -> bool:
        """Whether a stage is another, or attached somewhere in it."""
        outer = self.host(name)
        return name == host or (outer is not None and self.is_inside(outer[0], host))

    def enclosing(self, name: str, host: tuple[str, str] | None) -> list[str]:
        """Variables of the loops around a stage attached at `host`: those fixed where it is
        computed."""
        if host is None:
            return []
        stage, loop = host
        if stage not in self.nests:
            raise ScheduleError(f"stage '{name}' is attached to '{stage}', which does not read it")
        nest = self.nests[stage]
        own = [item.variable for item in nest.loops[: nest.position(loop) + 1]]
        return [*self.enclosing(stage, self.host(stage)), *own]


def rewrite_stages(
    compute: ComputeDefinition, primitives: tuple[Primitive, ...]
) -> ComputeDefinition:
    """Apply every stage-level primitive in order; others are left to the loop nests."""
    for primitive in primitives:
        match primitive:
            case CacheRead():
                compute = cache_read(compute, primitive)
            case CacheResult():
                compute = cache_result(compute, primitive)
            case Inline():
                compute = inline(compute, primitive)
            case Rfactor():
                compute = rfactor(compute, primitive)
    return compute


def _find(compute: ComputeDefinition, name: str) -> Stage:
    for stage in compute.stages:
        if stage.name == name:
            return stage
    known = ", ".join(stage.name for stage in compute.stages)
    raise ScheduleError(f"'{compute.name}' has no stage '{name}'; it has {known}")


def _replace_stage(compute: ComputeDefinition, name: str, *stages: Stage) -> ComputeDefinition:
    rewritten: list[Stage] = []
    for stage in compute.stages:
        rewritten.extend(stages if stage.name == name else (stage,))
    return replace(compute, stages=tuple(rewritten))


def _redirect(value: Scalar, tensor: str, name: str) -> Scalar:
    def access(load: Load) -> Scalar:
        return Load(name, load.indices) if load.buffer == tensor else load

    return rewrite(value, lambda index: index, access)


def cache_read(compute: ComputeDefinition, primitive: CacheRead) -> ComputeDefinition:
    """Insert a copy of `tensor` before `reader` and let `reader` read the copy.

    c[i] = f(a[i])  -->  copy[i] = a[i]; c[i] = f(copy[i])
    """
    reader = _find(compute, primitive.reader)
    if primitive.tensor not in reader.reads:
        raise ScheduleError(f"stage '{reader.name}' does not read '{primitive.tensor}'")
    shape = compute.tensor_shape(primitive.tensor)
    axes = tuple(Axis(f"{primitive.name}.{d}", extent) for d, extent in enumerate(shape))
    element = Load(primitive.tensor, tuple(a.var for a in axes))
    dtype = primitive.dtype or compute.dtype(primitive.tensor)
    copy = Stage(primitive.name, axes, element, dtype=dtype)
    changed = replace(reader, value=_redirect(reader.value, primitive.tensor, primitive.name))
    return _replace_stage(compute, reader.name, copy, changed)


def cache_result(compute: ComputeDefinition, primitive: CacheResult) -> ComputeDefinition:
    """Compute a stage under another name and copy it into its tensor.

    c[i] = sum_k f(i, k)  -->  name[i] = sum_k f(i, k); c[i] = name[i]
    """
    stage = _find(compute, primitive.stage)
    if stage.store is not None or stage.guard:
        raise ScheduleError(f"stage '{stage.name}' does not write all of its tensor point by point")
    element = Load(primitive.name, tuple(a.var for a in stage.axes))
    copy = Stage(stage.name, stage.axes, element, dtype=stage.dtype)
    return _replace_stage(compute, stage.name, replace(stage, name=primitive.name), copy)


def inline(compute: ComputeDefinition, primitive: Inline) -> ComputeDefinition:
    """Put a stage's value where it is read.

    p[i] = f(i); c[j] = g(p[j+1])  -->  c[j] = g(f(j+1))
    """
    stage = _find(compute, primitive.stage)
    if stage.reducer is not None or stage.store is not None or stage is compute.output:
        raise ScheduleError(
            f"stage '{stage.name}' is a reduction or the output: it cannot be inlined"
        )

    def access(load: Load) -> Scalar:
        if load.buffer != stage.name:
            return load
        values = {a.name: index for a, index in zip(stage.axes, load.indices, strict=True)}
        return rewrite(stage.value, lambda index: index.substitute(values))

    stages = tuple(
        replace(s, value=rewrite(s.value, lambda index: index, access))
        if stage.name in s.reads
        else s
        for s in compute.stages
        if s is not stage
    )
    return replace(compute, stages=stages)


def rfactor(compute: ComputeDefinition, primitive: Rfactor) -> ComputeDefinition:
    """Turn part of a reduction into a spatial axis, so that it can be vectorised or unrolled.

    s[i] = sum_k x(i, k)  -->  r[i, v] = sum_o x(i, o*f + v); s[i] = sum_v r[i, v]
    """
    stage = _find(compute, primitive.stage)
    axes = {a.name: a for a in stage.reduce_axes}
    if primitive.axis not in axes or stage.reducer is None:
        raise ScheduleError(f"stage '{stage.name}' does not reduce over '{primitive.axis}'")
    split = axes[primitive.axis]
    inner = Axis(f"{split.name}.lane", primitive.factor)
    outer = Axis(f"{split.name}.step", ceildiv(split.extent, primitive.factor))
    index = outer.var * primitive.factor + inner.var
    value = rewrite(stage.value, lambda e: e.substitute({split.name: index}))
    if split.extent.constant is None or (split.extent % primitive.factor).constant != 0:
        identity = Const(REDUCERS[stage.reducer])
        value = Select((split.extent - 1 - index,), value, identity)
    partial = replace(
        stage,
        name=primitive.name,
        axes=(*stage.axes, inner),
        reduce_axes=tuple(outer if a is split else a for a in stage.reduce_axes),
        value=value,
        dtype=widened(stage.dtype),
    )
    total = replace(
        stage,
        value=Load(primitive.name, (*(a.var for a in stage.axes), var(inner.name))),
        reduce_axes=(inner,),
    )
    return _replace_stage(compute, stage.name, partial, total)
