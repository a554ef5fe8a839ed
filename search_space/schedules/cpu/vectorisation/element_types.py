"""Which element types CPU kernels compute in; any type of theirs is moved.

Transcendental functions and multiply-adds are written for float32, in which narrow floating types
are computed; the other arithmetic there is for float64 and whole numbers too. `CpuScheduler`
refuses what has no code in a sentence, so that an operator of a model goes to the host and a
command ends before it starts.
"""

from collections.abc import Iterator

from tilesmith.search_space.expressions.dtypes import is_floating, widened
from tilesmith.search_space.expressions.scalar import CONVERSIONS, FLAGS, functions, loads
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.formula_types import INTEGER_FUNCTIONS, WHOLE_ONLY
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage
from tilesmith.search_space.workloads.scheduler import Scheduler
from tilesmith.search_space.workloads.template import compute_of, template_of
from tilesmith.search_space.workloads.workload import Workload

_CONVERTING = FLAGS | CONVERSIONS.keys() | {"where", "ordinal"}
"""Functions whose operands and results may be of several types."""

_DOUBLE = (INTEGER_FUNCTIONS - WHOLE_ONLY) | _CONVERTING | {
    "sqrt", "reciprocal", "floor", "ceil", "round",
}  # fmt: skip
"""Functions that there is code for in float64."""

_WHOLE = INTEGER_FUNCTIONS | _CONVERTING


class CpuScheduler(Scheduler):
    """A scheduler on CPUs, for the element types that there is code for."""

    def refusal(self, workload: Workload, target: Target) -> str | None:
        index = str(dict(workload.parameters).get("index", ""))
        if is_floating(index):
            return (
                f"operator '{workload.operator}' has no code for index={index} on target "
                f"'{target.name}'; use index=int64"
            )
        template = template_of(workload.operator)
        operands = (*template.operands(workload), template.output(workload))
        if all(widened(operand.dtype) == "float32" for operand in operands):
            return None
        compute = compute_of(workload)
        for stage in compute.stages:
            for what in _uncomputed(compute, stage):
                return (
                    f"operator '{workload.operator}' has no code for {what} on target "
                    f"'{target.name}'; use dtype=float32"
                )
        return None


def _uncomputed(compute: ComputeDefinition, stage: Stage) -> Iterator[str]:
    """What a stage asks for that there is no code for."""
    called = functions(stage.value)
    read = {compute.dtype(load.buffer) for load in loads(stage.value)}
    dtypes = {widened(dtype) for dtype in (*read, stage.dtype)}
    if len(dtypes) > 1 and not called & _CONVERTING:
        yield f"dtype={' beside dtype='.join(sorted(dtypes))}"
    converted = called & CONVERSIONS.keys()  # what is computed with may be of another type
    for dtype in dtypes - {"float32"}:
        known = _DOUBLE if is_floating(dtype) else _WHOLE
        if len(dtypes) == 1 and not converted and called - known:
            yield f"'{min(called - known)}' in dtype={dtype}"
