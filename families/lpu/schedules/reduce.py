"""Reductions on LPU-like machines: over rows by VXM, along the lanes by rotations.

Where the last axis is kept it lies across the lanes, and rows are combined in pairs. Where it is
reduced, rotations bring the result of a row to all of its lanes, and the result is a row of one
lane: what is one number a row stays beside the row it is of.

    total[r, l] = reduce over k of x[r, k]      on every lane l
    y[r, 0] = total[r, 0]
"""

from dataclasses import replace
from math import prod

from tilesmith.families.lpu.schedules.building_blocks.common import result_stage, with_numbers
from tilesmith.families.lpu.schedules.rows import (
    MOST_ROWS,
    RowsOnLpu,
    VectorRowsSpace,
    on_all_lanes,
)
from tilesmith.families.lpu.schedules.windows import with_summands
from tilesmith.search_space.expressions.dtypes import is_floating
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import ComputeDefinition, axis
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.template import compute_of
from tilesmith.search_space.workloads.workload import Workload


@schedules("reduce", on="lpu")
class ReduceOnLpu(RowsOnLpu):
    """See the module's docstring."""

    def refusal(self, workload: Workload, target: Target) -> str | None:
        adds = workload.text("kind") in ("sum", "mean")
        if adds and not (is_floating(workload.dtype) or workload.dtype == "int32"):
            return (
                f"operator 'reduce' adds up floating values and int32 on target '{target.name}', "
                f"not {workload.dtype}"
            )
        if _rows(workload) > MOST_ROWS:
            return (
                f"operator 'reduce' combines at most {MOST_ROWS} rows on target '{target.name}', "
                f"not {_rows(workload)}"
            )
        return super().refusal(workload, target)

    def prepare(self, workload: Workload, target: Target) -> VectorRowsSpace:
        compute = with_summands(result_stage(compute_of(workload), workload))
        total, x = compute.stages[0], compute.inputs[0]
        across = len(x.extents) - 1
        if total.reduce_axes and any(a.name == f"d{across}" for a in total.reduce_axes):
            compute = _with_a_lane(compute)
        return VectorRowsSpace(on_all_lanes(with_numbers(compute)))


def _rows(workload: Workload) -> int:
    """Rows that are combined for each of the result's."""
    shape = workload.shape("shape")
    over = workload.shape("axes") or tuple(range(len(shape)))
    return prod(shape[a] for a in over if a != len(shape) - 1)


def _with_a_lane(compute: ComputeDefinition) -> ComputeDefinition:
    """The result as rows of one lane."""
    *before, last = compute.stages
    lane = axis("lane", 1)
    store = (*last.indices, lane.var)
    shape = (*last.tensor_shape, lane.extent)
    return replace(
        compute,
        stages=(*before, replace(last, axes=(*last.axes, lane), store=store, shape=shape)),
    )
