"""Element types: their names (ONNX's and numpy's spelling), sizes and numpy equivalents.

A dtype is its canonical name, a plain `str`, everywhere in Tilesmith: it is what workload keys,
records and printed programs show. This module is the only place that knows what a name means.
"""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.support.suggestions import unknown

Array = NDArray[Any]

Arrays = Mapping[str, Array]
"""Values of operands, by their names."""

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
"""Element types that workloads are made in."""

_NUMPY |= {
    "int4": np.dtype(ml_dtypes.int4),
    "uint4": np.dtype(ml_dtypes.uint4),
    "int2": np.dtype(ml_dtypes.int2),
    "uint2": np.dtype(ml_dtypes.uint2),
    "float4_e2m1": np.dtype(ml_dtypes.float4_e2m1fn),
    "float8_e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "float8_e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "float8_e8m0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "complex64": np.dtype(np.complex64),
    "complex128": np.dtype(np.complex128),
}

STORED: tuple[str, ...] = tuple(_NUMPY)
"""Element types that tensors of a model may have: each element takes whole bytes of memory, those
of fewer than eight bits too."""

COMPUTED = "float32"
"""What floating numbers of any width are computed in, and engines without integers count in."""

ALIASES: dict[str, str] = {
    **{f"{letter}{bits}": f"float{bits}" for letter in ("f", "fp") for bits in (16, 32, 64)},
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "bf16": "bfloat16",
    **{f"{letter}{bits}": f"int{bits}" for letter in "is" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"{head}e4m3{end}": "float8_e4m3" for head in ("", "f8", "fp8_") for end in ("", "fn")},
    **{f"{head}e5m2": "float8_e5m2" for head in ("", "f8", "fp8_")},
    "float8_e4m3fn": "float8_e4m3",
    "boolean": "bool",
    "i1": "bool",
}
"""What else people call element types (PyTorch, MLIR, other compilers): understood wherever one is
named, never printed."""


def check_dtype(name: str) -> str:
    """The canonical name of an element type that workloads can be made in.

    Raises:
        WorkloadError: there is none of that name.
    """
    known = ALIASES.get(name.lower(), name)
    if known not in NAMES:
        raise unknown("dtype", name, NAMES, WorkloadError, also=ALIASES)
    return known


def to_numpy(name: str) -> np.dtype:
    """The numpy dtype of a dtype name, one of `STORED`."""
    return _NUMPY[name if name in _NUMPY else check_dtype(name)]


def size_of(name: str) -> int:
    """Bytes per element."""
    return int(to_numpy(name).itemsize)


def computed_in(name: str) -> str:
    """The element type of what is computed from elements of a type: float32 of floating ones."""
    return COMPUTED if is_floating(name) else name


def is_floating(name: str) -> bool:
    """Whether the elements are floating-point numbers, which numpy does not know of bfloat16."""
    return name.startswith(("float", "bfloat"))


def is_narrow(name: str) -> bool:
    """Whether the elements are floating-point numbers of fewer than 32 bits.

    They are a form of memory: a load gives a float32, arithmetic and sums are float32, a store
    rounds to the nearest there is, of two equally near ones the even.
    """
    return is_floating(name) and size_of(name) < 4


def nearest(number: float, dtype: np.dtype) -> float:
    """A number as elements of a type hold it: whole ones stay in their range, so that the identity
    of a maximum, minus infinity, is their least."""
    if dtype.kind not in "iu":
        return number
    limits = np.iinfo(dtype)
    return min(max(number, int(limits.min)), int(limits.max))


def epsilon(dtype: np.dtype) -> float:
    """From 1 to the next larger number of a floating element type."""
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


def widened(name: str) -> str:
    """The element type that elements of a dtype are read as: float32 of narrow ones."""
    return COMPUTED if is_narrow(name) else name
