"""MEM while a schedule grows: words that are free and since when, and the ports of every slice.

A slice reads one word and writes one word a cycle, of different banks: an access takes the slice's
port of its kind and the bank. Blocks of tensors are placed when the first chain that touches them
is (`ChipMemory.choose`), on slices whose ports are free at that time; words of a temporary that was
read for the last time are used again by writes after that.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.scheduling.resources.calendars import BusyIntervals

NEVER = 1 << 60


@dataclass(frozen=True)
class Words:
    """So many words of one bank of a slice; nobody writes them before cycle `since`, until which
    others read what stood there."""

    slice: int
    bank: int
    address: int
    words: int
    since: int = 0


@dataclass
class _Bank:
    """Free stretches of a bank: (address, words, cycle from which they may be written)."""

    free: list[tuple[int, int, int]]
    line: BusyIntervals = field(default_factory=BusyIntervals)

    def fits(self, words: int, cycle: int) -> int:
        """Which stretch takes so many words at a cycle, rather one used before; -1 for none.

        Words never used, which alone take what stands there from the start, join used ones beside
        them only for what fits into neither.
        """
        best = -1
        for number, (_, length, since) in enumerate(self.free):
            if length >= words and since <= cycle:
                if since:
                    return number
                best = number if best < 0 else best
        if best < 0 and cycle:
            joined = _joined(self.free)
            for number, (_, length, since) in enumerate(joined):
                if length >= words and since <= cycle:
                    self.free = joined
                    return number
        return best

    def take(self, number: int, words: int) -> int:
        """Take the first words of a stretch; gives their address."""
        address, length, since = self.free.pop(number)
        if length > words:
            self.free.insert(number, (address + words, length - words, since))
        return address

    def give(self, address: int, words: int, cycle: int) -> None:
        """Give words back from a cycle on, joined with neighbours that were used too."""
        merged = []
        for first, length, since in self.free:
            if since and (first + length == address or address + words == first):
                address, words, cycle = min(address, first), words + length, max(cycle, since)
            else:
                merged.append((first, length, since))
        insort(merged, (address, words, cycle))
        self.free = merged


def _joined(free: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Stretches joined with whatever lies beside them."""
    stretches: list[tuple[int, int, int]] = []
    for address, words, since in free:
        if stretches and stretches[-1][0] + stretches[-1][1] == address:
            before = stretches.pop()
            address, words, since = before[0], before[1] + words, max(before[2], since)
        stretches.append((address, words, since))
    return stretches


def _both_free(port: BusyIntervals, bank: BusyIntervals, start: int, length: int) -> int:
    """The first cycle from `start` on from which a port and a bank are free."""
    while True:
        free = bank.next_free(port.next_free(start, length), length)
        if free == start:
            return start
        start = free


class ChipMemory:
    """See the module's docstring."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        self.ports = [[BusyIntervals() for _ in range(chip.slices)] for _ in range(2)]
        self.banks = [
            [_Bank([(0, chip.bank_words, 0)]) for _ in range(2)] for _ in range(chip.slices)
        ]
        self.words = [0] * chip.slices
        self.live = [0] * chip.slices
        self.sums = [0] * chip.slices
        self.turn = 0

    def next_free(self, words: Words, write: bool, start: int, length: int) -> int:
        """When an access may begin, `start` at the earliest."""
        port, bank = self.ports[write][words.slice], self.banks[words.slice][words.bank].line
        return _both_free(port, bank, start, length)

    def wait(self, words: Words, write: bool, cycles: Sequence[tuple[int, int]]) -> int:
        """How much later an access of several stretches (start, length), in order, may be, at the
        least."""
        port, bank = self.ports[write][words.slice], self.banks[words.slice][words.bank].line
        if port.end <= cycles[0][0] >= bank.end:  # behind all else: most are
            return 0
        return max(_both_free(port, bank, start, length) - start for start, length in cycles)

    def access(self, words: Words, write: bool, start: int, length: int) -> None:
        """Take a port and its bank."""
        self.ports[write][words.slice].add(start, start + length)
        self.banks[words.slice][words.bank].line.add(start, start + length)

    def choose(
        self,
        slices: Iterable[int],
        count: int,
        words: int,
        write: bool,
        when: Callable[[int, int], Sequence[tuple[int, int]]],
        used: Callable[[int], int],
        virgin: bool = False,
    ) -> tuple[list[Words], int]:
        """Place `count` groups of words on different slices.

        Args:
            slices: candidates, best first.
            when: cycles at which group n would be accessed on a slice, in order: start and length.
            used: bits of banks of a slice that the same chain has taken (3: leave it alone).
            virgin: words that nothing was written to before.

        Returns:
            The places, and how many cycles later to try if there are none (0: no room at all).
        """
        places: list[Words] = []
        later = NEVER
        for number in slices:
            cycles = when(len(places), number)
            taken = used(number)
            if taken == 3:
                continue
            for bank, room in enumerate(self.banks[number]):
                if taken >> bank & 1:
                    continue
                hole = room.fits(words, 0 if virgin else cycles[0][0])
                if hole < 0:
                    if not virgin and any(length >= words for _, length, _ in room.free):
                        later = min(later, 16)
                    continue
                address, _, since = room.free[hole]
                place = Words(number, bank, address, words, since)
                wait = self.wait(place, write, cycles)
                if wait:
                    later = min(later, wait)
                    continue
                places.append(place)
                break
            if len(places) == count:
                return places, 0
        return [], 0 if later == NEVER else later

    def take(self, places: Iterable[Words], sums: bool = False) -> None:
        """Take words that were chosen; `sums`: read by chains that want more of them at once."""
        for place in places:
            room = self.banks[place.slice][place.bank]
            number = next(n for n, (a, _, _) in enumerate(room.free) if a == place.address)
            room.take(number, place.words)
            self.live[place.slice] += 1
            self.sums[place.slice] += sums
            self.words[place.slice] += place.words

    def give(self, places: Iterable[Words], cycle: int, sums: bool = False) -> None:
        """Give words back, to be written from a cycle on."""
        for place in places:
            self.banks[place.slice][place.bank].give(place.address, place.words, cycle)
            self.live[place.slice] -= 1
            self.sums[place.slice] -= sums
            self.words[place.slice] -= place.words
