"""Operators that read elements by index on the host, in numpy, with every index checked."""

from __future__ import annotations

import numpy as np

from tilesmith.compiler.host.call import Array, Call, Results
from tilesmith.search_space.errors import JobError


def check_indices(indices: Array, extent: int) -> None:
    """Raise `JobError` where an index is outside -extent .. extent - 1."""
    if not indices.size:
        return
    for index in (int(indices.min()), int(indices.max())):
        if not -extent <= index < extent:
            raise JobError(
                f"it takes index {index} of an axis with {extent} entries; "
                f"indices run from {-extent} to {extent - 1}"
            )


def gather_elements(call: Call) -> Results:
    """y[.., i, ..] = x[.., indices[.., i, ..], ..] along `axis`; negative indices from the end.

    `indices` may be shorter than x along the other axes, and then takes x's first entries there
    (ONNX GatherElements, opset 11); `onnx.reference` wraps indices and takes 32 entries at most.
    """
    x, indices = call.inputs
    axis = int(call.attributes.get("axis", 0)) % x.ndim
    check_indices(indices, x.shape[axis])
    if any(n > m for i, (n, m) in enumerate(zip(indices.shape, x.shape, strict=True)) if i != axis):
        raise JobError(f"indices of shape {indices.shape} do not fit data of shape {x.shape}")
    fitting = tuple(slice(n if i != axis else None) for i, n in enumerate(indices.shape))
    return (np.take_along_axis(x[fitting], indices.astype(np.int64), axis=axis),)
