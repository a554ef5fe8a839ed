"""Softmax and its logarithm along one axis.

    m = max_k x[k];  e[k] = exp(x[k] - m);  s = sum_k e[k];  y[k] = e[k] / s
    with log=1:                                              y[k] = (x[k] - m) - log(s)

Each is a stage of its own, so that a schedule may keep e or compute it twice.
"""

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import Scalar, call, load
from tilesmith.search_space.operator_parts.flattening import around, product
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.workloads.template import Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("softmax")
class Softmax(Template):
    """See the module's docstring."""

    operator = "softmax"
    summary = "softmax or log-softmax along one axis"
    parameters = (
        Parameter.shape("shape", "of input and output, e.g. 1536x128"),
        Parameter("axis", "normalised over; negative counts from the end", -1, -8, of="shape"),
        Parameter("log", "1 gives the logarithm", 0, minimum=0),
    )
    examples = (
        "softmax shape=5x37",
        "softmax shape=3x64",
        "softmax shape=7x1",
        "softmax shape=1009",
        "softmax shape=2x3x131 log=1",
        "softmax shape=2x11x19 axis=1",
        "softmax shape=13x5 axis=0 log=1",
    )
    varying = (
        "softmax shape=[b]x3x[s]",
        "softmax shape=[n]x48 log=1",
        "softmax shape=2x[s]x[t] axis=1",
    )

    def flops(self, workload: Workload) -> int:
        return 5 * product(workload.shape("shape"))

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        x, position = inputs["x"], workload.integer("axis")
        shifted = x - x.max(axis=position, keepdims=True)
        total = np.exp(shifted).sum(axis=position, keepdims=True)
        log = workload.integer("log")
        return np.asarray(shifted - np.log(total) if log else np.exp(shifted) / total)

    def compute(self, workload: Workload, again: bool = False) -> ComputeDefinition:
        """Stages m, e, s, t (1/s or log s) and y over rows r, columns k (and neighbours i).

        Args:
            again: powers are not kept but computed twice, as exp(x[k] + n), n = -m; there is no
                stage e then.
        """
        shape = workload.extents("shape")
        rows, length, neighbours = around(shape, workload.integer("axis") % len(shape))
        r, k = axis("r", rows), axis("k", length)
        across = () if neighbours == 1 else (axis("i", neighbours),)
        row = (r, *across)
        one = tuple(a.var for a in row)
        x, e = self._load("x", r, k.var, across), self._load("e", r, k.var, across)
        m, t = load("m", *one), load("t", *one)
        log = workload.integer("log")
        power = call("exp", call("subtract", x, m))
        if again:
            e = call("exp", call("add", x, load("n", *one)))
        value = call("subtract", call("subtract", x, m), t) if log else call("multiply", e, t)
        between = Stage("e", (r, k, *across), power)
        if again:
            between = Stage("n", row, call("negate", m))
        stages = (
            Stage("m", row, x, (k,), "max"),
            between,
            Stage("s", row, e, (k,), "sum"),
            Stage("t", row, call("log" if log else "reciprocal", load("s", *one))),
            Stage("y", (r, k, *across), value),
        )
        whole = (rows, length, neighbours) if across else (rows, length)
        return ComputeDefinition("softmax", (Tensor("x", whole, workload.dtype),), stages)

    def _load(self, name: str, r: Axis, k: Expr, across: tuple[Axis, ...]) -> Scalar:
        return load(name, r.var, k, *(a.var for a in across))
