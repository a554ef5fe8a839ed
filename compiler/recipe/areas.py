"""`RunMemory`: what a run works in, region by region.

Activations are the run's own, weights its executable's. Tensors that a run updates in place lie in
the caller's memory, which may be another from run to run: its region is the callers' arrays, one
behind the other, each from a cache line on.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.recipe.memory import ALIGNMENT
from tilesmith.compiler.recipe.program import Place, TensorRef, view_of
from tilesmith.search_space.expressions.dtypes import to_numpy

Bytes = NDArray[np.uint8]

NOTHING: Bytes = np.zeros(0, dtype=np.uint8)
"""No memory at all."""


def starts_of(sizes: Sequence[int]) -> tuple[int, ...]:
    """Where arrays of these sizes begin in the region "caller", and where it ends."""
    return (0, *accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes))


@dataclass(frozen=True, eq=False)
class RunMemory:
    """What a run works in.

    Attributes:
        arena: activations.
        constants: weights.
        held: what follows from the sizes of a model whose sizes vary; None for any other.
        lent: weights in memory of their own, by their place among the constants, in order.
        callers: the bytes of arrays that a run updates in place.
    """

    arena: Bytes
    constants: Bytes
    held: Bytes | None = None
    lent: tuple[tuple[int, Bytes], ...] = ()
    callers: tuple[Bytes, ...] = ()

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return starts_of([array.size for array in self.callers])[:-1]

    @cached_property
    def _bases(self) -> dict[int, int]:
        """Addresses asked for so far, by array: numpy takes a microsecond for each question."""
        return {}

    def of(self, place: Place) -> tuple[Bytes, int]:
        """The memory that a place is in, and its distance from the start."""
        if place.region == "caller":
            number = bisect_right(self._starts, place.offset) - 1
            return self.callers[number], place.offset - self._starts[number]
        if place.region == "constant":
            return self._weights(place.offset)
        if place.region == "held" and self.held is not None:
            return self.held, place.offset
        return self.arena, place.offset

    def _weights(self, offset: int) -> tuple[Bytes, int]:
        number = bisect_right(self.lent, offset, key=lambda lent: lent[0]) - 1
        if number >= 0:
            start, memory = self.lent[number]
            if offset < start + memory.size:
                return memory, offset - start
        return self.constants, offset

    def address(self, place: Place) -> int:
        """Of a place's first byte; 0 for none."""
        if place.region == "none":
            return 0
        memory, offset = self.of(place)
        base = self._bases.get(id(memory))
        if base is None:
            base = self._bases[id(memory)] = int(memory.ctypes.data)
        return base + offset

    def view(self, place: Place, dtype: np.dtype[Any], shape: Any) -> NDArray[Any]:
        """The tensor at a place, as an array."""
        memory, offset = self.of(place)
        return view_of(memory, offset, dtype, shape)

    def alike(self, place: Place, nbytes: int) -> bool:
        """Whether all that run a program have the same bytes at a place."""
        return True

    def tensor(self, ref: TensorRef) -> NDArray[Any]:
        """A tensor that lies in memory, as its readers outside kernels have it."""
        stored = self.view(ref.place, to_numpy(ref.stored or ref.info.dtype), ref.info.dims)
        return stored.astype(to_numpy(ref.info.dtype)) if ref.stored else stored
