"""Reductions over any axes: sum, mean, maximum, minimum, product.

    y[kept axes] = reduce over the others of x

Neighbouring axes of one kind merge first.
"""

from typing import Any

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays, is_floating
from tilesmith.search_space.expressions.expression import ExprLike
from tilesmith.search_space.expressions.ranges import mod
from tilesmith.search_space.expressions.scalar import Scalar, call, load, share_of
from tilesmith.search_space.operator_parts.flattening import flatten, product
from tilesmith.search_space.operator_parts.fusion import epilogue_tensors, epilogue_value
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import ParameterValue, Workload, shape_text

KINDS = ("sum", "mean", "max", "min", "product")


@templates.register("reduce")
class Reduce(Template):
    """See the module's docstring."""

    operator = "reduce"
    fuses_epilogues = True
    summary = "sum, mean, maximum, minimum or product over axes"
    parameters = (
        Parameter.shape("shape", "of the input, e.g. 1x64x56x56"),
        Parameter("kind", "what is done", "sum", choices=KINDS),
        Parameter("axes", "reduced over, e.g. 2x3 (default: all)", ""),
        Parameter("keepdims", "1 leaves reduced axes in the shape, as 1", 1, minimum=0),
    )
    examples = (
        "reduce shape=5x37 axes=1",
        "reduce shape=3x7x131 kind=max axes=2 keepdims=0 epilogue=relu",
        "reduce shape=37x5 kind=mean axes=0 keepdims=0",
        "reduce shape=2x3x5x7 kind=product axes=0x2",
        "reduce shape=3x5x19 kind=mean axes=0x2 epilogue=exp",
        "reduce shape=1009 kind=min",
        "reduce shape=4x1x1 kind=mean axes=1x2 epilogue=residual",
        "reduce shape=2x11x40 axes=1 keepdims=0 epilogue=bias",
        "reduce shape=3x50 kind=max axes=1 dtype=int64",
        "reduce shape=3x50 axes=1 dtype=int32",
    )
    varying = (
        "reduce shape=[b]x3x[s] kind=max axes=2 keepdims=0 epilogue=relu",
        "reduce shape=[b]x[s]x48 axes=1 keepdims=0 epilogue=bias",
        "reduce shape=[b]x5x[s] kind=mean axes=1",
        "reduce shape=[n] kind=min",
        "reduce shape=[b]x[s]x20 kind=mean axes=1 keepdims=0",
    )

    def canonical(self, values: dict[str, ParameterValue]) -> dict[str, ParameterValue]:
        every = shape_text(range(len(str(values["shape"]).split("x"))))
        return values | ({"axes": ""} if values["axes"] == every else {})

    def check(self, workload: Workload) -> None:
        super().check(workload)
        shape, axes = workload.shape("shape"), workload.shape("axes")
        if any(a >= len(shape) for a in axes) or len(set(axes)) != len(axes):
            raise WorkloadError(
                f"operator 'reduce': axes={workload['axes']} are not distinct axes of the "
                f"{len(shape)} in shape={workload['shape']}"
            )
        if workload.text("kind") == "mean" and not is_floating(workload.dtype):
            raise WorkloadError(f"operator 'reduce': no mean of dtype={workload.dtype}")

        per_channel = any(step.kind.operand == "channel" for step in workload.epilogue)
        if per_channel and not self.output(workload).shape:
            raise WorkloadError(
                "operator 'reduce': a single number has no channels for its epilogue"
            )

    def _axes(self, workload: Workload) -> tuple[int, ...]:
        return workload.shape("axes") or tuple(range(len(workload.extents("shape"))))

    def output(self, workload: Workload) -> Operand:
        over, keep = self._axes(workload), workload.integer("keepdims")
        pairs = enumerate(workload.extents("shape"))
        shape = tuple(1 if a in over else extent for a, extent in pairs if keep or a not in over)
        return Operand("y", shape, self.result_dtype(workload), "output")

    def flops(self, workload: Workload) -> int:
        return product(workload.shape("shape"))

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        names: dict[str, Any] = {"mean": np.mean, "max": np.max, "min": np.min}
        names |= {"sum": np.sum, "product": np.prod}
        over, keep = self._axes(workload), bool(workload.integer("keepdims"))
        reduced = np.asarray(names[workload.text("kind")](inputs["x"], axis=over, keepdims=keep))
        return reduced.astype(inputs["x"].dtype) if reduced.dtype.kind in "iu" else reduced

    def _merged(self, workload: Workload) -> tuple[tuple[Axis, ...], tuple[bool, ...]]:
        """Merged axes d0, d1, ... and which of them are reduced."""
        shape, over = workload.extents("shape"), self._axes(workload)
        mask: tuple[ExprLike, ...] = tuple(1 if a in over else e for a, e in enumerate(shape))
        flat = flatten(shape, (mask,))
        axes = tuple(axis(f"d{i}", extent) for i, extent in enumerate(flat.shape))
        reduced = tuple(not varies for varies in flat.varies[0])
        return axes, (True,) if product(shape) == 1 else reduced

    def compute(self, workload: Workload) -> ComputeDefinition:
        """Stage `total`; `y` scales a mean and applies the epilogue (absent if neither)."""
        axes, reduced = self._merged(workload)
        kept = tuple(a for a, gone in zip(axes, reduced, strict=True) if not gone)
        kept = kept or (axis("one", 1),)
        over = tuple(a for a, gone in zip(axes, reduced, strict=True) if gone)
        kind = workload.text("kind")
        element: Scalar = load("x", *(a.var for a in axes))
        reducer = ("sum" if kind == "mean" else kind) if over else None
        total = Stage("total", kept, element, over, reducer, dtype=workload.dtype)
        stages = [total]
        indices = tuple(a.var for a in kept)
        extents = tuple(a.extent for a in kept)
        if kind == "mean" or workload.epilogue:
            value: Scalar = load("total", *indices)
            if kind == "mean":
                value = call("multiply", value, share_of(product([a.extent for a in over])))
            last = (self.output(workload).extents or (1,))[-1]
            channel = mod(indices[-1], last, {kept[-1].name: kept[-1].extent - 1})
            value = epilogue_value(self, workload, indices, value, channel)
            stages.append(Stage("y", kept, value, dtype=self.result_dtype(workload)))
        x = Tensor("x", tuple(a.extent for a in axes), workload.dtype)
        tensors = (x, *epilogue_tensors(self, workload, extents))
        return ComputeDefinition("reduce", tensors, tuple(stages))
