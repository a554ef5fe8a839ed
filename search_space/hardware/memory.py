"""On-chip memories, and where tiles stand in them: the one truth of capacity.

The verifier places a program's tiles with the `Allocator` that code generators use, so what is
verified fits and what does not fit is refused before any code is generated. A tile keeps its place
as long as the program runs: engines work ahead, so the loop that made it may come back to it
(unless the memory is `stacked`).
"""

from bisect import insort
from dataclasses import dataclass

from tilesmith.search_space.support.errors import CodegenError


@dataclass(frozen=True)
class Memory:
    """An on-chip memory.

    Attributes:
        partitions: rows, each with an address space of its own; a tile has as many bytes in all.
            0: one address space for all, which a tile lies in row-major.
        bytes: of each partition, or of all.
        bank: bytes of one bank of a partition, which a tile that fits one must not straddle (0: no
            banks).
        granule: bytes that a tile takes a multiple of.
        several_banks: whether a tile may be larger than a bank.
        stacked: whether a tile gives its bytes back where its allocation ends: nothing works ahead.
    """

    partitions: int
    bytes: int
    bank: int = 0
    granule: int = 1
    several_banks: bool = True
    stacked: bool = False

    def held(self, amount: int) -> int:
        """Bytes that a tile of `amount` bytes takes."""
        return -(-amount // self.granule) * self.granule


class Allocator:
    """First-fit over the bytes of a partition; a tile takes the same bytes in all its partitions,
    which are all of the memory's unless it says which.

    Attributes:
        live: of each tile in use, by first byte and first partition: its bytes, its name, and the
            partition behind its last.
    """

    def __init__(self, name: str, memory: Memory) -> None:
        self.name, self.memory = name, memory
        self.live: dict[tuple[int, int], tuple[int, str, int]] = {}
        self._order: list[tuple[int, int]] = []

    def place(self, amount: int, name: str, rows: range | None = None) -> int | None:
        """The offset of `amount` bytes free in the partitions `rows`, which are taken; None if
        there are none.
        """
        rows = self._rows(rows)
        amount = self.memory.held(amount)
        at = 0
        for start, first in self._order:
            size, _, stop = self.live[start, first]
            if first >= rows.stop or stop <= rows.start:
                continue
            at = self._fit(at, amount)
            if at + amount <= start:
                break
            at = max(at, start + size)
        at = self._fit(at, amount)
        if at + amount > self.memory.bytes:
            return None
        self.live[at, rows.start] = (amount, name, rows.stop)
        insort(self._order, (at, rows.start))
        return at

    def take(self, amount: int, name: str) -> int:
        """The offset of `amount` free bytes; `CodegenError` if there are none."""
        at = self.place(amount, name)
        if at is None:
            raise CodegenError(
                f"{self.short_of(amount, name)}; choose smaller tiles or fewer buffers"
            )
        return at

    def short_of(self, amount: int, name: str, rows: range | None = None) -> str:
        """Why a tile found no place."""
        return (
            f"tile '{name}' needs {self.memory.held(amount)} bytes a partition of {self.name}, "
            f"which has {self.memory.bytes} with {self._used(self._rows(rows))} in use"
        )

    def _fit(self, at: int, amount: int) -> int:
        """`at`, moved to the next bank if the tile would straddle two."""
        bank = self.memory.bank
        if bank and at % bank and at % bank + amount > bank:
            return -(-at // bank) * bank
        return at

    def release(self, offset: int, partition: int = 0) -> None:
        """Give a tile's bytes back."""
        if self.live.pop((offset, partition), None) is not None:
            self._order.remove((offset, partition))

    @property
    def used(self) -> int:
        """Bytes in use in the fullest partition."""
        return self._used(self._rows(None))

    def _rows(self, rows: range | None) -> range:
        return rows or range(max(self.memory.partitions, 1))

    def _used(self, rows: range) -> int:
        """Bytes in use in the fullest of some partitions."""
        tiles = [(first, stop, size) for (_, first), (size, _, stop) in self.live.items()]
        begins = {rows.start, *(first for first, _, _ in tiles if first in rows)}
        return max(
            sum(size for first, stop, size in tiles if first <= row < stop) for row in begins
        )
