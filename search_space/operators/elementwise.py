"""Pointwise expressions over broadcast operands: activations, residual sums, scalings, any chain.

    y[i] = f(x0[i], x1[i], ...)            expression=relu(add(x0,x1))

An operand's shape is aligned right with the output's and may be 1 where it broadcasts. Axes merge
as far as the operands' memory allows (`flattening`).
"""

from collections.abc import Sequence

import numpy as np

from tilesmith.search_space.expressions.dtypes import (
    Array,
    Arrays,
    check_dtype,
    is_floating,
    to_numpy,
)
from tilesmith.search_space.expressions.ranges import WholeRange
from tilesmith.search_space.expressions.scalar import Scalar, load, operations
from tilesmith.search_space.operator_parts.flattening import (
    Flattened,
    check_broadcast,
    flatten,
    product,
)
from tilesmith.search_space.operator_parts.formula import (
    evaluate,
    expanded,
    operand_count,
    parse_formula,
)
from tilesmith.search_space.operator_parts.formula_ranges import range_of
from tilesmith.search_space.operator_parts.formula_types import NUMBER, type_of
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import ParameterValue, Workload

MAXIMUM_OPERANDS = 8


@templates.register("elementwise")
class Elementwise(Template):
    """See the module's docstring."""

    operator = "elementwise"
    summary = "a pointwise expression over broadcast operands"
    parameters = (
        Parameter.shape("shape", "of the output, e.g. 1x64x56x56"),
        Parameter("expression", "of x0, x1, ..., e.g. relu(add(x0,x1)); no blanks", text=True),
        *(
            Parameter(
                f"x{i}",
                f"shape of operand x{i} (default: the output's)",
                "",
                varies=True,
                positive=True,
            )
            for i in range(MAXIMUM_OPERANDS)
        ),
        Parameter("types", "of the operands, e.g. bool,float32 (default: all dtype)", ""),
    )
    examples = (
        "elementwise shape=2x3x5x7 expression=relu(add(x0,x1))",
        "elementwise shape=1009 expression=gelu(x0)",
        "elementwise shape=1 expression=exp(negate(x0))",
        "elementwise shape=scalar expression=multiply(x0,3)",
        "elementwise shape=2x7x33 expression=multiply(add(x0,x1),x2) x1=7x1 x2=33",
        "elementwise shape=3x1x19 expression=where(greater_equal(x0,x1),x0,x1) x0=3x1x1 x1=19",
        "elementwise shape=2x130 expression=add(multiply(x0,x1),2) dtype=int64",
        "elementwise shape=5x19 expression=where(x0,x1,x2) x0=19 x2=1 types=bool,float32,float32",
        "elementwise shape=3x37 expression=or(less(x0,x1),is_nan(x0)) x1=37 types=float32,float32 "
        "dtype=bool",
        "elementwise shape=2x53 expression=add(sin(x0),cos(multiply(x0,x1))) x1=53",
        "elementwise shape=67 expression=and(x0,not(equal(x1,3))) types=bool,int64 dtype=bool",
        "elementwise shape=41 expression=divide(modulo(x0,x1),to_int32(x2)) "
        "types=int32,int32,float32 dtype=int32",
        "elementwise shape=7x9 expression=to_int64(multiply(to_float32(x0),x1)) x0=7x1 "
        "types=bool,float32 dtype=int64",
    )
    varying = (
        "elementwise shape=[n] expression=gelu(x0)",
        "elementwise shape=[b]x3x[s] expression=multiply(add(x0,x1),x2) x1=3x1 x2=[s]",
        "elementwise shape=[b*s]x48 expression=add(x0,x1) x1=48",
        "elementwise shape=3x[s]x[s] expression=where(x0,x1,x2) x0=[s]x[s] x2=1 "
        "types=bool,float32,float32",
    )

    def canonical(self, values: dict[str, ParameterValue]) -> dict[str, ParameterValue]:
        operands = (f"x{i}" for i in range(MAXIMUM_OPERANDS))
        return values | {x: "" for x in operands if values[x] == values["shape"]}

    def check(self, workload: Workload) -> None:
        super().check(workload)
        count = operand_count(self._formula(workload))
        if not 1 <= count <= MAXIMUM_OPERANDS:
            raise WorkloadError(
                f"operator 'elementwise': expression={workload.text('expression')} reads {count} "
                f"operands; 1 to {MAXIMUM_OPERANDS} are possible"
            )
        self._check_types(workload)
        for i in range(MAXIMUM_OPERANDS):
            given = workload.shape(self._shape_name(workload, i))
            check_broadcast(self.operator, f"x{i}", given, workload.shape("shape"))

    def _check_types(self, workload: Workload) -> None:
        """The formula's type has to be the output's; a flag may be a floating number."""
        formula, wanted = self._formula(workload), workload.dtype
        dtypes = self.dtypes(workload)
        if len(dtypes) != operand_count(formula):
            raise WorkloadError(
                f"operator 'elementwise': types={workload.text('types')} names {len(dtypes)} "
                f"operands; expression={workload.text('expression')} reads {operand_count(formula)}"
            )
        try:
            formula_type = type_of(formula, [check_dtype(dtype) for dtype in dtypes])
        except WorkloadError as error:
            raise WorkloadError(f"operator 'elementwise': {error}") from error
        if formula_type != wanted and not (
            formula_type in (NUMBER, "bool") and is_floating(wanted)
        ):
            raise WorkloadError(
                f"operator 'elementwise': expression={workload.text('expression')} gives "
                f"{formula_type or 'float32'}, not dtype={wanted}; convert it with to_{wanted}(...)"
            )

    def dtypes(self, workload: Workload) -> tuple[str, ...]:
        """Element types of x0, x1, ..."""
        given = workload.text("types")
        if given:
            return tuple(given.split(","))
        return (workload.dtype,) * operand_count(self._formula(workload))

    def _formula(self, workload: Workload) -> Scalar:
        return parse_formula(workload.text("expression"))

    def _shape_name(self, workload: Workload, index: int) -> str:
        """The parameter that says an operand's shape."""
        return f"x{index}" if workload.text(f"x{index}") else "shape"

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        return tuple(
            Operand(f"x{i}", workload.extents(self._shape_name(workload, i)), dtype)
            for i, dtype in enumerate(self.dtypes(workload))
        )

    def flops(self, workload: Workload) -> int:
        formula = self._formula(workload)
        value = expanded(formula, [load("x")] * operand_count(formula))
        return operations(value) * product(workload.shape("shape"))

    def output_range(
        self, workload: Workload, inputs: Sequence[WholeRange | None]
    ) -> WholeRange | None:
        return range_of(self._formula(workload), inputs, self.dtypes(workload))

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        arrays = [inputs[operand.name] for operand in self.inputs(workload)]
        value = np.asarray(evaluate(self._formula(workload), arrays))
        whole = np.broadcast_to(value, workload.shape("shape"))
        return whole.astype(to_numpy(workload.dtype))

    def _flat(self, workload: Workload) -> Flattened:
        shapes = [operand.extents for operand in self.inputs(workload)]
        return flatten(workload.extents("shape"), shapes)

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
