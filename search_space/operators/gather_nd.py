"""Slices picked by places in several axes: y[b, c] = x[b, indices[b, c, 0], indices[b, c, 1], ...].

ONNX GatherND, opset 13: `batch` leading axes are those of data and indices alike; the indices' last
axis names a place in the data's next axes, what is behind them is copied. Negative indices count
from the end, others out of range are clipped; a compiled model refuses them before it gets here.
"""

from typing import Any

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.scalar import load
from tilesmith.search_space.operator_parts import indexing
from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("gather_nd")
class GatherND(Template):
    """See the module's docstring."""

    operator = "gather_nd"
    summary = "slices picked by places in several axes"
    parameters = (
        Parameter.shape("shape", "of the data, e.g. 2x16x16x64"),
        Parameter.shape("indices", "shape of the indices; last, a place"),
        Parameter("batch", "leading axes that data and indices have in common", 0, minimum=0),
        indexing.INDEX,
    )
    reads = (indexing.DATA, indexing.INDICES)
    picks = True
    examples = (
        "gather_nd shape=5x7x33 indices=4x2",
        "gather_nd shape=3x5x7 indices=3x4x1 batch=1 index=int32",
        "gather_nd shape=5x7 indices=2x19x2 dtype=int64",
        "gather_nd shape=19 indices=1",
    )
    varying = (
        "gather_nd shape=[b]x[s]x20 indices=[n]x2",
        "gather_nd shape=[b]x[s]x7 indices=[b]x4x1 batch=1 index=int32",
    )

    def check(self, workload: Workload) -> None:
        super().check(workload)
        indexing.check_rows(workload, workload.integer("batch"))

    def output(self, workload: Workload) -> Operand:
        shape, indices = workload.extents("shape"), workload.extents("indices")
        batch = workload.integer("batch")
        behind = shape[batch + len(indexing.varying_row_extents(workload, batch)) :]
        return Operand("y", (*indices[:-1], *behind), workload.dtype, "output")

    def index_extents(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"indices": indexing.row_extents(workload, workload.integer("batch"))}

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        x, indices, batch = inputs["x"], inputs["indices"], workload.integer("batch")
        outer: Any = np.indices(indices.shape[:batch], sparse=True)
        rest = (1,) * (indices.ndim - 1 - batch)
        places: list[Any] = [a.reshape(*a.shape, *rest) for a in outer]
        for k, extent in enumerate(indexing.row_extents(workload, batch)):
            places.append(indexing.wrapped(indices[..., k], extent))
        return np.asarray(x[tuple(places)])

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage `y` over batches b, places c and (if a slice is longer than one) t."""
        shape, indices = workload.extents("shape"), workload.extents("indices")
        batch = workload.integer("batch")
        extents, count = (
            indexing.varying_row_extents(workload, batch),
            indexing.rows_of(indices, batch),
        )
        before, behind = product(shape[:batch]), product(shape[batch + len(extents) :])
        b, c = axis("b", before), axis("c", count)
        rest = () if behind == 1 else (axis("t", behind),)
        places = indexing.row_places(b.var * count + c.var, extents)
        picked = load("x", b.var, *places, *(a.var for a in rest))
        tensors = (
            Tensor(
                "x", (before, *extents, *((behind,) if rest else ())), workload.dtype,
                workload.is_constant("x"),
            ),
            Tensor(
                "indices", (product(indices),), workload.text("index"),
                workload.is_constant("indices"),
            ),
        )  # fmt: skip
        stage = Stage("y", (b, c, *rest), picked, dtype=workload.dtype)
        return ComputeDefinition(self.operator, tensors, (stage,))
