"""The law of values: every read of a word sees the row that its chain names, and no other.

A burst of MEM says which row of which tensor each of its words is, and which byte of it (columns
`tensor`, `row`, `pitch`, `byte`). A chain that reads a row waits for the last chain before it, in
program order, that writes the row, or else for what lay there from the start. So of all writes to
the word that a read sees in its cycle, the last has to be that chain's, of that row and byte: then
none came between them. What outputs and states hold after the last cycle is held to the same. On
streams, what a chain takes was given by itself.

Invariants: read off the table, the regions and the order of chains alone. Words are numbered over
all banks, rows with their bytes over all tensors; both as columns with an entry for each token.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.lpu.codegen.dataflow import Ints
from tilesmith.families.lpu.codegen.isa.bursts import MEMORY_OPS, BurstOp, BurstSchedule, latency
from tilesmith.families.lpu.codegen.verification.report import breach
from tilesmith.families.lpu.codegen.verification.tokens import Matching
from tilesmith.search_space.support.errors import VerificationError

BYTES = 4
"""Byte planes a row has at most."""

_CYCLES = 1 << 38
"""Beyond any cycle: a word and a cycle are one number."""

_TOKENS = 1 << 20
"""Tokens that are looked at together."""


@dataclass(frozen=True, eq=False)
class _Tokens:
    """Words accessed: the burst, the number of the word, the cycle of issue, the row and byte."""

    burst: Ints
    word: Ints
    cycle: Ints
    name: Ints


def check_values(schedule: BurstSchedule, matching: Matching) -> None:
    """Prove the law of values.

    Raises:
        VerificationError: the first breach.
    """
    _named(schedule)
    _own(schedule, matching)
    held = _Held(schedule)
    for tokens in _reads(schedule):
        held.look(tokens)
    held.left()


def _named(schedule: BurstSchedule) -> None:
    """Rows that bursts name are there."""
    table = schedule.table
    rows = np.array([place.rows for place in schedule.places], np.int64)
    memory = np.isin(table["op"], MEMORY_OPS)
    wrong = memory & ((table["tensor"] < 0) | (table["tensor"] >= len(rows)))
    if wrong.any():
        raise breach(schedule, int(np.flatnonzero(wrong)[0]), "it names no tensor")
    several = (table["count"].astype(np.int64) - 1) * table["pitch"]
    ends = table["row"] + np.where(table["op"] == BurstOp.GATHER, 0, several)
    wrong = memory & (
        (np.minimum(table["row"], ends) < 0)
        | (np.maximum(table["row"], ends) >= np.append(rows, 0)[table["tensor"]])
        | (table["byte"] < 0)
        | (table["byte"] >= BYTES)
    )
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        place = schedule.places[int(table["tensor"][row])]
        raise breach(schedule, row, f"'{place.name}' has rows 0 to {place.rows - 1}")


def _own(schedule: BurstSchedule, matching: Matching) -> None:
    """What a chain takes off a stream was given by itself."""
    chain = schedule.table["chain"]
    takers, givers = matching.takers, matching.givers
    pairs = [(n, source.giver) for n, sources in enumerate(matching.sources) for source in sources]
    if not pairs:
        return
    mine, theirs = np.array(pairs, np.int64).T
    wrong = np.flatnonzero(chain[takers.row[mine]] != chain[givers.row[theirs]])
    if len(wrong):
        taker, giver = int(mine[wrong[0]]), int(givers.row[theirs[wrong[0]]])
        law = (
            f"what arrives for chain '{_chain(schedule, int(takers.row[taker]))}' is of chain "
            f"'{_chain(schedule, giver)}' (instruction {giver})"
        )
        raise breach(schedule, int(takers.row[taker]), law)


def _chain(schedule: BurstSchedule, row: int) -> str:
    return schedule.chains[int(schedule.table["chain"][row])]


def _reads(schedule: BurstSchedule) -> Iterator[_Tokens]:
    """Words read, some bursts at a time. A gather may read each of its rows in each of its cycles:
    they are looked at in the first and in the last."""
    table = schedule.table
    reads = np.flatnonzero(table["op"] == BurstOp.READ)
    total = np.cumsum(table["count"][reads].astype(np.int64))
    for part in np.split(reads, np.flatnonzero(np.diff(total // _TOKENS)) + 1):
        yield _tokens(schedule, part)
    gathers = np.flatnonzero(table["op"] == BurstOp.GATHER)
    if len(gathers):
        rows = np.array([schedule.units[u].k for u in table["unit"][gathers]], np.int64)
        last = (table["count"][gathers].astype(np.int64) - 1) * table["interval"][gathers]
        for after in (0 * last, last):
            yield _tokens(schedule, gathers, (rows, after))


def _tokens(
    schedule: BurstSchedule, bursts: Ints, gathered: tuple[Ints, Ints] | None = None
) -> _Tokens:
    """All words of bursts; of gathers so many, so many cycles after their first."""
    table = schedule.table[bursts]
    count = table["count"].astype(np.int64) if gathered is None else gathered[0]
    burst = np.repeat(bursts, count)
    turn = np.arange(len(burst)) - np.repeat(np.cumsum(count) - count, count)

    def spread(first: Ints, step: Ints) -> Ints:
        return np.asarray(np.repeat(first, count) + turn * np.repeat(step, count))

    bank = 2 * table["queue"].astype(np.int64) + table["bank"]
    first = bank * schedule.chip.bank_words + table["address"]
    named = BYTES * (_firsts(schedule)[table["tensor"]] + table["row"]) + table["byte"]
    pitch = BYTES * table["pitch"].astype(np.int64)
    if gathered is None:
        word = spread(first, table["step"].astype(np.int64))
        cycle = spread(table["cycle"], table["interval"].astype(np.int64))
    else:
        word = spread(first, np.ones_like(first))
        cycle = np.repeat(table["cycle"] + gathered[1], count)
    return _Tokens(burst, word, cycle, spread(named, pitch))


def _firsts(schedule: BurstSchedule) -> Ints:
    """The number of each tensor's first row, over all tensors."""
    rows = np.array([place.rows for place in schedule.places], np.int64)
    return np.asarray(np.cumsum(rows) - rows)


