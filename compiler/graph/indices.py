"""Indices out of range: found at run time as the standard asks, and as a sentence."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def index_fault(indices: NDArray[Any], extents: Sequence[int]) -> str | None:
    """What is wrong with indices, to put behind the node's name; None if nothing is.

    ONNX (Gather, GatherND, ...): indices of an axis run from -extent to extent - 1. `extents` are
    those of the axes that the indices, row by row, are of in turns.
    """
    if not indices.size:
        return None
    least = min(extents)  # in most cases one look is enough: what is negative is large unsigned
    unsigned = indices.view(f"u{indices.itemsize}")
    if int(np.maximum.reduce(unsigned, axis=None)) < least:
        return None
    if -least <= int(indices.min()) and int(indices.max()) < least:
        return None
    for extent, column in zip(extents, indices.reshape(-1, len(extents)).T, strict=True):
        for index in (int(column.min()), int(column.max())):
            if not -extent <= index < extent:
                return (
                    f"takes index {index} of an axis with {extent} entries; "
                    f"indices run from {-extent} to {extent - 1}"
                )
    return None
