"""Products of whole numbers: what matrix products and convolutions of bytes have in common.

    c = sum of to_int32(activation) * to_int32(weight)

The weights' element type may be another than the activations' (`weights=int8` beside
`dtype=uint8`: the products that processors have instructions for). Sums are int32 and wrap around
there; wider whole numbers are summed in their own type, floating ones in float32.
"""

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, is_floating, size_of, to_numpy
from tilesmith.search_space.expressions.scalar import Scalar, call
from tilesmith.search_space.scheduling.compute import Axis, Stage
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.parameter import Parameter
from tilesmith.search_space.workloads.workload import Workload

BYTES = ("uint8", "int8")

WEIGHTS = Parameter(
    "weights", "element type of the weights beside activations of bytes", "", choices=("", *BYTES)
)
""""": the workload's dtype."""


def check_weights(workload: Workload) -> None:
    """Raise `WorkloadError` for weights of bytes beside activations of another kind."""
    if workload.text("weights") and workload.dtype not in BYTES:
        raise WorkloadError(
            f"operator '{workload.operator}': weights={workload['weights']} stand beside "
            f"dtype={' or dtype='.join(BYTES)}, not dtype={workload.dtype}"
        )


def weight_dtype(workload: Workload) -> str:
    """Element type of the weights."""
    return workload.text("weights") or workload.dtype


def sum_dtype(workload: Workload) -> str:
    """Element type of the result before the epilogue: int32 of whole numbers of fewer bits."""
    dtype = workload.dtype
    return dtype if is_floating(dtype) or size_of(dtype) >= 4 else "int32"


def product_stage(
    workload: Workload,
    name: str,
    axes: tuple[Axis, ...],
    activation: Scalar,
    weight: Scalar,
    reduce_axes: tuple[Axis, ...],
) -> Stage:
    """A stage that sums products, whole numbers widened before they are multiplied."""
    dtype = sum_dtype(workload)
    if is_floating(dtype):
        return Stage(name, axes, call("multiply", activation, weight), reduce_axes, "sum")
    if dtype != workload.dtype:
        activation, weight = (call(f"to_{dtype}", x) for x in (activation, weight))
    return Stage(name, axes, call("multiply", activation, weight), reduce_axes, "sum", dtype=dtype)


def widened(array: Array, workload: Workload) -> Array:
    """An operand of the reference, in the type of its sums (floating ones as they are)."""
    dtype = sum_dtype(workload)
    if is_floating(dtype) or not np.issubdtype(array.dtype, np.integer):
        return array
    return array.astype(to_numpy(dtype))
