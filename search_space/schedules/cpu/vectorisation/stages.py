"""What an operator computes, in the element types that CPU schedules compute it in.

Elements of narrow floating types are read as float32; only what is stored at the end is rounded
(`dtypes.is_narrow`):

    c[i, j]: float32 = sum_k a[i, k] * b[k, j]          a, b of bfloat16
    out[i, j]: bfloat16 = c[i, j]                       `summed_of`

Copies of operands made for their layout keep the operands' type, other intermediate tensors are
float32.
"""

from dataclasses import replace

from tilesmith.search_space.expressions.dtypes import is_narrow, widened
from tilesmith.search_space.expressions.scalar import Load, functions
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage
from tilesmith.search_space.workloads import template
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

RESULT = "out"
"""The stage behind a sum: an epilogue, or the rounding of a narrow result."""


def compute_of(workload: Workload) -> ComputeDefinition:
    """What a workload computes, its output of the type that the template says.

    A last stage that reduces keeps its sums in an accumulator tile: no schedule may cut it.
    """
    return stored(template.compute_of(workload), workload)


def summed_of(workload: Workload) -> ComputeDefinition:
    """The same; a narrow result of a sum is rounded by a stage `RESULT`, as an epilogue is, so that
    a sum may be cut and goes on from what is in memory."""
    return with_result(template.compute_of(workload), workload)


def stored(compute: ComputeDefinition, workload: Workload) -> ComputeDefinition:
    """Stages of a workload, intermediate ones computed in float32, the last one stored as the
    workload's output is."""
    dtype = template_of(workload.operator).output(workload).dtype
    if not is_narrow(dtype) and not any(is_narrow(stage.dtype) for stage in compute.stages):
        return compute
    *before, last = compute.stages
    if is_narrow(dtype):
        last = replace(last, dtype=dtype)
    return replace(compute, stages=(*map(_wide, before), last))


def with_result(compute: ComputeDefinition, workload: Workload) -> ComputeDefinition:
    """`stored`, a narrow sum with a stage of its own for the result."""
    last = compute.output
    dtype = template_of(workload.operator).output(workload).dtype
    if is_narrow(dtype) and last.reducer is not None:
        value = Load(last.name, tuple(axis.var for axis in last.axes))
        compute = replace(compute, stages=(*compute.stages, Stage(RESULT, last.axes, value)))
    return stored(compute, workload)


def has_result(compute: ComputeDefinition) -> bool:
    """Whether something is done to a sum on its way out."""
    return compute.output.name == RESULT


def _wide(stage: Stage) -> Stage:
    """A stage that computes something does so in float32; one that only moves elements, or writes a
    part of the output's tensor, writes elements as they are."""
    moves = stage.reducer is None and not functions(stage.value)
    return stage if stage.into or moves else replace(stage, dtype=widened(stage.dtype))
