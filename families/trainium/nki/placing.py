"""Places of blocks in SBUF and PSUM, which compilers find: by lifetimes, in turns, with spills.

A block takes memory from the first instruction that works on it to the last. In SBUF the blocks of
one source line have two places that take turns where they stand in an `affine_range`, whose
iterations are worked on side by side, else one; a result takes the place of an operand that ends
with it. Banks of PSUM all take turns. So profiles of AWS's compiler are met. Where nothing is free
the block whose next use is furthest leaves (Belady's rule: all uses are known): to HBM and back,
or, if it was loaded and only read since, to be loaded again. PSUM is not spilled; a tile of at most
a bank stays inside of one.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from tilesmith.families.trainium.nki.lowering import TileBlock

Room = tuple["PlacedSegment", list[TileBlock]]
"""Where a block goes, and the live blocks that leave for it."""


FRESH = 32
"""What was worked on in so many last operations leaves last: its place would wait for its
transfer."""


@dataclass(eq=False)
class PlacedSegment:
    """Bytes of a memory and the block that is in them, or was.

    Attributes:
        used: when it was last worked on; next: when it will be again; live: whether it will.
        before, after: its neighbours in memory.
    """

    first: int
    size: int
    block: TileBlock | None = None
    used: int = -1
    next: int = -1
    live: bool = False
    before: "PlacedSegment | None" = None
    after: "PlacedSegment | None" = None


class PlacingMemory:
    """One memory: see the module's docstring.

    Segments are linked in the order of their bytes; live ones are in a heap by their next use, so
    that what has to leave is met first.

    Attributes:
        unit: sizes are multiples of it; bank: bytes that a tile of no more stays inside (0: none).
    """

    def __init__(self, size: int, unit: int, bank: int = 0) -> None:
        self.size, self.unit, self.bank, self.top = size, unit, bank, 0
        self._last: PlacedSegment | None = None
        self._left = False
        self._live: dict[int, PlacedSegment] = {}
        self._furthest: list[tuple[int, int, PlacedSegment]] = []
        self._empty: dict[int, PlacedSegment] = {}
        self._dead: dict[tuple[int, str], deque[PlacedSegment]] = {}
        self._places: dict[tuple[str, int], set[int]] = defaultdict(set)

    @property
    def live(self) -> Iterable[PlacedSegment]:
        """Segments whose blocks will be worked on again."""
        return self._live.values()

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
        self, block: TileBlock, now: int, next_use: int, places: int, evicts: bool
    ) -> Room | None:
        """A segment for a block from `now` on, and the blocks that leave it; None: no room.

        Args:
            places: how many the blocks of its source line take turns in; evicts: whether live
                blocks may leave.
        """
        size = self.rounded(block.bytes)
        site = block.array.line
        turns = len(self._places[site, size]) >= places or self.top + size > self.size
        segment = self._free(size, site) if turns and not self.bank else None
        segment, leaving = segment or self._fresh(size) or self._free(size), []
        if segment is None:
            taken = self._window(size, now, evicts)
            if taken is None:
                return None
            leaving = [one.block for one in taken if one.live and one.block is not None]
            self._left |= bool(leaving)
            segment = self._joined(taken, size)
        segment.block = block
        self._places[site, size].add(segment.first)
        self.use(segment, now, next_use)
        return segment, leaving

    def use(self, segment: PlacedSegment, now: int, next_use: int) -> None:
        """A segment is worked on now, and will be again."""
        segment.used, segment.next, segment.live = now, next_use, True
        self._empty.pop(id(segment), None)
        self._live[id(segment)] = segment
        heappush(self._furthest, (-next_use, id(segment), segment))

    def _fresh(self, size: int) -> PlacedSegment | None:
        """Bytes that nobody used yet."""
        step = min(size, self.bank) if self.bank else 1
        first = -(-self.top // step) * step
        if first + size > self.size:
            return None
        if first > self.top:
            self._append(first - self.top)
        return self._append(size)

    def _append(self, size: int) -> PlacedSegment:
        segment = PlacedSegment(self.top, size, before=self._last)
        if self._last is not None:
            self._last.after = segment
        self._last = self._empty[id(segment)] = segment
        self.top += size
        return segment

    def _free(self, size: int, site: str = "") -> PlacedSegment | None:
        """Bytes that a block of this size gave back: the latest, but the first where places take
        turns: in PSUM, of one line, and once something left, since transfers overlap then."""
        queue = self._dead.get((size, site))
        while queue:
            turns = self.bank or site or self._left
            segment = queue.popleft() if turns else queue.pop()
            if segment.block is not None and not segment.live:
                return segment
        return None

    def _window(self, size: int, now: int, evicts: bool) -> list[PlacedSegment] | None:
        """Adjacent segments that nothing is in, or else those whose next use is furthest."""
        if self.top < self.size:
            self._append(self.size - self.top)
        begins = (e for e in self._empty.values() if e.before is None or e.before.live)
        runs = filter(None, (self._run(one, size, {}) for one in begins))
        taken = min(runs, key=lambda run: run[0].first, default=None)
        leaving: dict[int, PlacedSegment] = {}
        again = []
        while taken is None and evicts and self._furthest:
            entry = heappop(self._furthest)
            one = entry[2]
            if not one.live or -entry[0] != one.next or id(one) in leaving:
                continue
            again.append(entry)
            if one.used < now - FRESH:
                leaving[id(one)] = one
                taken = self._run(one, size, leaving)
        for entry in again:
            heappush(self._furthest, entry)
        for one in sorted(self._live.values(), key=lambda s: s.used) if taken is None else ():
            if evicts and one.used < now:
                leaving[id(one)] = one
                taken = taken or self._run(one, size, leaving)
        return taken

    def _run(
        self, inside: PlacedSegment, size: int, leaving: dict[int, PlacedSegment]
    ) -> list[PlacedSegment] | None:
        """Segments of so many bytes round one that are empty, or leave; None: they are fewer."""
        step = min(size, self.bank) if self.bank else 1
        begin, total = inside, 0
        while begin.before is not None and (
            not begin.before.live or id(begin.before) in leaving
        ):  # fmt: skip
            begin = begin.before
        taken: list[PlacedSegment] = []
        one: PlacedSegment | None = begin
        while one is not None and (not one.live or id(one) in leaving) and total < size:
            if taken or one.first % step == 0:
                taken.append(one)
                total += one.size
            one = one.after
        return taken if total >= size else None

    def _joined(self, taken: list[PlacedSegment], size: int) -> PlacedSegment:
        """One segment in place of several, and what is left of them."""
        for one in taken:
            one.live, one.block = False, None
            self._live.pop(id(one), None)
            self._empty.pop(id(one), None)
        end = taken[-1].first + taken[-1].size
        before, after = taken[0].before, taken[-1].after
        parts = [PlacedSegment(taken[0].first, size)]
        if parts[0].first + size < end:
            parts.append(PlacedSegment(parts[0].first + size, end - parts[0].first - size))
        for part in parts:
            part.before = before
            if before is not None:
                before.after = part
            before = self._empty[id(part)] = part
        parts[-1].after = after
        if after is None:
            self._last = parts[-1]
        else:
            after.before = parts[-1]
        return parts[0]

    def release(self, segment: PlacedSegment) -> None:
        """Its block is not used any more."""
        segment.live = False
        del self._live[id(segment)]
        self._empty[id(segment)] = segment
        assert segment.block is not None
        for site in ("", segment.block.array.line):
            self._dead.setdefault((segment.size, site), deque()).append(segment)
