"""Elements picked one by one along an axis: y[.., i, ..] = x[.., indices[.., i, ..], ..].

The indices have x's rank and may be shorter along the other axes, where they take x's first
entries (ONNX GatherElements, opset 13). Negative ones count from the end, others out of range are
clipped, so that nothing outside x is read; a compiled model refuses them before it gets here.
"""

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.scalar import load
from tilesmith.search_space.operator_parts import indexing
from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor
from tilesmith.search_space.workloads.template import Parameter, Shaped, Template, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("gather_elements")
class GatherElements(Template):
    """See the module's docstring."""

    operator = "gather_elements"
    summary = "elements picked by index along an axis"
    parameters = (
        Parameter.shape("shape", "of the data, e.g. 12x128x64"),
        Parameter.shape("indices", "shape of the indices, of as many axes"),
        Parameter("axis", "picked along", 0, minimum=0, of="shape"),
        indexing.INDEX,
    )
    reads = (indexing.DATA, indexing.INDICES)
    writes = Shaped("y", "indices")
    picks = True
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
        super().check(workload)
        indexing.check_elements(workload)

    def index_extents(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"indices": (workload.shape("shape")[workload.integer("axis")],)}

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        x, position = inputs["x"], workload.integer("axis")
        indices = indexing.wrapped(inputs["indices"], x.shape[position])
        cut = tuple(slice(n) if a != position else slice(None) for a, n in enumerate(indices.shape))
        return np.take_along_axis(x[cut], indices, axis=position)

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage `y` over the indices' axes d0, d1, ..."""
        axes, places = indexing.element_places(workload)
        tensors = (
            Tensor("x", workload.extents("shape"), workload.dtype, workload.is_constant("x")),
            Tensor(
                "indices", (product(workload.extents("indices")),), workload.text("index"),
                workload.is_constant("indices"),
            ),
        )  # fmt: skip
        stage = Stage("y", axes, load("x", *places), dtype=workload.dtype)
        return ComputeDefinition(self.operator, tensors, (stage,))
