"""Attention whose heads lie beside each other, as projections make them and as the next one wants
them: `attention` without the transposes around it.

    q [batch, m, heads k], k [batch, n, heads k], v [batch, n, heads v]  ->  y [batch, m, heads v]

Head h of a row is its numbers h k to (h + 1) k. All else is as in `attention`, masks too.
"""

from dataclasses import replace

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.expression import ExprLike, as_expr
from tilesmith.search_space.expressions.scalar import Load, Scalar, rewrite
from tilesmith.search_space.operator_parts.fusion import tensors_of
from tilesmith.search_space.operators.attention import Attention
from tilesmith.search_space.scheduling.compute import ComputeDefinition
from tilesmith.search_space.workloads.template import Operand, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("packed_attention")
class PackedAttention(Attention):
    """See the module's docstring."""

    operator = "packed_attention"
    summary = "attention whose heads lie beside each other"
    parts = "matmul and softmax"
    examples = (
        "packed_attention m=32 n=48 k=16 heads=3 dtype=float16",
        "packed_attention m=16 n=20 k=64 heads=6 batch=2 mask=row dtype=float16",
    )
    varying = ()

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        return tuple(
            replace(operand, extents=_packed(operand.extents)) if operand.name in "qkv" else operand
            for operand in super().inputs(workload)
        )

    def output(self, workload: Workload) -> Operand:
        operand = super().output(workload)
        return replace(operand, extents=_packed(operand.extents))

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        heads = workload.integer("heads")
        apart = {
            name: array.reshape(*array.shape[:2], heads, -1).swapaxes(1, 2)
            for name, array in inputs.items()
            if name in "qkv"
        }
        heads_last = super().reference(workload, {**inputs, **apart}).swapaxes(1, 2)
        return np.ascontiguousarray(heads_last).reshape(self.output(workload).shape)

    def compute(self, workload: Workload, turn: str = "keys") -> ComputeDefinition:
        """As `Attention.compute`, of operands and a result whose heads are packed."""
        definition = super().compute(workload, turn)
        widths = {
            "q": workload.integer("k"), "k": workload.integer("k"), "v": self.width(workload)
        }  # fmt: skip

        def access(load: Load) -> Scalar:
            if load.buffer not in widths:
                return load
            b, h, row, lane = load.indices
            return Load(load.buffer, (b, row, h * widths[load.buffer] + lane))

        stages = [
            replace(s, value=rewrite(s.value, lambda index: index, access))
            for s in definition.stages
        ]
        b, h, i, e = (a.var for a in stages[-1].axes)
        shape = tuple(as_expr(extent) for extent in self.output(workload).extents)
        stages[-1] = replace(stages[-1], store=(b, i, h * widths["v"] + e), shape=shape)
        return ComputeDefinition(self.operator, tensors_of(self, workload), tuple(stages))


def _packed(extents: tuple[ExprLike, ...]) -> tuple[ExprLike, ...]:
    batch, heads, rows, width = (as_expr(extent) for extent in extents)
    return tuple(e.constant or e for e in (batch, rows, heads * width))
