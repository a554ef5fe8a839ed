"""A stream executed row by row, with who wrote each byte last, and stretches of it again.

Invariant: a stretch that is run again begins with the memory that it began with first.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.codegen.isa import instructions as isa
from tilesmith.families.trainium.codegen.isa.memory import HbmView, Tile
from tilesmith.families.trainium.simulator.execution.functional import FunctionalCore
from tilesmith.search_space.expressions.dtypes import size_of, to_numpy

Array = NDArray[Any]
Stands = Tile | HbmView

RESULTS = ("out", "out2")
NOBODY = -1


class Replay:
    """One execution of a stream.

    Args:
        hbm: the bytes of each tensor, in the stream's order; not changed.
    """

    def __init__(self, stream: isa.InstructionStream, hbm: Sequence[Array]) -> None:
        self.stream = stream
        self.machine = FunctionalCore(stream, [np.array(part) for part in hbm])
        self.authors: list[Array] | None = None
        self._before: tuple[list[Array], list[Array]] | None = None

    # -- running ------------------------------------------------------------------------------
    def step(self, instruction: isa.Instruction) -> None:
        """Execute one instruction."""
        if instruction.op == isa.Opcode.COLLECTIVE:
            return
        with np.errstate(all="ignore"):
            getattr(self.machine, instruction.op.name.lower())(instruction)
        if self.authors is not None:
            for name in RESULTS:
                if name in instruction.operands:
                    self.bytes_of(instruction.operands[name])[...] = instruction.index

    def sign(self) -> None:
        """From now on, write down who writes what."""
        memories = (*self.machine.hbm, *self.machine.chip.values())
        self.authors = [np.full(part.shape, NOBODY, np.int32) for part in memories]

    def keep(self) -> None:
        """Remember the memory as it is."""
        self._before = (
            [np.array(part) for part in self.machine.hbm],
            [np.array(part) for part in self.machine.chip.values()],
        )

    def again(self, rows: Iterable[isa.Instruction]) -> None:
        """Run instructions from what was kept."""
        assert self._before is not None, "keep() comes first"
        for memory, before in zip(self.machine.hbm, self._before[0], strict=True):
            memory[...] = before
        for memory, before in zip(self.machine.chip.values(), self._before[1], strict=True):
            memory[...] = before
        for row in rows:
            self.step(row)

    # -- looking ------------------------------------------------------------------------------
    def bytes_of(self, access: isa.AccessPattern) -> Array:
        """Who wrote each byte of an access, (partitions, free..., bytes of an element)."""
        assert self.authors is not None, "sign() comes first"
        size = size_of(access.dtype)
        free = [(count, stride * size) for count, stride in access.dims[1:]]
        if access.space == isa.Space.HBM:
            memory, first = self.authors[access.tensor], access.offset
            pitch = access.dims[0][1] * size
        else:
            memory = self.authors[
                len(self.machine.hbm) + list(self.machine.chip).index(access.space)
            ]
            pitch = memory.shape[1]
            first = access.partition * pitch + access.offset
        shape = (access.dims[0][0], *(count for count, _ in free), size)
        strides = (pitch, *(stride for _, stride in free), 1)
        return np.ndarray(
            shape, np.int32, buffer=memory, offset=4 * first, strides=[4 * s for s in strides]
        )

    def at(self, stands: Stands, places: Sequence[Array]) -> Array:
        """The elements of a buffer at some places; anything where the stream never reaches."""
        kind = to_numpy(stands.dtype)
        memory, first = self._addresses(stands, places, kind.itemsize)
        flat = (self.machine.hbm[memory] if memory >= 0 else self._chip(stands)).reshape(-1)
        each = np.minimum(first[..., None] + np.arange(kind.itemsize), len(flat) - 1)
        return np.ascontiguousarray(flat[each]).view(kind)[..., 0]

    def authors_at(self, stands: Stands, places: Sequence[Array]) -> Array:
        """Who wrote the first byte of each of those last."""
        assert self.authors is not None, "sign() comes first"
        memory, first = self._addresses(stands, places, to_numpy(stands.dtype).itemsize)
        if memory < 0:
            assert isinstance(stands, Tile)
            memory = len(self.machine.hbm) + list(self.machine.chip).index(stands.space)
        flat = self.authors[memory].reshape(-1)
        return np.where(first < len(flat), flat[np.minimum(first, len(flat) - 1)], NOBODY)

    def _chip(self, stands: Stands) -> Array:
        assert isinstance(stands, Tile)
        return self.machine.chip[stands.space]

    def _addresses(self, stands: Stands, places: Sequence[Array], size: int) -> tuple[int, Array]:
        """The tensor (-1: on chip), and the first byte of each element."""
        shape = np.broadcast_shapes(*(np.shape(place) for place in places)) if places else ()
        offset = np.zeros(shape, np.int64)
        if isinstance(stands, HbmView):
            for place, (_, stride) in zip(places, stands.dims, strict=False):
                offset = offset + place * stride
            return stands.tensor, (offset + stands.offset) * size
        pitch = self.machine.chip[stands.space].shape[1]
        for place, (_, stride) in zip(places[1:], stands.dims, strict=False):
            offset = offset + place * stride
        row = (places[0] if places else 0) + np.int64(stands.partition)
        return -1, row * pitch + stands.offset + offset * size


def tensor_arrays(tensors: Sequence[isa.HbmTensor], hbm: Sequence[Array]) -> Mapping[str, Array]:
    """What tensors in HBM hold, by name."""
    return {
        tensor.name: np.array(part).view(to_numpy(tensor.dtype)).reshape(tensor.shape)
        for tensor, part in zip(tensors, hbm, strict=True)
    }
