"""Operators that read and write elements by index on the host, in numpy, every index checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilesmith.compiler.host.call import Call, Results
from tilesmith.compiler.indices import index_fault
from tilesmith.search_space.errors import JobError


def gather_elements(call: Call) -> Results:
    """y[.., i, ..] = x[.., indices[.., i, ..], ..] along `axis`; negative indices from the end.

    `indices` may be shorter than x along the other axes, and then takes x's first entries there
    (ONNX GatherElements, opset 11); `onnx.reference` wraps indices and takes 32 entries at most.
    """
    x, indices = call.inputs
    axis = int(call.attributes.get("axis", 0)) % x.ndim
    if fault := index_fault(indices, x.shape[axis]):
        raise JobError(f"it {fault}")
    if any(n > m for i, (n, m) in enumerate(zip(indices.shape, x.shape, strict=True)) if i != axis):
        raise JobError(f"indices of shape {indices.shape} do not fit data of shape {x.shape}")
    fitting = tuple(slice(n if i != axis else None) for i, n in enumerate(indices.shape))
    return (np.take_along_axis(x[fitting], indices.astype(np.int64), axis=axis),)


_REDUCTIONS: dict[str, Any] = {
    "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


def scatter_elements(call: Call) -> Results:
    """y = x, but y[.., indices[.., i, ..], ..] = updates[.., i, ..] along `axis`, in their order.

    With a `reduction`, what is there is combined with the update. Scatter, of opsets 9 and 10, is
    the same under its first name; `onnx.reference` does not know it.
    """
    x, indices, updates = call.inputs
    axis = int(call.attributes.get("axis", 0)) % x.ndim
    if fault := index_fault(indices, x.shape[axis]):
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


def one_hot(call: Call) -> Results:
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
