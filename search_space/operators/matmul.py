"""Matrix multiplication, plain and batched, every combination of transposes.

c[b, i, j] = sum_k a[b, i, k] * b[b, k, j]
(a stored as [k, i] with ta=1, b as [j, k] with tb=1)

Products of bytes are summed in int32 (`integer_products`).
"""

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.expression import ExprLike
from tilesmith.search_space.expressions.scalar import load
from tilesmith.search_space.operator_parts.fusion import epilogue_stage, tensors_of
from tilesmith.search_space.operator_parts.integer_products import (
    WEIGHTS,
    check_weights,
    product_stage,
    sum_dtype,
    weight_dtype,
    widened,
)
from tilesmith.search_space.scheduling.compute import ComputeDefinition, axis
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("matmul")
class Matmul(Template):
    """See the module's docstring."""

    operator = "matmul"
    fuses_epilogues = True
    summary = "matrix multiplication, batched or not: c = a b"
    parameters = (
        Parameter("m", "rows of a and c", varies=True),
        Parameter("n", "columns of b and c", varies=True),
        Parameter("k", "columns of a, rows of b", varies=True),
        Parameter("batch", "independent products", 1, varies=True),
        Parameter("ta", "1 if a is stored transposed, as [k, m]", 0, minimum=0),
        Parameter("tb", "1 if b is stored transposed, as [n, k]", 0, minimum=0),
        WEIGHTS,
    )
    examples = (
        "matmul m=13 n=37 k=11 const=b epilogue=bias,relu",
        "matmul m=1 n=1 k=1",
        "matmul m=5 n=16 k=7 batch=3 ta=1",
        "matmul m=3 n=5 k=4 dtype=int32",
        "matmul m=7 n=19 k=8 tb=1 const=b epilogue=residual,gelu",
        "matmul m=5 n=37 k=11 weights=int8 dtype=uint8 const=b",
        "matmul m=6 n=18 k=9 tb=1 weights=int8 dtype=uint8 epilogue=correction,rescale,bias,relu",
        "matmul m=9 n=21 k=13 weights=int8 dtype=uint8 const=b epilogue=correction,rescale,"
        "fake_quantise,residual_uint8,quantise_uint8",
    )
    varying = (
        "matmul m=[b*s] n=37 k=11 const=b epilogue=bias,relu",
        "matmul m=[m] n=[n] k=[k]",
        "matmul m=[s] n=[s] k=20 batch=[b] tb=1",
        "matmul m=[s] n=20 k=[t] batch=3 epilogue=residual,gelu",
        "matmul m=[s] n=37 k=11 weights=int8 dtype=uint8 const=b epilogue=correction,rescale",
        "matmul m=[s] n=[s] k=6 batch=[b] dtype=bfloat16",
        "matmul m=[s] n=20 k=[t] weights=int8 dtype=uint8",
    )

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        m, n, k = (workload.extent(name) for name in "mnk")
        lead = self._lead(workload)
        a = (k, m) if workload.integer("ta") else (m, k)
        b = (n, k) if workload.integer("tb") else (k, n)
        return (
            Operand("a", (*lead, *a), workload.dtype),
            Operand("b", (*lead, *b), weight_dtype(workload)),
        )

    def output(self, workload: Workload) -> Operand:
        shape = (*self._lead(workload), workload.extent("m"), workload.extent("n"))
        return Operand("c", shape, self.result_dtype(workload), "output")

    def unfused_dtype(self, workload: Workload) -> str:
        return sum_dtype(workload)

    def check(self, workload: Workload) -> None:
        check_weights(workload)

    def flops(self, workload: Workload) -> int:
        m, n, k, batch = (workload.integer(name) for name in ("m", "n", "k", "batch"))
        return 2 * m * n * k * batch

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        a, b = (widened(inputs[name], workload) for name in "ab")
        a = np.swapaxes(a, -1, -2) if workload.integer("ta") else a
        b = np.swapaxes(b, -1, -2) if workload.integer("tb") else b
        product: Array = np.matmul(a, b)
        return product

    def _lead(self, workload: Workload) -> tuple[ExprLike, ...]:
        batch = workload.extent("batch")
        return () if batch == 1 else (batch,)

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage `c`, and `out` for the epilogue if there is one."""
        lead = tuple(axis("b", extent) for extent in self._lead(workload))
        i, j = axis("i", workload.extent("m")), axis("j", workload.extent("n"))
        k = axis("k", workload.extent("k"))
        batch = tuple(x.var for x in lead)
        a = load("a", *batch, *((k.var, i.var) if workload.integer("ta") else (i.var, k.var)))
        b = load("b", *batch, *((j.var, k.var) if workload.integer("tb") else (k.var, j.var)))
        product = product_stage(workload, "c", (*lead, i, j), a, b, (k,))
        return ComputeDefinition(
            "matmul",
            tensors_of(self, workload),
            (product, *epilogue_stage(self, workload, product)),
        )
