"""Gathering slices by index along one axis: embedding tables, index tensors.

    y[o, i, t] = x[o, indices[i], t]                with o before the axis and t behind it

Indices are integers known at run time. Negative ones count from the end, others out of range are
clipped to it, so that no index reads outside x; a compiled model refuses them before it gets here.
Accelerators that compute in fp32 make whole numbers as floating ones: such indices are never a
caller's, and nobody refuses them.
Rows t are copied in vectors; with a single element a row the vectors run along the indices.
"""

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays, is_floating
from tilesmith.search_space.expressions.expression import element
from tilesmith.search_space.expressions.scalar import load
from tilesmith.search_space.operator_parts.flattening import around, product
from tilesmith.search_space.operator_parts.indexing import DATA, INDICES
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("gather")
class _Gather(Template):
    """See the module's docstring."""

    operator = "gather"
    summary = "slices picked by index along an axis"
    parameters = (
        Parameter.shape("shape", "of the data, e.g. 30522x384"),
        Parameter.shape("indices", "shape of the indices, e.g. 1x128"),
        Parameter("axis", "picked along", 0, minimum=0, of="shape"),
        Parameter(
            "index",
            "dtype of the indices",
            "int64",
            choices=("int64", "int32", "float32", "bfloat16"),
        ),
    )
    reads = (DATA, INDICES)
    picks = True
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

    def output(self, workload: Workload) -> Operand:
        shape, position = workload.extents("shape"), workload.integer("axis")
        picked = (*shape[:position], *workload.extents("indices"), *shape[position + 1 :])
        return Operand("y", picked, workload.dtype, "output")

    def index_extents(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        if is_floating(workload.text("index")):
            return {}
        return {"indices": (workload.shape("shape")[workload.integer("axis")],)}

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        x, position = inputs["x"], workload.integer("axis")
        indices = inputs["indices"].astype(np.int64)
        extent = x.shape[position]
        indices = np.where(indices < 0, indices + extent, indices).clip(0, extent - 1)
        return np.take(x, indices, axis=position)

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage `y` over o, i and (if a row is longer than one) t."""
        before, extent, behind = around(workload.extents("shape"), workload.integer("axis"))
        count = product(workload.extents("indices"))
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
