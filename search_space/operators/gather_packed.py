"""Gathering rows of a table that is kept in panels, as a product keeps its weights.

    y[i, t] = x[indices[i] / block, t, indices[i] % block]
    y[i, t] = x[indices[i] / block, t / group, indices[i] % block, t % group]    with group > 1

Language models read one table twice: a row for each token, and all of it as the weights of the last
product, which wants blocks of rows with the same column side by side, and in a precision whose
instructions multiply several columns at once groups of these. Rows found in those panels spare a
second copy of the table. Indices are as those of `gather`; rows behind the last are zeros that fill
the last block, and columns behind the last fill up to a multiple of `fill`.
"""

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.expression import element, floordiv, mod
from tilesmith.search_space.expressions.scalar import load
from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import ParameterValue, Workload


@templates.register("gather_packed")
class GatherPacked(Template):
    """See the module's docstring."""

    operator = "gather_packed"
    summary = "rows picked by index from a table in panels"
    parameters = (
        Parameter.shape("shape", "of the table, rows first, e.g. 50257x768", varies=False),
        Parameter("block", "rows of a panel"),
        Parameter("group", "columns of a row that lie side by side", 1),
        Parameter(
            "fill", "columns are filled up to a multiple of it (default: group)", 0, minimum=0
        ),
        Parameter.shape("indices", "shape of the indices, e.g. 1x128", varies=False),
        Parameter("index", "dtype of the indices", "int64", choices=("int64", "int32")),
    )
    examples = (
        "gather_packed shape=37x19 block=16 indices=2x5",
        "gather_packed shape=64x33 block=32 indices=11 index=int32 dtype=int64",
        "gather_packed shape=37x18 block=16 group=2 indices=7 dtype=bfloat16",
        "gather_packed shape=21x12 block=16 group=4 fill=8 indices=5 dtype=int8",
    )

    def canonical(self, values: dict[str, ParameterValue]) -> dict[str, ParameterValue]:
        return values | ({"fill": 0} if values["fill"] == values["group"] else {})

    def check(self, workload: Workload) -> None:
        super().check(workload)
        if len(workload.shape("shape")) != 2:
            raise WorkloadError(
                f"operator 'gather_packed': shape={workload['shape']} has to have two axes"
            )
        group = workload.integer("group")
        if group < 1 or workload.shape("shape")[1] % group or workload.integer("fill") % group:
            raise WorkloadError(
                f"operator 'gather_packed': group={group} has to divide the columns of "
                f"shape={workload['shape']}, and fill={workload['fill']}"
            )

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        (rows, columns), block = workload.shape("shape"), workload.integer("block")
        group = workload.integer("group")
        fill = workload.integer("fill") or group
        kept = -(-columns // fill) * fill // group
        panels = (-(-rows // block), kept, block, *((group,) if group > 1 else ()))
        return (
            Operand("x", panels, workload.dtype),
            Operand("indices", workload.shape("indices"), workload.text("index")),
        )

    def output(self, workload: Workload) -> Operand:
        picked = (*workload.shape("indices"), workload.shape("shape")[1])
        return Operand("y", picked, workload.dtype, "output")

    def index_extents(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"indices": (workload.shape("shape")[0],)}

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        extent, block = workload.shape("shape")[0], workload.integer("block")
        indices = inputs["indices"].astype(np.int64)
        indices = np.where(indices < 0, indices + extent, indices).clip(0, extent - 1)
        picked = inputs["x"][indices // block, :, indices % block]
        flat = picked.reshape(*indices.shape, -1)
        return np.asarray(flat[..., : workload.shape("shape")[1]])

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage `y` over i and t, groups of t apart."""
        (rows, columns), block = workload.shape("shape"), workload.integer("block")
        count, group = product(workload.extents("indices")), workload.integer("group")
        i, t, p = axis("i", count), axis("t", columns // group), axis("p", group)
        axes = (i, t, p) if group > 1 else (i, t)
        row = element("indices", i.var, rows)
        inner = (p.var,) if group > 1 else ()
        picked = load("x", floordiv(row, block), t.var, mod(row, block), *inner)
        x = self.inputs(workload)[0]
        tensors = (
            Tensor("x", x.shape, workload.dtype, workload.is_constant("x")),
            Tensor("indices", (count,), workload.text("index"), workload.is_constant("indices")),
        )
        stage = Stage("y", axes, picked, dtype=workload.dtype)
        return ComputeDefinition(self.operator, tensors, (stage,))
