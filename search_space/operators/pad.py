"""Padding: a tensor inside a larger one.

    y[i] = x[i - before] inside;  outside `value`, the nearest element (edge), or the mirror image
    (reflect)

Axes without padding merge with the one before (mode constant). Inside, where nothing is padded, the
code has no tests (`specialisation`).
"""

from typing import Any

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.expression import Expr, as_expr, maximum, minimum
from tilesmith.search_space.expressions.scalar import Const, Scalar, Select, load
from tilesmith.search_space.operator_parts.flattening import Span, merge
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("pad")
class Pad(Template):
    """See the module's docstring."""

    operator = "pad"
    summary = "padding with a constant, the edge or the mirror image"
    parameters = (
        Parameter.shape("shape", "of the input, e.g. 1x64x56x56"),
        Parameter("before", "elements put before each axis, e.g. 0x0x1x1", text=True, varies=True),
        Parameter("after", "elements put behind each axis, e.g. 0x0x1x1", text=True, varies=True),
        Parameter("mode", "what they are", "constant", choices=("constant", "edge", "reflect")),
        Parameter("value", "the constant", "0"),
    )
    examples = (
        "pad shape=2x3x5x7 before=0x0x1x2 after=0x0x2x1",
        "pad shape=3x37 before=0x3 after=1x0 value=-1.5",
        "pad shape=2x3x5 before=0x1x2 after=0x1x3 mode=edge",
        "pad shape=4x40 before=1x3 after=2x5 mode=reflect",
        "pad shape=2x21x3 before=0x2x0 after=0x1x0 value=7 dtype=int64",
        "pad shape=5 before=0 after=0",
    )
    varying = (
        "pad shape=[b]x3x[h]x[w] before=0x0x1x2 after=0x0x2x1",
        "pad shape=3x[s] before=0x[t] after=0x2 value=7 dtype=int64",
        "pad shape=[b]x[s] before=1x3 after=0x2 mode=edge",
    )

    def check(self, workload: Workload) -> None:
        super().check(workload)
        shape, before, after = (workload.shape(n) for n in ("shape", "before", "after"))
        if not len(shape) == len(before) == len(after) or min(*before, *after, 0) < 0:
            raise WorkloadError(
                "operator 'pad': before and after need one number from 0 on for each axis"
            )
        reflect = workload.text("mode") == "reflect"
        if reflect and any(
            max(b, a) >= extent for extent, b, a in zip(shape, before, after, strict=True)
        ):
            raise WorkloadError("operator 'pad': reflected padding must be smaller than its axis")
        try:
            float(workload.text("value"))
        except ValueError as error:
            raise WorkloadError(
                f"operator 'pad': value={workload['value']} is no number"
            ) from error

    def output(self, workload: Workload) -> Operand:
        triples = zip(*(workload.extents(n) for n in ("shape", "before", "after")), strict=True)
        extents = tuple(extent + before + after for extent, before, after in triples)
        return Operand("y", extents, workload.dtype, "output")

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        widths = list(zip(workload.shape("before"), workload.shape("after"), strict=True))
        mode: Any = workload.text("mode")
        if mode != "constant":
            return np.pad(inputs["x"], widths, mode)
        value = np.array(float(workload.text("value"))).astype(inputs["x"].dtype)
        return np.pad(inputs["x"], widths, "constant", constant_values=value)

    def _spans(self, workload: Workload) -> tuple[Span, ...]:
        before = workload.extents("before")
        sizes = self.output(workload).extents
        triples = zip(workload.extents("shape"), before, sizes, strict=True)
        spans = [Span(extent, -start, size) for extent, start, size in triples]
        if workload.text("mode") == "constant":
            return merge(spans)
        return tuple(spans)

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage `y` over the (merged) output axes d0, d1, ..."""
        spans = self._spans(workload)
        axes = tuple(axis(f"d{i}", span.size) for i, span in enumerate(spans))
        places = [a.var + s.start for a, s in zip(axes, spans, strict=True)]
        value: Scalar = load("x", *places)
        tests: list[Expr] = []
        for place, span in zip(places, spans, strict=True):
            start, behind = as_expr(span.start), as_expr(span.extent) - span.start - span.size
            tests += [] if start.constant == 0 else [place]
            tests += [] if behind.constant == 0 else [span.extent - 1 - place]
        if tests:
            value = Select(tuple(tests), value, self._outside(workload, places, spans))
        x = Tensor("x", tuple(span.extent for span in spans), workload.dtype)
        stage = Stage("y", axes, value, dtype=workload.dtype)
        return ComputeDefinition(self.operator, (x,), (stage,))

    def _outside(self, workload: Workload, places: list[Expr], spans: tuple[Span, ...]) -> Scalar:
        """The value of a padded element."""
        mode = workload.text("mode")
        if mode == "constant":
            return Const(float(workload.text("value")))
        indices = []
        for place, span in zip(places, spans, strict=True):
            last = span.extent - 1
            if span.whole:
                indices.append(place)
            elif mode == "edge":
                indices.append(minimum(maximum(place, 0), last))
            else:
                mirrored = maximum(place, -place)
                indices.append(minimum(mirrored, 2 * last - mirrored))
        return load("x", *indices)
