"""Where the largest or smallest element along one axis stands, as an int64 index.

    m = max_k x[k];   p = min over the k with x[k] == m;   y = p             kind=max
    with last=1:      p = max over the k with x[k] == m                      the last one of them

ONNX ArgMax and ArgMin, opset 13. What is not a number is passed over, but where it stands first:
then it is the answer (as in onnxruntime, which keeps the first element until another is larger).
"""

from collections.abc import Sequence

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays, is_floating
from tilesmith.search_space.expressions.ranges import WholeRange
from tilesmith.search_space.expressions.scalar import Index, Scalar, call, load
from tilesmith.search_space.operator_parts.flattening import around, product
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload

_MOST = (1 << 31) - 1


@templates.register("arg_extreme")
class ArgExtreme(Template):
    """See the module's docstring."""

    operator = "arg_extreme"
    summary = "index of the largest or smallest element along one axis"
    parameters = (
        Parameter.shape("shape", "of the input, e.g. 4x32000"),
        Parameter("kind", "which element", "max", choices=("max", "min")),
        Parameter("axis", "looked along", 0, minimum=0, of="shape"),
        Parameter("last", "1 gives the last of equal ones, 0 the first", 0, minimum=0),
        Parameter("keepdims", "1 leaves the axis in the shape, as 1", 1, minimum=0),
    )
    examples = (
        "arg_extreme shape=5x37 axis=1",
        "arg_extreme shape=3x131 kind=min axis=1 last=1 keepdims=0",
        "arg_extreme shape=2x11x40 axis=1",
        "arg_extreme shape=37x5 kind=min keepdims=0",
        "arg_extreme shape=1009 last=1",
        "arg_extreme shape=7x50 axis=1 dtype=int64",
        "arg_extreme shape=3x1x19 axis=1 dtype=int32",
    )
    varying = ("arg_extreme shape=[b]x[s] axis=1", "arg_extreme shape=[b]x[s]x20 axis=1 last=1")

    def check(self, workload: Workload) -> None:
        super().check(workload)
        if max(workload.shape("shape")) > _MOST:
            raise WorkloadError(
                f"operator 'arg_extreme': shape={workload['shape']} has more than {_MOST} elements "
                "along an axis"
            )

    def output(self, workload: Workload) -> Operand:
        shape, position = workload.extents("shape"), workload.integer("axis")
        kept = (1,) if workload.integer("keepdims") else ()
        return Operand("y", (*shape[:position], *kept, *shape[position + 1 :]), "int64", "output")

    def output_range(
        self, workload: Workload, inputs: Sequence[WholeRange | None]
    ) -> WholeRange | None:
        return 0, workload.shape("shape")[workload.integer("axis")] - 1

    def flops(self, workload: Workload) -> int:
        return 2 * product(workload.shape("shape"))

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        x, position = inputs["x"], workload.integer("axis")
        largest, last = workload.text("kind") == "max", workload.integer("last")
        turned = np.flip(x, position) if last else x
        if x.dtype.kind == "f":
            turned = np.where(np.isnan(turned), -np.inf if largest else np.inf, turned)
        places = (np.argmax if largest else np.argmin)(turned, axis=position)
        places = x.shape[position] - 1 - places if last else places
        first = np.take(x, 0, axis=position)
        places = np.where(first != first, 0, places)
        return np.expand_dims(places, position) if workload.integer("keepdims") else places

    def compute(self, workload: Workload) -> ComputeDefinition:
        """Stages m, p (int32) and y over rows o, elements k (and neighbours t)."""
        shape, position = workload.extents("shape"), workload.integer("axis")
        before, length, behind = around(shape, position)
        o, k = axis("o", before), axis("k", length)
        rest = () if behind == 1 else (axis("t", behind),)
        row, kind = (o, *rest), workload.text("kind")
        one = tuple(a.var for a in row)
        x = load("x", o.var, k.var, *one[1:])
        first = load("x", o.var, 0, *one[1:])
        number: Scalar = x
        if is_floating(workload.dtype):
            number = call("where", call("is_nan", x), float("-inf" if kind == "max" else "inf"), x)
        reached = call("greater_equal" if kind == "max" else "less_equal", x, load("m", *one))
        last = workload.integer("last")
        place = call("where", reached, call("to_int32", Index(k.var)), -1 if last else _MOST)
        index: Scalar = load("p", *one)
        if is_floating(workload.dtype):
            index = call("where", call("is_nan", first), 0, index)
        stages = (
            Stage("m", row, number, (k,), kind, dtype=workload.dtype),
            Stage("p", row, place, (k,), "max" if last else "min", dtype="int32"),
            Stage("y", row, call("to_int64", index), dtype="int64"),
        )
        whole = (before, length, *((behind,) if rest else ()))
        return ComputeDefinition(self.operator, (Tensor("x", whole, workload.dtype),), stages)
