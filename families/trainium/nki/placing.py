"""Places of blocks in SBUF and PSUM, which compilers find: by lifetimes, in rotation, with spills.

A block takes memory from the first instruction that works on it to the last. In SBUF the place that
was given back last goes first, and a result takes the place of an operand that ends with it; blocks
that DMA fills or empties have two places that take turns. Banks of PSUM all take turns. So profiles
of AWS's compiler are met: temporaries stand in few places, loads run ahead by one. Where nothing is
free the block used longest ago leaves: to HBM and back, or, if it was loaded and only read since,
to be loaded again. PSUM is not spilled; a tile of at most a bank stays inside of one.
"""

from collections import deque
from dataclasses import dataclass
from math import inf

from tilesmith.families.trainium.nki.lowering import TileBlock


@dataclass(eq=False)
class PlacedSegment:
    """Bytes of a memory and the block that is in them, or was.

    Attributes:
        used: when it was last worked on; live: whether it will be again.
    """

    first: int
    size: int
    block: TileBlock | None = None
    used: int = -1
    live: bool = False


class PlacingMemory:
    """One memory: see the module's docstring.

    Attributes:
        unit: sizes are multiples of it; bank: bytes that a tile of no more stays inside (0: none).
    """

    def __init__(self, size: int, unit: int, bank: int = 0) -> None:
        self.size, self.unit, self.bank, self.top = size, unit, bank, 0
        self.segments: list[PlacedSegment] = []
        self._dead: dict[int, deque[PlacedSegment]] = {}
        self._held: dict[str, PlacedSegment] = {}

    def rounded(self, size: int) -> int:
        """Bytes that a block takes: in PSUM a half, quarter, ... of a bank, or whole banks."""
        if not self.bank:
            return -(-size // self.unit) * self.unit
        if size > self.bank:
            return -(-size // self.bank) * self.bank
        part = self.bank
        while part // 2 >= max(size, self.unit):
            part //= 2
        return part

    def place(
        self, size: int, now: int, evicts: bool
    ) -> tuple[PlacedSegment, list[TileBlock]] | None:
        """A segment of so many bytes, and the live blocks that leave it; None: there is none."""
        size = self.rounded(size)
        if self.bank:
            return self._fresh(size) or self._free(size) or self._window(size, now, evicts)
        return self._free(size) or self._fresh(size) or self._window(size, now, evicts)

    def _fresh(self, size: int) -> tuple[PlacedSegment, list[TileBlock]] | None:
        """Bytes that nobody used yet."""
        step = min(size, self.bank) if self.bank else 1
        first = -(-self.top // step) * step
        if first + size > self.size:
            return None
        if first > self.top:
            self.segments.append(PlacedSegment(self.top, first - self.top))
        self.top = first + size
        self.segments.append(PlacedSegment(first, size))
        return self.segments[-1], []

    def _free(self, size: int) -> tuple[PlacedSegment, list[TileBlock]] | None:
        """Bytes that a block of this size gave back: the latest in SBUF, the first in PSUM."""
        queue = self._dead.get(size)
        while queue:
            segment = queue.popleft() if self.bank else queue.pop()
            if segment.block is not None:
                return segment, []
        return None

    def _window(
        self, size: int, now: int, evicts: bool
    ) -> tuple[PlacedSegment, list[TileBlock]] | None:
        """Adjacent segments that nothing is in, or else those used longest ago."""
        if self.top < self.size:
            self.segments.append(PlacedSegment(self.top, self.size - self.top))
            self.top = self.size
        best, stop, cost = (inf, inf), 0, 0
        step = min(size, self.bank) if self.bank else 1
        for at, begin in enumerate(self.segments):
            if begin.first % step:
                continue
            total, latest, end = 0, (0.0, -1.0), at
            while total < size and end < len(self.segments) and latest < best:
                one = self.segments[end]
                held = one.live and (one.used >= now or not evicts)
                latest = max(latest, (inf, inf) if held else (float(one.live), float(one.used)))
                total, end = total + one.size, end + 1
            if total >= size and latest < best:
                best, cost, stop = latest, at, end
            if best[0] == 0.0:  # nobody has to leave
                break
        if best == (inf, inf):
            return None
        taken = self.segments[cost:stop]
        leaving = [one.block for one in taken if one.live and one.block is not None]
        for one in taken:
            one.live, one.block = False, None
        segment = PlacedSegment(taken[0].first, size)
        rest = taken[-1].first + taken[-1].size - segment.first - size
        tail = [PlacedSegment(segment.first + size, rest)] if rest else []
        self.segments[cost:stop] = [segment, *tail]
        return segment, leaving

    def release(self, segment: PlacedSegment, site: str = "") -> None:
        """Its block is not used any more. What DMA works on is given back only when the next of its
        site is: two places take turns."""
        segment.live = False
        if site:
            before = self._held.get(site)
            self._held[site] = segment
            if before is None:
                return
            segment = before
        if segment.block is not None and not segment.live:
            self._dead.setdefault(segment.size, deque()).append(segment)
