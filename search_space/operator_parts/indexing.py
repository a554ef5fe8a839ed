"""What operators that read or write by index have in common: parameters, checks, places.

Indices are integers known at run time, int64 or int32. Invariant: every place made here is inside
its tensor, whatever the indices are.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.expressions.dtypes import Array
from tilesmith.search_space.expressions.expression import Expr, ExprLike, as_expr, element
from tilesmith.search_space.expressions.scalar import REDUCTIONS, load
from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.scheduling.compute import Axis, Stage, axis
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Parameter, Shaped
from tilesmith.search_space.workloads.workload import Workload

INDEX = Parameter("index", "dtype of the indices", "int64", choices=("int64", "int32"))

DATA = Shaped("x")
INDICES = Shaped("indices", "indices", "index")
UPDATES = Shaped("updates", "indices")
"""Operands of operators that read or write by index."""

COMBINATIONS = {"none": None, "add": "sum", "mul": "product", "max": "max", "min": "min"}
"""ONNX's words for how updates of one element are combined, and the reducers they are."""

REDUCTION = Parameter(
    "reduction", "how an update meets what is there", "none", choices=tuple(COMBINATIONS)
)


def wrapped(indices: Array, extent: int) -> NDArray[np.int64]:
    """Indices from the end made plain, others clipped to the axis, as kernels have them."""
    plain = indices.astype(np.int64)
    return np.where(plain < 0, plain + extent, plain).clip(0, extent - 1)


def combine(x: Array, places: tuple[Any, ...], updates: Array, reduction: str) -> Array:
    """Return a copy of x with updates written at places in order, or reduced into its elements."""
    y = x.copy()
    reducer = COMBINATIONS[reduction]
    if reducer is None:
        y[places] = updates
    else:
        getattr(np, REDUCTIONS[reducer].function).at(y, places, updates)
    return y


def copied(tensor: str, written: Stage) -> Stage:
    """The stage `base` that a scatter begins with: the tensor, copied."""
    axes = tuple(axis(f"x{a}", extent) for a, extent in enumerate(written.tensor_shape))
    value = load(tensor, *(a.var for a in axes))
    return Stage("base", axes, value, dtype=written.dtype, into=written.name)


def check_elements(workload: Workload) -> None:
    """Shapes of data and indices that are used element by element along `axis`."""
    operator, shape, indices = workload.operator, workload.shape("shape"), workload.shape("indices")
    position = workload.integer("axis")
    longer = any(
        n > m for a, (n, m) in enumerate(zip(indices, shape, strict=False)) if a != position
    )
    if len(indices) != len(shape) or longer:
        raise WorkloadError(
            f"operator '{operator}': indices={workload['indices']} do not fit shape="
            f"{workload['shape']}; as many axes are expected, none longer but axis {position}"
        )


def element_places(workload: Workload) -> tuple[tuple[Axis, ...], tuple[Expr, ...]]:
    """Axes d0, d1, ... over the indices, and the place in the data that each of them names."""
    shape, extents = workload.extents("shape"), workload.extents("indices")
    axes = tuple(axis(f"d{a}", extent) for a, extent in enumerate(extents))
    places = [a.var for a in axes]
    position = workload.integer("axis")
    places[position] = element("indices", flat([a.var for a in axes], extents), shape[position])
    return axes, tuple(places)


def flat(indices: Sequence[Expr], extents: Sequence[ExprLike]) -> Expr:
    """The row-major number of an element."""
    total = as_expr(0)
    for index, extent in zip(indices, extents, strict=True):
        total = total * extent + index
    return total


def check_rows(workload: Workload, batch: int, lead: int = 0) -> None:
    """Shapes of data and of indices whose last axis names a place in the data's leading axes
    (behind `batch` axes that both have, or `lead` axes that the data alone has)."""
    operator, shape, indices = workload.operator, workload.shape("shape"), workload.shape("indices")
    if not indices or shape[:batch] != indices[:batch] or len(indices) <= batch:
        raise WorkloadError(
            f"operator '{operator}': shape={workload['shape']} and indices={workload['indices']} "
            f"do not begin with the same {batch} axes"
        )
    if not 1 <= indices[-1] <= len(shape) - batch - lead:
        raise WorkloadError(
            f"operator '{operator}': indices={workload['indices']} name places in {indices[-1]} "
            f"axes; shape={workload['shape']} has {max(0, len(shape) - batch - lead)} of them"
        )


def row_extents(workload: Workload, batch: int) -> tuple[int, ...]:
    """Extents of the axes that a row of indices names a place in."""
    return workload.shape("shape")[batch : batch + workload.shape("indices")[-1]]


def varying_row_extents(workload: Workload, batch: int) -> tuple[ExprLike, ...]:
    """Return `row_extents` where extents may vary; their number may not.

    Raises:
        WorkloadError: it does.
    """
    count = workload.extents("indices")[-1]
    if not isinstance(count, int):
        raise WorkloadError(
            f"operator '{workload.operator}': indices={workload['indices']} name places in a "
            "number of axes that varies; the last extent has to be a number"
        )
    return workload.extents("shape")[batch : batch + count]


def row_places(row: Expr, extents: Sequence[ExprLike]) -> tuple[Expr, ...]:
    """The place that row number `row` of the indices names."""
    count = len(extents)
    return tuple(element("indices", row * count + k, extent) for k, extent in enumerate(extents))


def rows_of(indices: Sequence[ExprLike], batch: int) -> ExprLike:
    """How many places indices of this shape name in each batch."""
    return product(indices[batch:-1])
