"""Element types: their names (ONNX's and numpy's spelling), sizes and numpy equivalents.

A dtype is its canonical name, a plain `str`, everywhere in Tilesmith: it is what workload keys,
records and printed programs show. This module is the only place that knows what a name means.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tilesmith.search_space.errors import WorkloadError

_NUMPY: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "int64": np.dtype(np.int64),
    "int32": np.dtype(np.int32),
    "int16": np.dtype(np.int16),
    "int8": np.dtype(np.int8),
    "uint64": np.dtype(np.uint64),
    "uint32": np.dtype(np.uint32),
    "uint16": np.dtype(np.uint16),
    "uint8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}

NAMES: tuple[str, ...] = tuple(_NUMPY)


def check_dtype(name: str) -> str:
    """Return `name` if it is a known dtype; raise `WorkloadError` otherwise."""
    if name not in _NUMPY:
        raise WorkloadError(f"unknown dtype '{name}'; one of {', '.join(NAMES)} is expected")
    return name


def to_numpy(name: str) -> np.dtype:
    """The numpy dtype of a dtype name."""
    return _NUMPY[check_dtype(name)]


def size_of(name: str) -> int:
    """Bytes per element."""
    return int(to_numpy(name).itemsize)


def is_floating(name: str) -> bool:
    """Whether the elements are floating-point numbers; numpy does not know that of bfloat16."""
    return not np.issubdtype(to_numpy(name), np.integer) and name != "bool"
