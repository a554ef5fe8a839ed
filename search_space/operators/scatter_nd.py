"""Slices replaced, or combined with others, at places in several axes.

    y = x;  y[indices[c, 0], indices[c, 1], ...] = updates[c]    in their order (reduction=none)
    y = x;  y[indices[c, 0], indices[c, 1], ...] += updates[c]   (add; mul, max, min likewise)

ONNX ScatterND, opset 18: the indices' last axis names a place in the data's leading axes. Negative
indices count from the end, others out of range are clipped; a compiled model refuses them before it
gets here. Of several updates of one place the last one stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from tilesmith.search_space.flattening import product
from tilesmith.search_space.indexing import (
    INDEX,
    REDUCTION,
    REDUCTIONS,
    check_rows,
    combine,
    copied,
    row_extents,
    row_places,
    rows_of,
    wrapped,
)
from tilesmith.search_space.ir.expression import as_expr
from tilesmith.search_space.ir.scalar import load
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workload import Workload


@templates.register("scatter_nd")
class ScatterND(Template):
    """See the module's docstring."""

    operator = "scatter_nd"
    summary = "slices replaced or combined at places in several axes"
    parameters = (
        Parameter("shape", "of the data, e.g. 8x16x64", text=True),
        Parameter("indices", "shape of the indices; the last axis is a place", text=True),
        REDUCTION,
        INDEX,
    )
    examples = (
        "scatter_nd shape=5x7x33 indices=4x2",
        "scatter_nd shape=9x37 indices=2x11x1 reduction=add index=int32",
        "scatter_nd shape=5x7 indices=19x2 reduction=mul",
        "scatter_nd shape=19 indices=6x1 reduction=min dtype=int32",
        "scatter_nd shape=3x100 indices=7x1 reduction=max",
        "scatter_nd shape=4x5 indices=1 dtype=bool",
    )

    def check(self, workload: Workload) -> None:
        check_rows(workload, 0)

    def _updates(self, workload: Workload) -> tuple[int, ...]:
        shape, indices = workload.shape("shape"), workload.shape("indices")
        return (*indices[:-1], *shape[indices[-1] :])

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        return (
            Operand("x", workload.shape("shape"), workload.dtype),
            Operand("indices", workload.shape("indices"), workload.text("index")),
            Operand("updates", self._updates(workload), workload.dtype),
        )

    def output(self, workload: Workload) -> Operand:
        return Operand("y", workload.shape("shape"), workload.dtype, "output")

    def index_extents(self, workload: Workload) -> Mapping[str, tuple[int, ...]]:
        return {"indices": row_extents(workload, 0)}

    def flops(self, workload: Workload) -> int:
        return product(self._updates(workload)) if workload.text("reduction") != "none" else 0

    def reference(self, workload: Workload, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        indices, extents = inputs["indices"], row_extents(workload, 0)
        places = tuple(wrapped(indices[..., k], extent) for k, extent in enumerate(extents))
        return combine(inputs["x"], places, inputs["updates"], workload.text("reduction"))

    def compute(self, workload: Workload) -> ComputeDefinition:
        """Stages `base`, a copy of x, and `y` over elements t of a slice and places c."""
        shape, indices = workload.shape("shape"), workload.shape("indices")
        extents, count = row_extents(workload, 0), rows_of(indices, 0)
        behind = product(shape[len(extents) :])
        t, c = axis("t", behind), axis("c", count)
        inner = (t.var,) if behind > 1 else ()
        whole = (*extents, *((behind,) if behind > 1 else ()))
        written = Stage(
            "y",
            (t,),
            load("updates", c.var, *inner),
            (c,),
            REDUCTIONS[workload.text("reduction")],
            (*row_places(c.var, extents), *inner),
            tuple(map(as_expr, whole)),
            dtype=workload.dtype,
        )
        tensors = (
            Tensor("x", whole, workload.dtype),
            Tensor("indices", (product(indices),), workload.text("index")),
            Tensor("updates", (count, behind) if inner else (count,), workload.dtype),
        )
        return ComputeDefinition(self.operator, tensors, (copied("x", written), written))
