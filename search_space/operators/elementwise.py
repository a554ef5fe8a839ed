"""Pointwise expressions over broadcast operands: activations, residual sums, scalings, any chain.

    y[i] = f(x0[i], x1[i], ...)            expression=relu(add(x0,x1))

An operand's shape is aligned right with the output's and may be 1 where it broadcasts. Axes merge
as far as the operands' memory allows (`flattening`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.dtypes import to_numpy
from tilesmith.search_space.errors import WorkloadError
from tilesmith.search_space.flattening import (
    Flattened,
    check_broadcast,
    check_extents,
    flatten,
    product,
)
from tilesmith.search_space.formula import (
    evaluate,
    expanded,
    functions,
    operand_count,
    parse_formula,
)
from tilesmith.search_space.ir.scalar import Scalar, load, operations
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workload import Workload

MAXIMUM_OPERANDS = 8
INTEGER_FUNCTIONS = frozenset({"add", "subtract", "multiply", "maximum", "minimum", "negate"})
"""What is computed on integers too."""


@templates.register("elementwise")
class Elementwise(Template):
    """See the module's docstring."""

    operator = "elementwise"
    summary = "a pointwise expression over broadcast operands"
    parameters = (
        Parameter("shape", "of the output, e.g. 1x64x56x56", text=True),
        Parameter("expression", "of x0, x1, ..., e.g. relu(add(x0,x1)); no blanks", text=True),
        *(
            Parameter(f"x{i}", f"shape of operand x{i} (default: the output's)", "")
            for i in range(MAXIMUM_OPERANDS)
        ),
    )
    examples = (
        "elementwise shape=2x3x5x7 expression=relu(add(x0,x1))",
        "elementwise shape=1009 expression=gelu(x0)",
        "elementwise shape=1 expression=exp(negate(x0))",
        "elementwise shape=scalar expression=multiply(x0,3)",
        "elementwise shape=2x7x33 expression=multiply(add(x0,x1),x2) x1=7x1 x2=33",
        "elementwise shape=3x1x19 expression=where(greater_equal(x0,x1),x0,x1) x0=3x1x1 x1=19",
        "elementwise shape=2x130 expression=add(multiply(x0,x1),2) dtype=int64",
    )

    def check(self, workload: Workload) -> None:
        shape = workload.shape("shape")
        check_extents(self.operator, "shape", shape)
        count = operand_count(self._formula(workload))
        if not 1 <= count <= MAXIMUM_OPERANDS:
            raise WorkloadError(
                f"operator 'elementwise': expression={workload.text('expression')} reads {count} "
                f"operands; 1 to {MAXIMUM_OPERANDS} are possible"
            )
        if not workload.dtype.startswith(("float", "bfloat")):
            named = functions(self._formula(workload))
            if unknown := sorted(named - INTEGER_FUNCTIONS):
                raise WorkloadError(
                    f"operator 'elementwise': '{unknown[0]}' is not for dtype={workload.dtype}; "
                    f"{', '.join(sorted(INTEGER_FUNCTIONS))} are"
                )
        for i in range(MAXIMUM_OPERANDS):
            given = self._operand_shape(workload, i)
            check_extents(self.operator, f"x{i}", given)
            check_broadcast(self.operator, f"x{i}", given, shape)

    def _formula(self, workload: Workload) -> Scalar:
        return parse_formula(workload.text("expression"))

    def _operand_shape(self, workload: Workload, index: int) -> tuple[int, ...]:
        return workload.shape(f"x{index}" if workload.text(f"x{index}") else "shape")

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        return tuple(
            Operand(f"x{i}", self._operand_shape(workload, i), workload.dtype)
            for i in range(operand_count(self._formula(workload)))
        )

    def output(self, workload: Workload) -> Operand:
        return Operand("y", workload.shape("shape"), workload.dtype, "output")

    def flops(self, workload: Workload) -> int:
        formula = self._formula(workload)
        value = expanded(formula, [load("x")] * operand_count(formula))
        return operations(value) * product(workload.shape("shape"))

    def reference(self, workload: Workload, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        arrays = [inputs[operand.name] for operand in self.inputs(workload)]
        value = np.asarray(evaluate(self._formula(workload), arrays))
        whole = np.broadcast_to(value, workload.shape("shape"))
        return whole.astype(to_numpy(workload.dtype))

    def _flat(self, workload: Workload) -> Flattened:
        shapes = [operand.shape for operand in self.inputs(workload)]
        return flatten(workload.shape("shape"), shapes)

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage `y` over the merged axes d0, d1, ..."""
        flat = self._flat(workload)
        axes = tuple(axis(f"d{i}", extent) for i, extent in enumerate(flat.shape))
        tensors, elements = [], []
        for position, operand in enumerate(self.inputs(workload)):
            moving = [a.var for a, v in zip(axes, flat.varies[position], strict=True) if v]
            shape = flat.operand_shape(position)
            constant = workload.is_constant(operand.name)
            tensors.append(Tensor(operand.name, shape, operand.dtype, constant))
            elements.append(load(operand.name, *moving))
        value = expanded(self._formula(workload), elements)
        stage = Stage("y", axes, value, dtype=workload.dtype)
        return ComputeDefinition("elementwise", tuple(tensors), (stage,))
