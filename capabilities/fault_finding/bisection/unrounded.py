"""What a kernel's result is before it is rounded: what tells a rounding from a wrong rounding.

    ... quantise_uint8        becomes        ... x p[0] + p[1]
    to_uint8(add(round(x),z))                add(x,z)
    dtype=bfloat16                           dtype=float32

All by the template's reference, with every rounding inside as it is.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.host.kernels import run_kernel
from tilesmith.compiler.numerics.quantised import RANGES
from tilesmith.search_space.expressions.dtypes import is_narrow
from tilesmith.search_space.expressions.scalar import CONVERSIONS, Call, Scalar
from tilesmith.search_space.operator_parts.formula import formula_text, parse_formula
from tilesmith.search_space.workloads.epilogue import STEPS
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

Array = NDArray[Any]


def unrounded(node: Node, values: Mapping[str, Array]) -> Array | None:
    """Steps, saturated and not rounded, of bytes; float32 of narrow floats; in the template's
    logical shape. None of a kernel that does not end in a rounding to one of these.

    Args:
        values: what it reads, by tensor.

    Raises:
        JobError: as `run_kernel`.
    """
    workload = node.workload
    if workload is None:
        return None
    dtype = template_of(workload.operator).output(workload).dtype
    if is_narrow(dtype):
        wide = {name: _widened(value) for name, value in values.items()}
        return run_kernel(replace(node, workload=replace(workload, dtype="float32")), wide)
    if dtype not in RANGES:
        return None
    low, high = RANGES[dtype]
    if workload.epilogue and STEPS[workload.epilogue[-1].name].gives == dtype:
        *inputs, pair = node.inputs
        last = f"{workload.epilogue[-1].name}{len(workload.epilogue) - 1}"
        before = replace(
            workload, epilogue=workload.epilogue[:-1],
            constants=tuple(name for name in workload.constants if name != last),
        )  # fmt: skip
        exact = run_kernel(replace(node, workload=before, inputs=tuple(inputs)), values)
        factor, zero = np.asarray(values[pair], np.float64).reshape(-1)
        return np.asarray(np.clip(exact * factor + zero, low, high))
    formula = _formula(workload)
    if formula is None:
        return None
    parameters = {**dict(workload.parameters), "expression": formula_text(formula)}
    before = replace(workload, parameters=tuple(sorted(parameters.items())), dtype="float32")
    return np.asarray(np.clip(run_kernel(replace(node, workload=before), values), low, high))


def _widened(value: Array) -> Array:
    narrow = is_narrow(np.asarray(value).dtype.name)
    return np.asarray(value).astype(np.float32) if narrow else value


def _formula(workload: Workload) -> Scalar | None:
    """An elementwise kernel's formula without its last rounding."""
    if workload.operator != "elementwise":
        return None
    match parse_formula(workload.text("expression")):
        case Call(name, (value,)) if name in CONVERSIONS:
            return _without_round(value)
    return None


def _without_round(value: Scalar) -> Scalar | None:
    match value:
        case Call("round", (inner,)):
            return inner
        case Call("add", (inner, zero)):
            within = _without_round(inner)
            return None if within is None else Call("add", (within, zero))
    return None
