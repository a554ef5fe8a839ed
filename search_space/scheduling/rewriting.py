"""Primitives that change the graph of stages: cache_read, cache_result, inline, rfactor.

They run before any loop exists; each takes a compute definition and returns another that computes
the same output. (Primitives that only arrange loops are in `nest.py`.)
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.search_space.expressions.dtypes import widened
from tilesmith.search_space.expressions.expression import ceildiv, var
from tilesmith.search_space.expressions.scalar import REDUCERS, Const, Load, Scalar, Select, rewrite
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage
from tilesmith.search_space.scheduling.schedule import (
    CacheRead,
    CacheResult,
    Inline,
    Primitive,
    Rfactor,
)
from tilesmith.search_space.support.errors import ScheduleError


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
