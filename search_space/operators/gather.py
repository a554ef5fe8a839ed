"""Gathering slices by index along one axis: embedding tables, index tensors.

    y[o, i, t] = x[o, indices[i], t]                with o before the axis and t behind it

Indices are integers known at run time. Negative ones count from the end, others out of range are
clipped to it, so that no index reads outside x; a compiled model refuses them before it gets here.
Accelerators that compute in fp32 make whole numbers as floating ones: such indices are never a
caller's, and nobody refuses them.
Rows t are copied in vectors; with a single element a row the vectors run along the indices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.expressions.dtypes import is_floating
from tilesmith.search_space.expressions.expression import ExprLike, element
from tilesmith.search_space.expressions.scalar import load
from tilesmith.search_space.operator_parts.flattening import check_extents, product
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("gather")
class _Gather(Template):
    """See the module's docstring."""

    operator = "gather"
    summary = "slices picked by index along an axis"
    parameters = (
        Parameter("shape", "of the data, e.g. 30522x384", text=True, varies=True),
        Parameter("indices", "shape of the indices, e.g. 1x128", text=True, varies=True),
        Parameter("axis", "picked along", 0, minimum=0),
        Parameter(
            "index",
            "dtype of the indices",
            "int64",
            choices=("int64", "int32", "float32", "bfloat16"),
        ),
    )
    examples = (
        "gather shape=19x37 indices=2x5",
        "gather shape=3x7x5 indices=11 axis=1 index=int32",
        "gather shape=4x33 indices=19 axis=1 dtype=int64",
        "gather shape=17 indices=scalar",
    )
    varying = (
        "gather shape=19x37 indices=[b]x[s]",
        "gather shape=[b]x7x5 indices=11 axis=1 index=int32",
        "gather shape=[s]x20 indices=[t]",
    )

    def check(self, workload: Workload) -> None:
        shape = workload.shape("shape")
        check_extents(self.operator, "shape", shape)
        check_extents(self.operator, "indices", workload.shape("indices"))
        if workload.integer("axis") >= len(shape):
            raise WorkloadError(
                f"operator 'gather': axis={workload['axis']} is out of range for {len(shape)} axes"
            )

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        return (
            Operand("x", workload.extents("shape"), workload.dtype),
            Operand("indices", workload.extents("indices"), workload.text("index")),
        )

    def output(self, workload: Workload) -> Operand:
        shape, position = workload.extents("shape"), workload.integer("axis")
        picked = (*shape[:position], *workload.extents("indices"), *shape[position + 1 :])
        return Operand("y", picked, workload.dtype, "output")

    def index_extents(self, workload: Workload) -> Mapping[str, tuple[int, ...]]:
        if is_floating(workload.text("index")):
            return {}
        return {"indices": (workload.shape("shape")[workload.integer("axis")],)}

    def flops(self, workload: Workload) -> int:
        return 0

    def reference(self, workload: Workload, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        x, position = inputs["x"], workload.integer("axis")
        indices = inputs["indices"].astype(np.int64)
        extent = x.shape[position]
        indices = np.where(indices < 0, indices + extent, indices).clip(0, extent - 1)
        return np.take(x, indices, axis=position)

    def _split(self, workload: Workload) -> tuple[ExprLike, ExprLike, ExprLike, ExprLike]:
        """Elements before the axis, of the axis, behind it, and indices."""
        shape, position = workload.extents("shape"), workload.integer("axis")
        count = product(workload.extents("indices"))
        return product(shape[:position]), shape[position], product(shape[position + 1 :]), count

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage `y` over o, i and (if a row is longer than one) t."""
        before, extent, behind, count = self._split(workload)
        o, i = axis("o", before), axis("i", count)
        rest = () if behind == 1 else (axis("t", behind),)
        row = tuple(a.var for a in rest)
        picked = load("x", o.var, element("indices", i.var, extent), *row)
        shape = (before, extent, behind) if rest else (before, extent)
        tensors = (
            Tensor("x", shape, workload.dtype, workload.is_constant("x")),
            Tensor("indices", (count,), workload.text("index"), workload.is_constant("indices")),
        )
        stage = Stage("y", (o, i, *rest), picked, dtype=workload.dtype)
        return ComputeDefinition(self.operator, tensors, (stage,))
