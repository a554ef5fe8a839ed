"""Elements replaced, or combined with others, by index along an axis.

    y = x;  y[.., indices[.., i, ..], ..] = updates[.., i, ..]    in order (reduction=none)
    y = x;  y[.., indices[.., i, ..], ..] += updates[.., i, ..]   (add; mul, max, min likewise)

ONNX ScatterElements, opset 18: indices and updates have x's rank and may be shorter. Negative
indices count from the end, others out of range are clipped, so that nothing outside y is written; a
compiled model refuses them before it gets here. Which update of one element comes last, where they
are not combined, is open in ONNX; here it is the one with the largest index.
"""

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.expression import as_expr
from tilesmith.search_space.expressions.scalar import load
from tilesmith.search_space.operator_parts import indexing
from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor
from tilesmith.search_space.workloads.template import Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("scatter_elements")
class ScatterElements(Template):
    """See the module's docstring."""

    operator = "scatter_elements"
    summary = "elements replaced or combined by index along an axis"
    parameters = (
        Parameter.shape("shape", "of the data, e.g. 12x128x64"),
        Parameter.shape("indices", "shape of indices and updates"),
        Parameter("axis", "written along", 0, minimum=0, of="shape"),
        indexing.REDUCTION,
        indexing.INDEX,
    )
    reads = (indexing.DATA, indexing.INDICES, indexing.UPDATES)
    examples = (
        "scatter_elements shape=19x37 indices=19x5 axis=1",
        "scatter_elements shape=5x7x33 indices=5x3x33 axis=1 index=int32 reduction=add",
        "scatter_elements shape=4x9x19 indices=3x9x17 reduction=max dtype=int64",
        "scatter_elements shape=17 indices=40 reduction=mul",
        "scatter_elements shape=6x3 indices=4x2 reduction=min",
        "scatter_elements shape=3x1 indices=2x1 dtype=bool",
    )
    varying = (
        "scatter_elements shape=[b]x[s+1]x20 indices=[b]x1x20 axis=1",
        "scatter_elements shape=[s]x5 indices=[t]x3 reduction=add",
    )

    def check(self, workload: Workload) -> None:
        super().check(workload)
        indexing.check_elements(workload)

    def index_extents(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"indices": (workload.shape("shape")[workload.integer("axis")],)}

    def flops(self, workload: Workload) -> int:
        combined = workload.text("reduction") != "none"
        return product(workload.shape("indices")) if combined else 0

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        position = workload.integer("axis")
        places = list(np.indices(workload.shape("indices"), sparse=True))
        extent = workload.shape("shape")[position]
        places[position] = indexing.wrapped(inputs["indices"], extent)
        return indexing.combine(
            inputs["x"], tuple(places), inputs["updates"], workload.text("reduction")
        )

    def compute(self, workload: Workload) -> ComputeDefinition:
        """Stages `base`, a copy of x, and `y` over the indices' axes d0, d1, ..."""
        shape, indices = workload.extents("shape"), workload.extents("indices")
        axes, places = indexing.element_places(workload)
        position = workload.integer("axis")
        written = Stage(
            "y",
            tuple(a for n, a in enumerate(axes) if n != position),
            load("updates", *(a.var for a in axes)),
            (axes[position],),
            indexing.COMBINATIONS[workload.text("reduction")],
            places,
            tuple(map(as_expr, shape)),
            dtype=workload.dtype,
        )
        tensors = (
            Tensor("x", shape, workload.dtype),
            Tensor("indices", (product(indices),), workload.text("index")),
            Tensor("updates", indices, workload.dtype),
        )
        return ComputeDefinition(self.operator, tensors, (indexing.copied("x", written), written))
