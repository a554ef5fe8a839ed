"""Weights of a model being assembled: each stored once, one after the other, on cache lines.

Large ones may stay in the memory they are in, which is lent: a framework's parameters are not
copied. Invariant: places do not overlap, and are given in the order in which weights come; equal
bytes are stored once, whatever they are called.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.host.memory import aligned_bytes, give_back
from tilesmith.compiler.onnx.files.mapped import is_mapped, release
from tilesmith.compiler.recipe.layouts import PLAIN
from tilesmith.compiler.recipe.memory import ALIGNMENT
from tilesmith.compiler.recipe.program import Place

_LENT = 1 << 16
"""Bytes from which on a weight that is used as it is stays in its own memory."""

_LENT_PACKED = 1 << 24
"""The same for a packed one, whose memory of its own is up to 4 MiB larger."""


_PAGES = 1 << 24
"""Bytes of weights stored, or put together, after which what they came from goes."""


class Constants:
    """Weights, one after the other.

    Args:
        lends: whether large ones may stay in the memory they come in.
    """

    def __init__(self, lends: bool) -> None:
        self.chunks: dict[int, NDArray[np.uint8]] = {}
        self.lent: list[tuple[int, NDArray[np.uint8]]] = []
        self.size = self._read = 0
        self._lends = lends
        self.known: dict[tuple[str, str, object], Place] = {}
        self._alike: dict[tuple[int, bytes], list[tuple[Place, NDArray[np.uint8]]]] = {}
        """What was stored, by its size and some of its bytes."""

    def add(self, named: tuple[str, str], array: NDArray[Any], owner: object) -> Place:
        """The place of an array, stored the first time the name is seen among those of `owner`."""
        key = (*named, owner)
        if key not in self.known:
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            alike = self._alike.get((flat.size, _some(flat)), ())
            known = next((p for p, stored in alike if np.array_equal(stored, flat)), None)
            self.known[key] = known or self._store(flat, packed=named[1] != PLAIN)
        return self.known[key]

    def _store(self, flat: NDArray[np.uint8], packed: bool) -> Place:
        place = Place("constant", self.size)
        least = _LENT_PACKED if packed else _LENT
        aligned = flat.ctypes.data % ALIGNMENT == 0
        if self._lends and flat.size >= least and aligned and not is_mapped(flat):
            self.lent.append((self.size, flat))
        else:
            self.chunks[self.size] = flat
        self._read += flat.size
        if self._read >= _PAGES:
            release()
            self._read = 0
        self.size += flat.size + -flat.size % ALIGNMENT
        self._alike.setdefault((flat.size, _some(flat)), []).append((place, flat))
        return place

    def joined(self) -> NDArray[np.uint8]:
        """Their memory, in which those that are lent are holes: pages that nothing touches."""
        memory = aligned_bytes(max(ALIGNMENT, self.size))[: self.size]
        self._alike.clear()
        release()
        copied = 0
        while self.chunks:  # each is let go as soon as it is copied
            offset, chunk = self.chunks.popitem()
            memory[offset : offset + chunk.size] = chunk
            copied += chunk.size
            if copied >= _PAGES:
                del chunk
                give_back()
                copied = 0
        return memory


def _some(flat: NDArray[np.uint8]) -> bytes:
    """Bytes from all over, by which most weights are told apart."""
    return flat[:: max(1, flat.size // 64)].tobytes()
