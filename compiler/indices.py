"""Indices out of range: found at run time as the standard asks, and as a sentence."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray


def index_fault(indices: NDArray[Any], extent: int) -> str | None:
    """What is wrong with indices of an axis of `extent` entries, to put behind the node's name.

    ONNX (Gather, GatherElements): indices run from -extent to extent - 1. None if all of them do.
    """
    if not indices.size:
        return None
    for index in (int(indices.min()), int(indices.max())):
        if not -extent <= index < extent:
            return (
                f"takes index {index} of an axis with {extent} entries; "
                f"indices run from {-extent} to {extent - 1}"
            )
    return None
