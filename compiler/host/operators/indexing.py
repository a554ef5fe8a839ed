"""Operators that read and write elements by index on the host, in numpy, every index checked."""

import math
from typing import Any

import numpy as np

from tilesmith.compiler.graph.indices import index_fault
from tilesmith.compiler.host.operators.call import OperatorCall, Results, host_operator
from tilesmith.search_space.support.errors import JobError


@host_operator("GatherElements")
def gather_elements(call: OperatorCall) -> Results:
    """y[.., i, ..] = x[.., indices[.., i, ..], ..] along `axis`; negative indices from the end.

    `indices` may be shorter than x along the other axes, and then takes x's first entries there
    (ONNX GatherElements, opset 11); `onnx.reference` wraps indices and takes 32 entries at most.
    """
    x, indices = call.inputs
    axis = int(call.attributes.get("axis", 0)) % x.ndim
    if fault := index_fault(indices, (x.shape[axis],)):
        raise JobError(f"it {fault}")
    if any(n > m for i, (n, m) in enumerate(zip(indices.shape, x.shape, strict=True)) if i != axis):
        raise JobError(f"indices of shape {indices.shape} do not fit data of shape {x.shape}")
    fitting = tuple(slice(n if i != axis else None) for i, n in enumerate(indices.shape))
    return (np.take_along_axis(x[fitting], indices.astype(np.int64), axis=axis),)


_REDUCTIONS: dict[str, Any] = {
    "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


@host_operator("Scatter")
@host_operator("ScatterElements")
def scatter_elements(call: OperatorCall) -> Results:
    """y = x, but y[.., indices[.., i, ..], ..] = updates[.., i, ..] along `axis`, in their order.

    With a `reduction`, what is there is combined with the update. Scatter, of opsets 9 and 10, is
    the same under its first name; `onnx.reference` does not know it.
    """
    x, indices, updates = call.inputs
    axis = int(call.attributes.get("axis", 0)) % x.ndim
    if fault := index_fault(indices, (x.shape[axis],)):
        raise JobError(f"it {fault}")
    if indices.shape != updates.shape:
        raise JobError(f"indices of shape {indices.shape} do not fit updates of {updates.shape}")
    places: list[Any] = list(np.indices(indices.shape, sparse=True))
    places[axis] = indices
    y = x.copy()
    reduction = str(call.attributes.get("reduction", "none"))
    if reduction == "none":
        y[tuple(places)] = updates
    else:
        _REDUCTIONS[reduction].at(y, tuple(places), updates)
    return (y,)


@host_operator("OneHot")
def one_hot(call: OperatorCall) -> Results:
    """(off, on)[a == index] for a of 0 .. depth - 1 along a new `axis`; negatives from the end.

    `depth` is a scalar or a tensor of one element, of which `onnx.reference` knows the scalar only;
    indices out of range are "off" everywhere.
    """
    indices, depth, values = call.inputs
    extent = int(depth.reshape(-1)[0])
    axis = int(call.attributes.get("axis", -1)) % (indices.ndim + 1)
    wanted = np.expand_dims(np.where(indices < 0, indices + extent, indices), axis)
    entries = np.arange(extent).reshape(-1, *[1] * (indices.ndim - axis))
    return (np.where(wanted == entries, values[1], values[0]).astype(values.dtype),)


MOST_ELEMENTS = 1 << 31
"""Of a progression; more would be gigabytes before anything is done with them."""


@host_operator("Range")
def progression(call: OperatorCall) -> Results:
    """start, start + delta, ... below `limit` (above it for a negative delta), of start's type.

    ONNX Range, opset 11: max(ceil((limit - start) / delta), 0) numbers. `onnx.reference` knows
    neither numbers that are not finite nor a delta of 0, and counts them one by one.
    """
    start, limit, delta = call.inputs
    numbers = [value.reshape(-1)[0].item() for value in (start, limit, delta)]
    names = ("start", "limit", "delta")
    for name, number in zip(names, numbers, strict=True):
        if not math.isfinite(number):
            raise JobError(f"its {name} is {number}; start, limit and delta have to be finite")
    first, last, step = numbers
    if step == 0:
        raise JobError("its delta is 0; another number is expected")
    real = isinstance(first, float)
    count = max(math.ceil((last - first) / step) if real else -((first - last) // step), 0)
    if count > MOST_ELEMENTS:
        raise JobError(f"it gives {count} elements; {MOST_ELEMENTS} are possible")
    places = np.arange(count, dtype=np.float64 if real else np.int64)
    return ((first + places * step).astype(start.dtype),)