def _rank(schedule: BurstSchedule) -> Ints:
    """Where each chain stands in program order."""
    return np.array(schedule.order or range(len(schedule.chains)), np.int64)


class _Held:
    """What words hold, and what they are meant to.

    Attributes:
        start: the row and byte that each word holds before the first cycle; -1 for none.
        writes: of all writes, in order of words and of the cycles from which they are seen.
        writers: rows and bytes with the places in program order of who writes them, as numbers.
    """

    def __init__(self, schedule: BurstSchedule) -> None:
        self.schedule = schedule
        self.rank = _rank(schedule)
        writes = _tokens(schedule, np.flatnonzero(schedule.table["op"] == BurstOp.WRITE))
        self.keys = writes.word * _CYCLES + writes.cycle + latency(schedule.chip, BurstOp.WRITE)
        self.chains = len(self.rank) + 1
        pairs = writes.name * self.chains + self.rank[schedule.table["chain"][writes.burst]]
        new = np.append(True, np.diff(pairs) != 0)[: pairs.size]  # most are as the one before
        self.writers = np.unique(pairs[new])
        order = np.argsort(self.keys, kind="stable")
        self.keys = self.keys[order]
        self.writes = _Tokens(*(c[order] for c in vars(writes).values()))
        self.author = self.rank[schedule.table["chain"][self.writes.burst]]
        self._regions()

    def _regions(self) -> None:
        schedule, chip = self.schedule, self.schedule.chip
        number = {place.name: n for n, place in enumerate(schedule.places)}
        first = _firsts(schedule)
        words = 2 * chip.slices * chip.bank_words
        self.start = np.full(words, -1, np.int64)
        self.ends: list[tuple[str, Ints, Ints]] = []
        for region in schedule.regions:
            role, stripes = schedule.places[number[region.tensor]].role, len(region.homes)
            base = BYTES * (first[number[region.tensor]] + region.first)
            for stripe, homes in enumerate(region.homes):
                rows = np.arange(stripe, region.rows, stripes, dtype=np.int64)
                for byte, (place, bank, address) in enumerate(homes):
                    at = (2 * place + bank) * chip.bank_words + address
                    names = base + BYTES * rows + byte
                    if role in ("input", "constant", "state") or region.zeros:
                        self.start[at : at + len(rows)] = names
                    if role in ("output", "state"):
                        self.ends.append((role, at + np.arange(len(rows)), names))

    def seen(self, word: Ints, cycle: Ints) -> Ints:
        """The write that a read of a word sees; -1: none."""
        if not len(self.keys):
            return np.full(len(word), -1, np.int64)
        at = np.searchsorted(self.keys, word * _CYCLES + cycle, side="right") - 1
        return np.where((at >= 0) & (self.writes.word[at] == word), at, -1)

    def awaited(self, name: Ints, rank: Ints | int) -> Ints:
        """The place in program order of the last chain before one that writes a row; -1: none."""
        if not len(self.writers):
            return np.full(len(name), -1, np.int64)
        at = np.searchsorted(self.writers, name * self.chains + rank) - 1
        writer = self.writers[at]
        return np.where((at >= 0) & (writer // self.chains == name), writer % self.chains, -1)

    def wrong(
        self, word: Ints, name: Ints, seen: Ints, awaited: Ints, held: bool = True
    ) -> NDArray[np.bool_]:
        """Which words do not hold what they are meant to; `held`: what nobody writes is there from
        the start."""
        untouched = (awaited < 0) & (self.start[word] == name) if held else awaited < 0
        if not len(self.keys):
            return ~untouched
        written = (self.writes.name[seen] == name) & (self.author[seen] == awaited)
        return ~np.where(seen < 0, untouched, written)

    def look(self, tokens: _Tokens) -> None:
        """Hold reads to the law."""
        seen = self.seen(tokens.word, tokens.cycle)
        rank = self.rank[self.schedule.table["chain"][tokens.burst]]
        awaited = self.awaited(tokens.name, rank)
        wrong = np.flatnonzero(self.wrong(tokens.word, tokens.name, seen, awaited))
        if len(wrong):
            at = int(wrong[0])
            burst = int(tokens.burst[at])
            law = (
                f"chain '{_chain(self.schedule, burst)}' reads "
                f"{self._meant(int(tokens.name[at]), int(awaited[at]))}; "
                f"{self._found(int(tokens.word[at]), int(seen[at]))}"
            )
            raise breach(self.schedule, burst, law, int(tokens.cycle[at]))

    def left(self) -> None:
        """Hold what is left of outputs and states to the law; rows of outputs that nobody writes
        are on words that nobody writes."""
        for role, word, name in self.ends:
            seen = self.seen(word, np.full(len(word), _CYCLES - 1))
            awaited = self.awaited(name, self.chains - 1)
            wrong = np.flatnonzero(self.wrong(word, name, seen, awaited, role == "state"))
            if len(wrong):
                at = int(wrong[0])
                raise VerificationError(
                    f"schedule '{self.schedule.name}': what is left after the last cycle is to be "
                    f"{self._meant(int(name[at]), int(awaited[at]))}; "
                    f"{self._found(int(word[at]), int(seen[at]))}"
                )

    def _meant(self, name: int, awaited: int) -> str:
        if awaited < 0:
            return f"{self._row(name)} as it lies there from the start"
        writer = self.schedule.chains[int(np.flatnonzero(self.rank == awaited)[0])]
        return f"{self._row(name)} as chain '{writer}' writes it"

    def _found(self, word: int, seen: int) -> str:
        where = self._word(word)
        if seen < 0 and self.start[word] < 0:
            return f"{where} holds nothing yet"
        if seen < 0:
            return f"{where} holds {self._row(int(self.start[word]))} from the start"
        burst, cycle = int(self.writes.burst[seen]), int(self.writes.cycle[seen])
        return (
            f"{where} holds {self._row(int(self.writes.name[seen]))}, which chain "
            f"'{_chain(self.schedule, burst)}' wrote in cycle {cycle} (instruction {burst})"
        )

    def _row(self, name: int) -> str:
        row, byte = divmod(name, BYTES)
        firsts = _firsts(self.schedule)
        tensor = int(np.searchsorted(firsts, row, side="right")) - 1
        place = self.schedule.places[tensor]
        return f"row {row - int(firsts[tensor])} of '{place.name}' (byte {byte})"

    def _word(self, word: int) -> str:
        chip = self.schedule.chip
        bank, address = divmod(word, chip.bank_words)
        return f"word {address} of bank {bank % 2} of slice {chip.queues[bank // 2]}"
