"""Elements picked one by one along an axis: y[.., i, ..] = x[.., indices[.., i, ..], ..].

The indices have x's rank and may be shorter along the other axes, where they take x's first
entries (ONNX GatherElements, opset 13). Negative ones count from the end, others out of range are
clipped, so that nothing outside x is read; a compiled model refuses them before it gets here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.expressions.scalar import load
from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.operator_parts.indexing import (
    INDEX,
    check_elements,
    element_places,
    wrapped,
)
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("gather_elements")
class GatherElements(Template):
    """See the module's docstring."""

    operator = "gather_elements"
    summary = "elements picked by index along an axis"
    parameters = (
        Parameter("shape", "of the data, e.g. 12x128x64", text=True, varies=True),
        Parameter("indices", "shape of the indices, of as many axes", text=True, varies=True),
        Parameter("axis", "picked along", 0, minimum=0),
        INDEX,
    )
    examples = (
        "gather_elements shape=19x37 indices=19x5 axis=1",
        "gather_elements shape=5x7x33 indices=5x3x33 axis=1 index=int32",
        "gather_elements shape=4x9x19 indices=3x9x17 dtype=int64",
        "gather_elements shape=17 indices=40",
        "gather_elements shape=3x1 indices=2x1 dtype=bool",
    )
    varying = (
        "gather_elements shape=[b]x[s] indices=[b]x5 axis=1",
        "gather_elements shape=5x[s]x20 indices=5x[t]x20 axis=1 index=int32",
    )

    def check(self, workload: Workload) -> None:
        check_elements(workload)

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        return (
            Operand("x", workload.extents("shape"), workload.dtype),
            Operand("indices", workload.extents("indices"), workload.text("index")),
        )

    def output(self, workload: Workload) -> Operand:
        return Operand("y", workload.extents("indices"), workload.dtype, "output")

    def index_extents(self, workload: Workload) -> Mapping[str, tuple[int, ...]]:
        return {"indices": (workload.shape("shape")[workload.integer("axis")],)}

    def flops(self, workload: Workload) -> int:
        return 0

    def reference(self, workload: Workload, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        x, position = inputs["x"], workload.integer("axis")
        indices = wrapped(inputs["indices"], x.shape[position])
        cut = tuple(slice(n) if a != position else slice(None) for a, n in enumerate(indices.shape))
        return np.take_along_axis(x[cut], indices, axis=position)

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage `y` over the indices' axes d0, d1, ..."""
        axes, places = element_places(workload)
        tensors = (
            Tensor("x", workload.extents("shape"), workload.dtype, workload.is_constant("x")),
            Tensor(
                "indices", (product(workload.extents("indices")),), workload.text("index"),
                workload.is_constant("indices"),
            ),
        )  # fmt: skip
        stage = Stage("y", axes, load("x", *places), dtype=workload.dtype)
        return ComputeDefinition(self.operator, tensors, (stage,))
