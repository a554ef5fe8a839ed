"""Layer normalisation.

    a = mean_k x[k];  v = mean_k (x[k] - a)^2
    y[k] = (x[k] - a) / sqrt(v + epsilon) * scale[k] + bias[k]

over the last `axes` axes, which are one row. The variance is taken from differences, in a pass of
its own: E[x^2] - E[x]^2 loses all digits where the mean is large. `rms_norm` is this with a = 0.
"""

from typing import ClassVar

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.expression import ExprLike
from tilesmith.search_space.expressions.ranges import mod
from tilesmith.search_space.expressions.scalar import Scalar, call, load, share_of
from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.operator_parts.fusion import (
    epilogue_dtype,
    epilogue_tensors,
    epilogue_value,
)
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("layer_norm")
class LayerNorm(Template):
    """See the module's docstring."""

    operator = "layer_norm"
    fuses_epilogues = True
    centred = True
    """Whether the mean is taken away first."""
    summary = "layer normalisation over the last axes"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter.shape("shape", "of input and output, e.g. 128x384"),
        Parameter("axes", "how many of the last axes are normalised over", 1),
        Parameter("epsilon", "added to the variance", "1e-5"),
        Parameter("scale", "1 multiplies by an operand `scale`", 1, minimum=0),
        Parameter("bias", "1 adds an operand `bias`", 1, minimum=0),
    )
    examples = (
        "layer_norm shape=5x37",
        "layer_norm shape=3x2x64 bias=0 epsilon=0.001",
        "layer_norm shape=1009 scale=0 bias=0 epilogue=gelu",
        "layer_norm shape=6x3x7 axes=2 bias=0 epilogue=residual",
        "layer_norm shape=7x1",
        "layer_norm shape=2x600 const=bias,scale epilogue=bias",
    )
    varying = (
        "layer_norm shape=[b]x[s]x37",
        "layer_norm shape=[b*s]x600 bias=0 epilogue=residual",
        "layer_norm shape=3x[s]",
    )

    def check(self, workload: Workload) -> None:
        super().check(workload)
        shape, axes = workload.shape("shape"), workload.integer("axes")
        if axes > len(shape):
            raise WorkloadError(
                f"operator '{self.operator}': axes={axes} are more than the {len(shape)} of the "
                f"shape"
            )
        try:
            valid = float(workload.text("epsilon")) >= 0
        except ValueError:
            valid = False
        if not valid:
            raise WorkloadError(
                f"operator '{self.operator}': epsilon={workload['epsilon']} is not a number from "
                f"0 on"
            )

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        shape = workload.extents("shape")
        inner = shape[len(shape) - workload.integer("axes") :]
        operands = [Operand("x", shape, workload.dtype)]
        operands += [
            Operand(name, inner, workload.dtype)
            for name in ("scale", "bias")
            if self._has(workload, name)
        ]
        return tuple(operands)

    def _has(self, workload: Workload, name: str) -> bool:
        """Whether the operator has an operand of this name, and the workload asks for it."""
        return any(p.name == name for p in self.parameters) and bool(workload[name])

    def flops(self, workload: Workload) -> int:
        return 8 * product(workload.shape("shape"))

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        x = inputs["x"]
        over = tuple(range(x.ndim - workload.integer("axes"), x.ndim))
        centred = x - x.mean(axis=over, keepdims=True) if self.centred else x
        variance = (centred**2).mean(axis=over, keepdims=True)
        y = centred / np.sqrt(variance + float(workload.text("epsilon")))
        y = y * inputs["scale"] if "scale" in inputs else y
        return np.asarray(y + inputs["bias"] if "bias" in inputs else y)

    def _rows(self, workload: Workload) -> tuple[ExprLike, ExprLike]:
        """(rows, elements of a row)."""
        shape = workload.extents("shape")
        cut = len(shape) - workload.integer("axes")
        return product(shape[:cut]), product(shape[cut:])

    def compute(self, workload: Workload, late: bool = False) -> ComputeDefinition:
        """Stages total and mean (where it is taken away), squares, inverse (of the deviation), y.

        Args:
            late: multiply by the reciprocal after the scale: what needs no variance comes first.
        """
        rows, length = self._rows(workload)
        r, k = axis("r", rows), axis("k", length)
        centred: Scalar = load("x", r.var, k.var)
        share = share_of(length)
        stages = []
        if self.centred:
            stages.append(Stage("total", (r,), centred, (k,), "sum"))
            mean = call("multiply", load("total", r.var), share)
            stages.append(Stage("mean", (r,), mean))
            centred = call("subtract", centred, load("mean", r.var))
        square = call("multiply", centred, centred)
        stages.append(Stage("squares", (r,), square, (k,), "sum"))
        variance = call("multiply", load("squares", r.var), share)
        deviation = call("sqrt", call("add", variance, float(workload.text("epsilon"))))
        stages.append(Stage("inverse", (r,), call("reciprocal", deviation)))
        factors: list[Scalar] = [load("inverse", r.var)]
        if self._has(workload, "scale"):
            factors.insert(0 if late else 1, load("scale", k.var))
        value = centred
        for factor in factors:
            value = call("multiply", value, factor)
        if self._has(workload, "bias"):
            value = call("add", value, load("bias", k.var))
        channel = mod(k.var, workload.extents("shape")[-1], {"k": k.extent - 1})
        value = epilogue_value(self, workload, (r.var, k.var), value, channel)
        stages.append(Stage("y", (r, k), value, dtype=epilogue_dtype(self, workload)))
        tensors = [Tensor("x", (rows, length), workload.dtype)]
        for operand in self.inputs(workload)[1:]:
            constant = workload.is_constant(operand.name)
            tensors.append(Tensor(operand.name, (length,), operand.dtype, constant))
        tensors += epilogue_tensors(self, workload, (rows, length))
        return ComputeDefinition(self.operator, tuple(tensors), tuple(stages))
