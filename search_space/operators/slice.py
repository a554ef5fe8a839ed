"""Slices: a box of a tensor, every axis with its own start, size and step.

    y[i, j, ...] = x[start_0 + i*step_0, start_1 + j*step_1, ...]

Steps may be negative. Axes taken whole merge with their neighbours (`movement`).
"""

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.scalar import load
from tilesmith.search_space.operator_parts.flattening import Span, merge
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Parameter, Shaped, Template, templates
from tilesmith.search_space.workloads.workload import ParameterValue, Workload, shape_text


@templates.register("slice")
class Slice(Template):
    """See the module's docstring."""

    operator = "slice"
    summary = "a box of a tensor"
    parameters = (
        Parameter.shape("shape", "of the input, e.g. 1x64x56x56"),
        Parameter("starts", "first element of each axis, e.g. 0x32x0x0", text=True, varies=True),
        Parameter.shape("sizes", "elements taken of each axis, e.g. 1x32x56x56"),
        Parameter("steps", "distance of elements taken, e.g. 1x1x2x2 (default: all 1)", ""),
    )
    writes = Shaped("y", "sizes")
    picks = True
    examples = (
        "slice shape=2x7x5x3 starts=0x2x0x0 sizes=2x3x5x3",
        "slice shape=9x37 starts=1x0 sizes=4x19 steps=2x2",
        "slice shape=3x131 starts=2x130 sizes=2x44 steps=-1x-3",
        "slice shape=1009 starts=500 sizes=509 dtype=int64",
        "slice shape=4x5 starts=3x4 sizes=1x1",
    )
    varying = (
        "slice shape=[b]x[s+2]x20 starts=0x2x0 sizes=[b]x[s]x20",
        "slice shape=[b]x[s]x3 starts=0x[s-1]x0 sizes=[b]x1x3",
        "slice shape=37x[2*s] starts=1x0 sizes=9x[s] steps=4x2",
    )

    def canonical(self, values: dict[str, ParameterValue]) -> dict[str, ParameterValue]:
        rank = len(str(values["starts"]).split("x"))
        return values | ({"steps": ""} if values["steps"] == shape_text([1] * rank) else {})

    def check(self, workload: Workload) -> None:
        super().check(workload)
        shape, starts, sizes, steps = self._box(workload)
        if not len(shape) == len(starts) == len(sizes) == len(steps):
            raise WorkloadError("operator 'slice': shape, starts, sizes and steps differ in length")
        for extent, start, size, step in zip(shape, starts, sizes, steps, strict=True):
            last = start + (size - 1) * step
            if step == 0 or not (0 <= start < extent and 0 <= last < extent):
                raise WorkloadError(
                    f"operator 'slice': {size} elements from {start}, {step} apart, leave an axis "
                    f"of {extent}"
                )

    def _box(self, workload: Workload) -> tuple[tuple[int, ...], ...]:
        shape, starts, sizes = (workload.shape(name) for name in ("shape", "starts", "sizes"))
        return shape, starts, sizes, self._steps(workload)

    def _steps(self, workload: Workload) -> tuple[int, ...]:
        return workload.shape("steps") or (1,) * len(workload.extents("shape"))

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        _, starts, sizes, steps = self._box(workload)
        result = inputs["x"]
        for position, (start, size, step) in enumerate(zip(starts, sizes, steps, strict=True)):
            result = result.take(start + step * np.arange(size), axis=position)
        return result

    def _spans(self, workload: Workload) -> tuple[Span, ...]:
        shape, starts, sizes = (workload.extents(name) for name in ("shape", "starts", "sizes"))
        steps = self._steps(workload)
        return merge([Span(*each) for each in zip(shape, starts, sizes, steps, strict=True)])

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage `y` over the merged axes d0, d1, ..."""
        spans = self._spans(workload)
        axes = tuple(axis(f"d{i}", span.size) for i, span in enumerate(spans))
        places = (a.var * s.step + s.start for a, s in zip(axes, spans, strict=True))
        x = Tensor("x", tuple(span.extent for span in spans), workload.dtype)
        stage = Stage("y", axes, load("x", *places), dtype=workload.dtype)
        return ComputeDefinition(self.operator, (x,), (stage,))
