"""Transposes: any permutation of the axes.

    y[i_p0, i_p1, ...] = x[i_0, i_1, ...]            with p = perm, as in numpy.transpose(x, perm)

In memory this is the change from the row-major layout to one with permuted axes, so it is scheduled
as one (`relayout`): neighbours that stay neighbours merge, tiles are transposed in registers.
"""

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.operator_parts.relayout import Relayout, RelayoutTemplate
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Operand, Parameter, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("transpose")
class _Transpose(RelayoutTemplate):
    """See the module's docstring."""

    operator = "transpose"
    summary = "a permutation of the axes"
    parameters = (
        Parameter.shape("shape", "of the input, e.g. 1x128x12x64"),
        Parameter("perm", "input axis of each output axis, e.g. 0x2x1x3", text=True),
    )
    picks = True
    examples = (
        "transpose shape=37x19 perm=1x0",
        "transpose shape=1x7x3x33 perm=0x2x1x3",
        "transpose shape=2x7x3x5 perm=0x2x3x1",
        "transpose shape=5x2x17x3 perm=3x1x2x0",
        "transpose shape=1009 perm=0",
        "transpose shape=18x1x34 perm=2x1x0 dtype=int64",
        "transpose shape=4x1x5 perm=1x0x2",
    )
    varying = (
        "transpose shape=[b]x[s]x3x20 perm=0x2x1x3",
        "transpose shape=[s]x19 perm=1x0",
        "transpose shape=2x[s]x[t] perm=0x2x1",
    )

    def check(self, workload: Workload) -> None:
        super().check(workload)
        shape, order = workload.shape("shape"), workload.shape("perm")
        if sorted(order) != list(range(len(shape))):
            raise WorkloadError(
                f"operator 'transpose': perm={workload['perm']} is no permutation of the "
                f"{len(shape)} axes of shape={workload['shape']}"
            )

    def output(self, workload: Workload) -> Operand:
        shape = workload.extents("shape")
        order = workload.shape("perm")
        return Operand("y", tuple(shape[p] for p in order), workload.dtype, "output")

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        return np.transpose(inputs["x"], workload.shape("perm"))

    def relayout(self, workload: Workload) -> Relayout:
        shape = workload.extents("shape")
        target = Layout.permuted(workload.shape("perm"))
        return Relayout.of(shape, Layout.plain(len(shape)), target)
