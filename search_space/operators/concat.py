"""Concatenation along one axis.

    y = x0, x1, ... one behind the other along `axis`

Each operand is copied by a stage of its own into its part of y, in runs as long as the operand's
axes from the concatenated one on.
"""

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.expression import ZERO, as_expr
from tilesmith.search_space.expressions.scalar import load
from tilesmith.search_space.operator_parts.flattening import around
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("concat")
class Concat(Template):
    """See the module's docstring."""

    operator = "concat"
    summary = "operands one behind the other along an axis"
    parameters = (
        Parameter.shape("shape", "of the output, e.g. 1x128x56x56"),
        Parameter("axis", "concatenated along", minimum=0),
        Parameter.shape("parts", "extent of each operand along it, e.g. 64x64"),
    )
    examples = (
        "concat shape=2x19x3x5 axis=1 parts=7x12",
        "concat shape=3x37 axis=1 parts=1x19x17",
        "concat shape=40x3 axis=0 parts=33x7 dtype=int64",
        "concat shape=5x1x2 axis=1 parts=1",
    )
    varying = (
        "concat shape=[b]x[s+1]x20 axis=1 parts=[s]x1",
        "concat shape=[b]x24 axis=1 parts=17x7",
        "concat shape=3x[s+t] axis=1 parts=[s]x[t]",
    )

    def check(self, workload: Workload) -> None:
        super().check(workload)
        shape, parts = workload.shape("shape"), workload.shape("parts")
        position = workload.integer("axis")
        if position >= len(shape) or not parts or sum(parts) != shape[position]:
            raise WorkloadError(
                f"operator 'concat': parts={workload['parts']} do not add up to axis {position} of "
                f"shape={workload['shape']}"
            )

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        shape, position = workload.extents("shape"), workload.integer("axis")
        return tuple(
            Operand(f"x{i}", (*shape[:position], part, *shape[position + 1 :]), workload.dtype)
            for i, part in enumerate(workload.extents("parts"))
        )

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        arrays = [inputs[operand.name] for operand in self.inputs(workload)]
        return np.concatenate(arrays, axis=workload.integer("axis"))

    def compute(self, workload: Workload) -> ComputeDefinition:
        """Stages `y.x0`, `y.x1`, ... write into `y`, the stage of the last operand."""
        rows, length, run = around(workload.extents("shape"), workload.integer("axis"))
        shape = as_expr(rows), as_expr(length * run)
        tensors, stages, offset = [], [], ZERO
        parts = workload.extents("parts")
        for position, part in enumerate(parts):
            r, k = axis("r", rows), axis("k", part * run)
            name = f"x{position}"
            constant = workload.is_constant(name)
            tensors.append(Tensor(name, (rows, part * run), workload.dtype, constant))
            last = position == len(parts) - 1
            store = (r.var, k.var + offset)
            value = load(name, r.var, k.var)
            stages.append(
                Stage(
                    "y" if last else f"y.{name}", (r, k), value, store=store, shape=shape,
                    dtype=workload.dtype, into="" if last else "y",
                )
            )  # fmt: skip
            offset = offset + part * run
        return ComputeDefinition(self.operator, tuple(tensors), tuple(stages))
