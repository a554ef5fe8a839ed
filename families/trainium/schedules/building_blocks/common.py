"""What schedules for Trainium-like cores share: the way out to HBM, and layouts over partitions.

Limits are the target's: array rows and columns, a PSUM bank, bytes of SBUF a partition.
"""

from dataclasses import replace
from typing import ClassVar

from tilesmith.families.trainium.schedules.building_blocks.machine import DTYPES
from tilesmith.search_space.expressions.dtypes import is_floating
from tilesmith.search_space.expressions.expression import ExprLike, as_expr, ceildiv, minimum
from tilesmith.search_space.expressions.scalar import Load, rewrite
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage, axis
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension
from tilesmith.search_space.workloads.scheduler import PreparingScheduler
from tilesmith.search_space.workloads.workload import Workload

PARTITIONS_APART = 32
"""Engines read and write partitions from multiples of this on: 128 from 0, 64 from 64, 32 from 32
and 96."""


class CoreScheduler(PreparingScheduler):
    """A scheduler for Trainium-like cores, which have instructions for some dtypes."""

    dtypes: ClassVar[tuple[str, ...]] = DTYPES

    def refusal(self, workload: Workload, target: Target) -> str | None:
        quantising = [str(step) for step in workload.epilogue if step.kind.takes]
        if quantising:
            return (
                f"operator '{workload.operator}' has no instructions for the epilogue step "
                f"'{quantising[0]}' on target '{target.name}'"
            )
        if workload.dtype in self.dtypes:
            return None
        return (
            f"operator '{workload.operator}' has no instructions for dtype '{workload.dtype}' on "
            f"target '{target.name}'; one of {', '.join(self.dtypes)} is expected"
        )


def with_store(compute: ComputeDefinition, dtype: str) -> ComputeDefinition:
    """The same computation ending in a copy to HBM: `row` (in SBUF), then `result`."""
    *before, last = compute.stages
    axes = last.axes
    indices = tuple(axis.var for axis in axes)
    if last.reducer is not None:
        before.append(last)
        last = Stage("row", axes, Load(last.name, indices), dtype=dtype)
    else:
        last = Stage("row", last.axes, last.value, dtype=dtype)
    result = Stage("result", axes, Load("row", indices), dtype=dtype)
    return ComputeDefinition(compute.name, compute.inputs, (*before, last, result))


def partitioned(rank: int, axis: int, rows: int, *others: int) -> Layout:
    """[axis % rows, axis // rows, others...]: an axis on partitions, its excess beside it."""
    factor = as_expr(rows)
    dimensions = (
        LayoutDimension(axis, "inner", factor),
        LayoutDimension(axis, "outer", factor),
        *(LayoutDimension(other) for other in others),
    )
    assert len(dimensions) == rank + 1
    return Layout(dimensions)


def in_parts(
    compute: ComputeDefinition, name: str, reduced: str, size: ExprLike
) -> ComputeDefinition:
    """A computation with one sum in parts, as `parted`."""
    whole = compute.stage(name)
    (k,) = (a for a in whole.reduce_axes if a.name == reduced)
    pair = parted(whole, k, size)
    stages = tuple(new for old in compute.stages for new in (pair if old is whole else (old,)))
    return replace(compute, stages=stages)


def parted(
    whole: Stage, k: Axis, size: ExprLike, name: str = "part", loop: str = "g"
) -> tuple[Stage, Stage]:
    """A sum as that of parts (over a new axis `loop`, the first), each over `size` elements of one
    axis of the reduction, the last over what is left of it; not rounded before they are added up.

        s[i] = sum_k x(i, k)  -->  part[g, i] = sum_ki x(i, g*size + ki);  s[i] = sum_g part[g, i]
    """
    g = axis(loop, ceildiv(k.extent, size))
    ki = axis(f"{k.name}i", minimum(size, k.extent - g.var * size))
    index = {k.name: g.var * size + ki.var}
    part = replace(
        whole,
        name=name,
        axes=(g, *whole.axes),
        dtype="float32" if is_floating(whole.dtype) else whole.dtype,
        reduce_axes=tuple(ki if a is k else a for a in whole.reduce_axes),
        value=rewrite(whole.value, lambda e: e.substitute(index)),
    )
    element = Load(name, (g.var, *(a.var for a in whole.axes)))
    return part, replace(whole, value=element, reduce_axes=(g,))
