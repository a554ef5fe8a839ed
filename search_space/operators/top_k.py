"""Where the k largest or smallest elements along one axis stand, in order, as int64 indices.

    key[i]    = ordinal(x[i]) 2^32 + (2^32 - 1 - i)       distinct; of equal elements the first has
    rank[i]   = how many keys are larger                  the larger key
    sorted[j] = the key whose rank is j                   j < k
    y[j]      = 2^32 - 1 - sorted[j] mod 2^32

A single one is looked for as `arg_extreme` does: the largest ordinal, and the first place that has
it.

ONNX TopK, opset 11, whose values are gathered by these indices. The smallest are the largest of
-1 - ordinal(x). What is not a number is larger than all numbers, whatever its sign: what x86 gives
for inf - inf has it set.
"""

from collections.abc import Sequence

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.ranges import WholeRange
from tilesmith.search_space.expressions.scalar import Index, Scalar, call, load
from tilesmith.search_space.operator_parts.flattening import around, product
from tilesmith.search_space.operator_parts.formula import evaluate, operand
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload

_SHIFT = 1 << 32


@templates.register("top_k")
class TopK(Template):
    """See the module's docstring."""

    operator = "top_k"
    summary = "indices of the largest or smallest elements along one axis"
    parameters = (
        Parameter.shape("shape", "of the input, e.g. 1x8400", varies=False),
        Parameter("k", "how many"),
        Parameter("axis", "chosen along", 0, minimum=0, of="shape"),
        Parameter("kind", "which elements", "max", choices=("max", "min")),
    )
    examples = (
        "top_k shape=3x37 k=5 axis=1",
        "top_k shape=2x40x3 k=40 axis=1 kind=min",
        "top_k shape=101 k=7 kind=min dtype=int32",
        "top_k shape=5x9 k=2 dtype=uint8",
        "top_k shape=4x1 k=1 axis=1",
    )

    def check(self, workload: Workload) -> None:
        super().check(workload)
        shape, position = workload.shape("shape"), workload.integer("axis")
        if workload.integer("k") > shape[position]:
            raise WorkloadError(
                f"operator 'top_k': k={workload['k']} is more than the {shape[position]} elements "
                f"along axis {position}"
            )
        if shape[position] >= _SHIFT or workload.dtype not in _DTYPES:
            raise WorkloadError(
                f"operator 'top_k': dtype={workload.dtype}; one of {', '.join(_DTYPES)}"
            )

    def output(self, workload: Workload) -> Operand:
        shape, position = list(workload.shape("shape")), workload.integer("axis")
        shape[position] = workload.integer("k")
        return Operand("y", tuple(shape), "int64", "output")

    def output_range(
        self, workload: Workload, inputs: Sequence[WholeRange | None]
    ) -> WholeRange | None:
        return 0, workload.shape("shape")[workload.integer("axis")] - 1

    def flops(self, workload: Workload) -> int:
        return product(workload.shape("shape"))

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        x, position = inputs["x"], workload.integer("axis")
        orders: Array = np.asarray(evaluate(_order(workload, operand(0)), [x]))
        turned = orders if workload.text("kind") == "min" else -1 - orders.astype(np.int64)
        order = np.argsort(turned, axis=position, kind="stable")
        return np.take(order, np.arange(workload.integer("k")), axis=position)

    def compute(self, workload: Workload) -> ComputeDefinition:
        """Stages `key`, `rank`, `sorted` and `y` over rows o (and neighbours t); `m`, `p` and `y`
        for a single one."""
        shape, position = workload.shape("shape"), workload.integer("axis")
        before, length, behind = around(shape, position)
        single = workload.integer("k") == 1
        o, i, other = axis("o", before), axis("k" if single else "i", length), axis("l", length)
        j = axis("j", workload.integer("k"))
        rest = () if behind == 1 else (axis("t", behind),)
        row = (o, *rest)
        at = tuple(a.var for a in row)
        order = _order(workload, load("x", o.var, i.var, *at[1:]))
        if workload.text("kind") == "min":
            order = call("subtract", -1, order)
        whole = (before, length, *((behind,) if rest else ()))
        x = Tensor("x", whole, workload.dtype)
        if single:
            reached = call("greater_equal", order, load("m", *at))
            place = call("where", reached, call("to_int32", Index(i.var)), (1 << 31) - 1)
            first = (
                Stage("m", row, order, (i,), "max", dtype="int32"),
                Stage("p", row, place, (i,), "min", dtype="int32"),
                Stage("y", row, call("to_int64", load("p", *at)), dtype="int64"),
            )
            return ComputeDefinition(self.operator, (x,), first)
        high = call("multiply", call("to_int64", order), _SHIFT)
        key = call("add", high, Index(_SHIFT - 1 - i.var))
        larger = call("greater", load("key", *at, other.var), load("key", *at, i.var))
        mine = call("equal", load("rank", *at, i.var), Index(j.var))
        picked = call("where", mine, load("key", *at, i.var), -(1 << 63))
        index = call("subtract", _SHIFT - 1, call("modulo", load("sorted", *at, j.var), _SHIFT))
        stages = (
            Stage("key", (*row, i), key, dtype="int64"),
            Stage("rank", (*row, i), call("to_int64", larger), (other,), "sum", dtype="int64"),
            Stage("sorted", (*row, j), picked, (i,), "max", dtype="int64"),
            Stage("y", (o, j, *rest), index, dtype="int64"),
        )
        return ComputeDefinition(self.operator, (x,), stages)


def _order(workload: Workload, x: Scalar) -> Scalar:
    """A whole number of 32 bits for each element, the larger the larger the element."""
    order = call("ordinal", x)
    if workload.dtype not in _DTYPES[:3]:
        return order
    return call("where", call("is_nan", x), (1 << 31) - 1, order)


_DTYPES = ("float32", "float16", "bfloat16", "int32", "int16", "int8", "uint16", "uint8")
"""Elements of at most 32 bits, which leave room for an index in a key."""
