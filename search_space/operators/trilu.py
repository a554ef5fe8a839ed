"""Upper or lower triangles of matrices, the rest zero.

    y[b, i, j] = x[b, i, j]   where j >= i + k (upper) or j <= i + k (lower), else 0

ONNX Trilu, opset 14. The diagonal k is a parameter, or (dynamic=1) an operand known at run time.
"""

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.scalar import Const, Index, Scalar, Select, call, load
from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("trilu")
class Trilu(Template):
    """See the module's docstring."""

    operator = "trilu"
    summary = "upper or lower triangles of matrices"
    parameters = (
        Parameter.shape("shape", "of input and output, matrices last, e.g. 12x128x128"),
        Parameter("upper", "1 keeps the upper triangle, 0 the lower", 1, minimum=0),
        Parameter("k", "the diagonal where the triangle begins", 0, minimum=-(1 << 31)),
        Parameter("dynamic", "1 reads k from an int64 operand", 0, minimum=0),
    )
    examples = (
        "trilu shape=37x19",
        "trilu shape=3x17x33 upper=0 k=-2",
        "trilu shape=2x19x37 k=3 dtype=int64",
        "trilu shape=5x40 upper=0 dynamic=1",
        "trilu shape=7x19 k=100 dtype=bool",
    )
    varying = ("trilu shape=[b]x[s]x[s]", "trilu shape=[s]x[t] upper=0 dynamic=1")

    def check(self, workload: Workload) -> None:
        super().check(workload)
        shape = workload.shape("shape")
        if len(shape) < 2:
            raise WorkloadError(
                f"operator 'trilu': shape={workload['shape']} has no matrices; at least two axes "
                "are expected"
            )

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        x = Operand("x", workload.extents("shape"), workload.dtype)
        return (x, Operand("k", (), "int64")) if workload.integer("dynamic") else (x,)

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        rows, columns = workload.shape("shape")[-2:]
        k = int(inputs["k"]) if workload.integer("dynamic") else workload.integer("k")
        distance = np.arange(columns) - np.arange(rows)[:, None]
        kept = distance >= k if workload.integer("upper") else distance <= k
        return np.where(kept, inputs["x"], inputs["x"].dtype.type(0))

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage `y` over matrices b, rows i and columns j."""
        *outer, rows, columns = workload.extents("shape")
        b, i, j = axis("b", product(outer)), axis("i", rows), axis("j", columns)
        x = load("x", b.var, i.var, j.var)
        distance = j.var - i.var
        tensors = [Tensor("x", (product(outer), rows, columns), workload.dtype)]
        if workload.integer("dynamic"):
            tensors.append(Tensor("k", (1,), "int64"))
            sign = "greater_equal" if workload.integer("upper") else "less_equal"
            value: Scalar = call("where", call(sign, Index(distance), load("k", 0)), x, 0)
        else:
            beyond = distance - workload.integer("k")
            value = Select((beyond if workload.integer("upper") else -beyond,), x, Const(0.0))
        stage = Stage("y", (b, i, j), value, dtype=workload.dtype)
        return ComputeDefinition(self.operator, tuple(tensors), (stage,))
