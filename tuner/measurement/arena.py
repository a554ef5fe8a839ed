"""Buffers at fixed addresses in huge pages, so that a kernel's time does not depend on malloc's
mood.

With buffers from malloc repeated timings of one kernel drifted by 4-6 % (at worst 30 %: physical
pages that collide in the caches); from one arena of huge pages they repeat to 1.5 %.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.host.memory import huge_bytes

_HUGE = 2 << 20
_ALIGNMENT = 256


class BumpAllocator:
    """A bump allocator; grows by whole mappings, is emptied by `reset`."""

    def __init__(self, size: int = 64 << 20) -> None:
        self._block = _mapping(size)
        self._used = 0
        self._overflow: list[NDArray[np.uint8]] = []

    def reset(self) -> None:
        """Free all buffers; arrays that were handed out must not be used afterwards."""
        if self._overflow:
            needed = self._used + sum(len(block) for block in self._overflow)
            self._overflow = []
            self._block = _mapping(needed)
        self._used = 0

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> NDArray[Any]:
        """An uninitialised contiguous array, 256-byte aligned."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        start = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if start + size > len(self._block):
            block = _mapping(size)
            self._overflow.append(block)
            return block[:size].view(dtype).reshape(shape)
        self._used = start + size
        return self._block[start : start + size].view(dtype).reshape(shape)

    def copy(self, array: NDArray[Any]) -> NDArray[Any]:
        """`array`'s contents, row-major, in the arena."""
        placed = self.empty(array.shape, array.dtype)
        placed[...] = array
        return placed


def _mapping(size: int) -> NDArray[np.uint8]:
    """Anonymous memory that starts at a huge page; huge pages are asked for where there are."""
    return huge_bytes(-(-max(size, 1) // _HUGE) * _HUGE)
