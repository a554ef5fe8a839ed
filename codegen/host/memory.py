"""Aligned memory for tensors: every buffer starts on a cache line.

Large buffers are carved from page-aligned anonymous maps advised to use huge pages, which keeps
timings steady and spares the TLB.
"""

import contextlib
import ctypes
import mmap
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
_HUGE = 2 << 20


def aligned_bytes(size: int) -> NDArray[np.uint8]:
    """Zeroed bytes, aligned to a cache line (to a page from 1 MiB on)."""
    if size >= 1 << 20:
        return huge_bytes(size)
    raw = np.zeros(size + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


@cache
def machine_bytes() -> int:
    """What this machine can hold at once, in memory and swapped out; a terabyte where unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kibibytes = {
            name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)
        }
        return (kibibytes["MemTotal"] + kibibytes.get("SwapTotal", 0)) << 10
    except (OSError, ValueError, KeyError, IndexError):
        return 1 << 40


def huge_bytes(size: int) -> NDArray[np.uint8]:
    """Zeroed bytes that start at a huge page; huge pages are asked for where there are.

    The map is private: shared ones (Python's default) never get huge pages for the asking.

    Raises:
        MemoryError: the operating system does not give so much, or promises what the machine has
            not: whoever wrote it all would be ended without a word.
    """
    if size > machine_bytes():
        raise MemoryError(f"no room for {size} bytes")
    whole = -(-size // _HUGE) * _HUGE + _HUGE
    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    try:
        area = mmap.mmap(-1, whole, **flags)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no room for {size} bytes") from error
    with contextlib.suppress(AttributeError, OSError):
        area.madvise(mmap.MADV_HUGEPAGE)
    start = -np.frombuffer(area, dtype=np.uint8).ctypes.data % _HUGE
    return np.frombuffer(area, dtype=np.uint8, count=size, offset=start)


def give_back() -> None:
    """Return freed memory to the operating system, where the C library keeps some for later.

    glibc does: blocks of up to 32 MiB stay in its heap once one of that size was freed
    (M_MMAP_THRESHOLD in mallopt(3)), which is what freed weights mostly are.
    """
    with contextlib.suppress(OSError, AttributeError):  # there is a C library without it
        ctypes.CDLL(None).malloc_trim(0)


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A zeroed array on a cache line."""
    count = int(np.prod(shape, dtype=np.int64))
    return (
        aligned_bytes(max(1, count) * dtype.itemsize)[: count * dtype.itemsize]
        .view(dtype)
        .reshape(shape)
    )


def aligned_copy(array: NDArray[Any]) -> NDArray[Any]:
    """A contiguous copy on a cache line (the array itself if it is already both)."""
    if array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0:
        return array
    result = aligned_empty(array.shape, array.dtype)
    result[...] = array
    return result
