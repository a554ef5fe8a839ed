"""Slices replaced, or combined with others, at places in several axes.

    y = x;  y[indices[c, 0], indices[c, 1], ...] = updates[c]    in their order (reduction=none)
    y = x;  y[indices[c, 0], indices[c, 1], ...] += updates[c]   (add; mul, max, min likewise)
    y = x;  y[l, indices[c, 0], ...] = updates[l, c]             for every l (lead=1)

ONNX ScatterND, opset 18: the indices' last axis names a place in the data's leading axes. Negative
indices count from the end, others out of range are clipped; a compiled model refuses them before it
gets here. Of several updates of one place the last one stays.
"""

from typing import Any

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.expression import ExprLike, as_expr
from tilesmith.search_space.expressions.scalar import load
from tilesmith.search_space.operator_parts import indexing
from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("scatter_nd")
class ScatterND(Template):
    """See the module's docstring."""

    operator = "scatter_nd"
    summary = "slices replaced or combined at places in several axes"
    parameters = (
        Parameter.shape("shape", "of the data, e.g. 8x16x64"),
        Parameter.shape("indices", "shape of the indices; last, a place"),
        indexing.REDUCTION,
        indexing.INDEX,
        Parameter("lead", "axes before those that indices choose in, taken whole", 0, minimum=0),
    )
    examples = (
        "scatter_nd shape=5x7x33 indices=4x2",
        "scatter_nd shape=9x37 indices=2x11x1 reduction=add index=int32",
        "scatter_nd shape=5x7 indices=19x2 reduction=mul",
        "scatter_nd shape=19 indices=6x1 reduction=min dtype=int32",
        "scatter_nd shape=3x100 indices=7x1 reduction=max",
        "scatter_nd shape=4x5 indices=1 dtype=bool",
        "scatter_nd shape=3x9x37 indices=2x1 lead=1",
        "scatter_nd shape=2x3x5x4 indices=4x2 lead=1 reduction=add index=int32",
    )
    varying = (
        "scatter_nd shape=[b]x[s]x20 indices=[n]x2 reduction=add",
        "scatter_nd shape=[b]x[s]x7 indices=1x1 lead=1",
    )

    def check(self, workload: Workload) -> None:
        super().check(workload)
        indexing.check_rows(workload, 0, workload.integer("lead"))

    def _updates(self, workload: Workload) -> tuple[ExprLike, ...]:
        shape, indices = workload.extents("shape"), workload.extents("indices")
        lead = workload.integer("lead")
        chosen = len(indexing.varying_row_extents(workload, lead))
        return (*shape[:lead], *indices[:-1], *shape[lead + chosen :])

    def _extents(self, workload: Workload) -> tuple[int, ...]:
        return indexing.row_extents(workload, workload.integer("lead"))

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        return (
            Operand("x", workload.extents("shape"), workload.dtype),
            Operand("indices", workload.extents("indices"), workload.text("index")),
            Operand("updates", self._updates(workload), workload.dtype),
        )

    def index_extents(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"indices": self._extents(workload)}

    def flops(self, workload: Workload) -> int:
        updates = self.inputs(workload)[2].shape
        return product(updates) if workload.text("reduction") != "none" else 0

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        indices, extents = inputs["indices"], self._extents(workload)
        whole: list[Any] = [slice(None)] * workload.integer("lead")
        places = (*whole, *(indexing.wrapped(indices[..., k], n) for k, n in enumerate(extents)))
        return indexing.combine(inputs["x"], places, inputs["updates"], workload.text("reduction"))

    def compute(self, workload: Workload) -> ComputeDefinition:
        """Stages `base`, a copy of x, and `y` over leading axes l, elements t of a slice and places
        c."""
        shape, indices = workload.extents("shape"), workload.extents("indices")
        lead = workload.integer("lead")
        extents, count = indexing.varying_row_extents(workload, lead), indexing.rows_of(indices, 0)
        before, behind = product(shape[:lead]), product(shape[lead + len(extents) :])
        around, t, c = axis("l", before), axis("t", behind), axis("c", count)
        outer = () if before == 1 else (around.var,)
        inner = () if behind == 1 else (t.var,)
        sides = (() if before == 1 else (before,)), (() if behind == 1 else (behind,))
        whole = (*sides[0], *extents, *sides[1])
        written = Stage(
            "y",
            (t,) if before == 1 else (around, t),
            load("updates", *outer, c.var, *inner),
            (c,),
            indexing.COMBINATIONS[workload.text("reduction")],
            (*outer, *indexing.row_places(c.var, extents), *inner),
            tuple(map(as_expr, whole)),
            dtype=workload.dtype,
        )
        tensors = (
            Tensor("x", whole, workload.dtype),
            Tensor("indices", (product(indices),), workload.text("index")),
            Tensor("updates", (*sides[0], count, *sides[1]), workload.dtype),
        )
        return ComputeDefinition(self.operator, tensors, (indexing.copied("x", written), written))
