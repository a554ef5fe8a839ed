"""What schedules for Trainium-like cores share: the way out to HBM, and layouts over partitions.

Limits are the target's: array rows and columns, a PSUM bank, bytes of SBUF a partition.
"""

from __future__ import annotations

from search_space.compute import ComputeDefinition, Stage
from search_space.expression import as_expr
from search_space.layout import Layout, LayoutDimension
from search_space.scalar import Load

FAMILY = "trainium"


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
