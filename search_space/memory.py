"""On-chip memories, and where tiles stand in them: the one truth of capacity.

The verifier places a program's tiles with the `Allocator` that code generators use, so what is
verified fits and what does not fit is refused before any code is generated. A tile keeps its place
as long as the program runs: engines work ahead, so the loop that made it may come back to it
(unless the memory is `stacked`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilesmith.search_space.errors import CodegenError


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
    """First-fit over the bytes of one partition of a memory; a tile takes the same in all."""

    def __init__(self, name: str, memory: Memory) -> None:
        self.name, self.memory = name, memory
        self.live: dict[int, tuple[int, str]] = {}

    def place(self, amount: int, name: str) -> int | None:
        """The offset of `amount` free bytes, which are taken; None if there are none."""
        amount = self.memory.held(amount)
        at = 0
        for start in sorted(self.live):
            at = self._fit(at, amount)
            if at + amount <= start:
                break
            at = max(at, start + self.live[start][0])
        at = self._fit(at, amount)
        if at + amount > self.memory.bytes:
            return None
        self.live[at] = (amount, name)
        return at

    def take(self, amount: int, name: str) -> int:
        """The offset of `amount` free bytes; `CodegenError` if there are none."""
        at = self.place(amount, name)
        if at is None:
            raise CodegenError(
                f"tile '{name}' needs {self.memory.held(amount)} bytes a partition of {self.name}, "
                f"which has {self.memory.bytes} with {self.used} in use; choose smaller tiles or "
                f"fewer buffers"
            )
        return at

    def _fit(self, at: int, amount: int) -> int:
        """`at`, moved to the next bank if the tile would straddle two."""
        bank = self.memory.bank
        if bank and at % bank and at % bank + amount > bank:
            return -(-at // bank) * bank
        return at

    def release(self, offset: int) -> None:
        """Give a tile's bytes back."""
        self.live.pop(offset, None)

    @property
    def used(self) -> int:
        """Bytes in use in each partition."""
        return sum(size for size, _ in self.live.values())
