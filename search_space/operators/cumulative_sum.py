"""Running sums along one axis: y[k] = x[0] + ... + x[k].

ONNX CumSum, opset 14: exclusive=1 leaves x[k] out of y[k], reverse=1 begins at the end. Numbers are
added in their order, as a running sum is.
"""

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.expression import as_expr
from tilesmith.search_space.expressions.scalar import load
from tilesmith.search_space.operator_parts.flattening import around, product
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.workloads.template import Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("cumulative_sum")
class CumulativeSum(Template):
    """See the module's docstring."""

    operator = "cumulative_sum"
    summary = "running sums along one axis"
    parameters = (
        Parameter.shape("shape", "of input and output, e.g. 4x2048"),
        Parameter("axis", "added along", 0, minimum=0, of="shape"),
        Parameter("exclusive", "1 leaves an element out of its own sum", 0, minimum=0),
        Parameter("reverse", "1 begins at the end", 0, minimum=0),
    )
    examples = (
        "cumulative_sum shape=5x37 axis=1",
        "cumulative_sum shape=2x11x40 axis=1 exclusive=1",
        "cumulative_sum shape=3x19 axis=1 reverse=1 exclusive=1",
        "cumulative_sum shape=19x33 reverse=1 dtype=int64",
        "cumulative_sum shape=1009 dtype=int32",
    )
    varying = ("cumulative_sum shape=[b]x[s] axis=1", "cumulative_sum shape=[s]x[n] exclusive=1")

    def flops(self, workload: Workload) -> int:
        return product(workload.shape("shape"))

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        x, position = inputs["x"], workload.integer("axis")
        turned = np.flip(x, position) if workload.integer("reverse") else x
        sums = np.cumsum(turned, axis=position, dtype=x.dtype)
        if workload.integer("exclusive"):
            sums = np.roll(sums, 1, axis=position)
            sums[(slice(None),) * position + (0,)] = 0
        return np.flip(sums, position) if workload.integer("reverse") else sums

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage `y`, a scan over elements k of rows o (and neighbours t)."""
        before, length, behind = around(workload.extents("shape"), workload.integer("axis"))
        o, k = axis("o", before), axis("k", length)
        rest = () if behind == 1 else (axis("t", behind),)
        place = length - 1 - k.var if workload.integer("reverse") else k.var
        indices = (o.var, place, *(a.var for a in rest))
        whole = (before, length, *((behind,) if rest else ()))
        stage = Stage(
            "y", (o, *rest), load("x", *indices), (k,), "sum", indices,
            tuple(map(as_expr, whole)), dtype=workload.dtype,
            scan="exclusive" if workload.integer("exclusive") else "inclusive",
        )  # fmt: skip
        return ComputeDefinition(self.operator, (Tensor("x", whole, workload.dtype),), (stage,))
