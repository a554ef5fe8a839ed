"""Operators that read elements by index on the host, in numpy, with every index checked."""

from __future__ import annotations

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
