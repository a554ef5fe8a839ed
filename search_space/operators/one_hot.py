"""Rows that are `off` everywhere but at one index, where they are `on`.

    y[o, d, i] = values[1] where indices[o, i] == d, else values[0]        (off, on) = values

ONNX OneHot, opset 11: the new axis d of `depth` entries stands at `axis`; negative indices count
from its end, those out of range leave a row `off`.
"""

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.scalar import Index, Scalar, call, load
from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.operator_parts.indexing import INDEX, INDICES
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("one_hot")
class OneHot(Template):
    """See the module's docstring."""

    operator = "one_hot"
    summary = "rows that are on at one index and off elsewhere"
    parameters = (
        Parameter.shape("indices", "shape of the indices, e.g. 2x128"),
        Parameter("depth", "entries of the new axis"),
        Parameter("axis", "where the new axis stands in the output", 0, minimum=0),
        INDEX,
    )
    examples = (
        "one_hot indices=19 depth=37 axis=1",
        "one_hot indices=3x33 depth=5 axis=1 dtype=int64",
        "one_hot indices=2x7 depth=8 index=int32 dtype=bool axis=2",
        "one_hot indices=scalar depth=17",
    )
    varying = ("one_hot indices=[b]x[s] depth=19 axis=2", "one_hot indices=[n] depth=5")

    def check(self, workload: Workload) -> None:
        super().check(workload)
        indices = workload.shape("indices")
        if workload.integer("axis") > len(indices):
            raise WorkloadError(
                f"operator 'one_hot': axis={workload['axis']} is out of range for "
                f"{len(indices) + 1} axes"
            )

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        return (Operand("values", (2,), workload.dtype), INDICES.of(workload))

    def output(self, workload: Workload) -> Operand:
        indices, position = workload.extents("indices"), workload.integer("axis")
        shape = (*indices[:position], workload.integer("depth"), *indices[position:])
        return Operand("y", shape, workload.dtype, "output")

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        indices, depth = inputs["indices"], workload.integer("depth")
        position = workload.integer("axis")
        wanted = np.expand_dims(np.where(indices < 0, indices + depth, indices), position)
        entries = np.arange(depth).reshape(-1, *[1] * (indices.ndim - position))
        off, on = inputs["values"]
        return np.asarray(np.where(wanted == entries, on, off))

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage `y` over indices o, entries d and (if there are any behind) indices i."""
        indices, depth = workload.extents("indices"), workload.integer("depth")
        position = workload.integer("axis")
        before, behind = product(indices[:position]), product(indices[position:])
        o, d = axis("o", before), axis("d", depth)
        rest = () if behind == 1 else (axis("i", behind),)
        dtype = workload.text("index")
        index = load("indices", o.var, *(a.var for a in rest))
        wanted = call("where", call("less", index, 0), call("add", index, depth), index)
        entry: Scalar = Index(d.var)
        entry = entry if dtype == "int64" else call(f"to_{dtype}", entry)
        value = call("where", call("equal", wanted, entry), load("values", 1), load("values", 0))
        tensors = (
            Tensor("values", (2,), workload.dtype),
            Tensor("indices", (before, behind) if rest else (before,), dtype),
        )
        stage = Stage("y", (o, d, *rest), value, dtype=workload.dtype)
        return ComputeDefinition(self.operator, tensors, (stage,))
