"""Arrays as text, for models that are kept as JSON: base64 of little-endian numbers."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray


def text_of(values: NDArray[Any], dtype: np.dtype[Any]) -> str:
    """An array's numbers as `dtype`, in order; its shape is not kept."""
    return base64.b64encode(np.ascontiguousarray(values, dtype).tobytes()).decode()


def array_of(text: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Undo `text_of`, flat; `ValueError` or `TypeError` for anything else."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype)
