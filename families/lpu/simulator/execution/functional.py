"""What a schedule computes: its own bursts, played on blocks of vectors.

Every burst is one numpy operation on all of its vectors. Its operands are those tokens that are on
its streams when it takes them (`verification.tokens.Matching`), its words those that lie in MEM in
the very cycle it reads them (`memory_words`). Bursts are played in an order in which everything is
there; what nobody needs any more is dropped.
"""

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.lpu.codegen.dataflow import LANES, Ints
from tilesmith.families.lpu.codegen.isa.bursts import BurstOp, BurstSchedule, Region, Unit
from tilesmith.families.lpu.codegen.verification.tokens import Matching, given, taken
from tilesmith.families.lpu.simulator.execution.arithmetic import (
    computed,
    multiplied,
    shuffled,
    transposed,
)
from tilesmith.families.lpu.simulator.execution.memory_words import (
    Bytes,
    MemoryWords,
    byte_planes,
    joined,
)
from tilesmith.search_space.support.errors import InputError, VerificationError

Arrays = NDArray[Any]


@dataclass(frozen=True)
class ChipRun:
    """What a program left behind.

    Attributes:
        tensors: rows of "output" and "state" tensors, (rows, 320).
        sent: by link, the vectors of each send in order.
    """

    tensors: Mapping[str, Arrays]
    sent: Mapping[int, list[Arrays]]


def execute(
    schedule: BurstSchedule,
    contents: Mapping[str, Arrays],
    received: Mapping[int, Sequence[Arrays]] | None = None,
    matching: Matching | None = None,
) -> ChipRun:
    """Run a schedule.

    Args:
        contents: rows of "input", "constant" and "state" tensors, (rows, 320) of their type.
        received: by link, the vectors of each receive in order.
        matching: of the checker, to spare the work of doing it again.

    Raises:
        InputError: contents are missing, or of another shape or type.
        VerificationError: a word is read that nothing was written to, or a gather's number is
            outside its table.
    """
    matching = matching or Matching(given(schedule), taken(schedule))
    turns = {link: dict(enumerate(vectors)) for link, vectors in (received or {}).items()}
    return ChipPlayer(schedule, matching, MemoryWords(schedule, contents), turns).play()


@dataclass(eq=False)
class ChipPlayer:
    schedule: BurstSchedule
    matching: Matching
    words: MemoryWords
    received: Mapping[int, Mapping[int, Arrays]]  # by link and turn
    flowing: dict[int, Bytes] = field(default_factory=dict)  # by burst of tokens given
    uses: dict[int, int] = field(default_factory=dict)
    written: dict[int, Bytes] = field(default_factory=dict)  # by row
    wanted: dict[int, int] = field(default_factory=dict)
    weights: dict[int, Arrays] = field(default_factory=dict)  # by row of the load
    sums: dict[int, Arrays] = field(default_factory=dict)  # by row of the move
    sent: dict[int, list[Arrays]] = field(default_factory=lambda: defaultdict(list))

    def play(self) -> ChipRun:
        for row in self.begin():
            self.step(row)
        return self.played()

    def begin(self, sends: Mapping[int, int] | None = None) -> list[int]:
        """Rows in an order in which they may be played; `sends`: of likes, by their receives."""
        self._index()
        return self._order(sends or {})

    def played(self) -> ChipRun:
        """What all steps have left behind."""
        return ChipRun(self._left(), dict(self.sent))

    def _index(self) -> None:
        """Who gives and takes what, by row."""
        givers, takers = self.matching.givers, self.matching.takers
        self.gives: dict[int, list[int]] = defaultdict(list)
        self.takes: dict[int, list[int]] = defaultdict(list)
        for number, row in enumerate(givers.row.tolist()):
            self.gives[row].append(number)
        for number, row in enumerate(takers.row.tolist()):
            self.takes[row].append(number)
        self.uses = defaultdict(int)
        for sources in self.matching.sources:
            for source in sources:
                self.uses[source.giver] += 1
        self.reads: dict[int, Ints] = {}
        self.wanted = defaultdict(int)
        table = self.schedule.table
        for row in np.flatnonzero(table["op"] == BurstOp.READ).tolist():
            tokens = self.reads[row] = self.words.find(*self.of_read(row))
            for writer in np.unique(self.words.token_row[tokens[tokens >= 0]]).tolist():
                self.wanted[writer] += 1
        self._final()

    def of_read(self, row: int) -> tuple[Ints, Ints]:
        """Words and cycles of a burst of MEM."""
        burst = self.schedule.table[row]
        steps = np.arange(int(burst["count"]), dtype=np.int64)
        addresses = int(burst["address"]) + steps * int(burst["step"])
        words = self.words.word(int(burst["queue"]), int(burst["bank"]), addresses)
        return words, int(burst["cycle"]) + steps * int(burst["interval"])

    def _final(self) -> None:
        """What is read when all is done: the last writes of outputs."""
        self.final: dict[tuple[str, int, int], Ints] = {}
        for region in self.results():
            stripes = len(region.homes)
            rows = np.arange(region.rows, dtype=np.int64)
            for byte in range(len(region.homes[0])):
                homes = np.array([h[byte] for h in region.homes], np.int64)[rows % stripes]
                words = (2 * homes[:, 0] + homes[:, 1]) * self.schedule.chip.bank_words
                words += homes[:, 2] + rows // stripes
                tokens = self.words.find(words, np.full(len(rows), (1 << 38) - 1))
                self.final[region.tensor, region.first, byte] = tokens
                for writer in np.unique(self.words.token_row[tokens[tokens >= 0]]).tolist():
                    self.wanted[writer] += 1

    def results(self) -> list[Region]:
        """Where outputs and states lie: of each block the first home."""
        roles = {place.name: place.role for place in self.schedule.places}
        mine = (r for r in self.schedule.regions if roles[r.tensor] in ("output", "state"))
        return list({(r.tensor, r.first): r for r in reversed([*mine])}.values())

    def _order(self, sends: Mapping[int, int]) -> list[int]:
        """Rows in an order in which operands are there, earlier cycles first."""
        table = self.schedule.table
        after: dict[int, list[int]] = defaultdict(list)
        missing = np.zeros(len(table), np.int64)

        def depends(row: int, on: int) -> None:
            after[on].append(row)
            missing[row] += 1

        for number, sources in enumerate(self.matching.sources):
            row = int(self.matching.takers.row[number])
            for source in sources:
                depends(row, int(self.matching.givers.row[source.giver]))
        for row, tokens in self.reads.items():
            for writer in np.unique(self.words.token_row[tokens[tokens >= 0]]).tolist():
                depends(row, writer)
        for receive, send in sends.items():
            depends(receive, send)
        self._products(depends)
        self._tables(depends)
        several = np.isin(table["op"], (BurstOp.ALU, BurstOp.TRANSPOSE))
        skipped = (table["op"] == BurstOp.INSTALL) | (several & (table["step"] != 0))
        free = np.flatnonzero((missing == 0) & ~skipped).tolist()
        heap = [(int(table["cycle"][row]), row) for row in free]
        heapq.heapify(heap)
        order = []
        while heap:
            _, row = heapq.heappop(heap)
            order.append(row)
            for other in after.get(row, ()):
                missing[other] -= 1
                if not missing[other]:
                    heapq.heappush(heap, (int(table["cycle"][other]), other))
        if len(order) != int((~skipped).sum()):
            raise VerificationError(
                f"schedule '{self.schedule.name}': some instructions wait for each other's results"
            )
        return order

    def _products(self, depends: Any) -> None:
        """Moves come after the load of what is installed, sums after their moves."""
        table, chip = self.schedule.table, self.schedule.chip
        self.installed: dict[int, int] = {}
        self.moved: dict[int, int] = {}
        loads = {
            int(table["unit"][r]): r for r in np.flatnonzero(table["op"] == BurstOp.LOAD).tolist()
        }
        installs: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for row in np.flatnonzero(table["op"] == BurstOp.INSTALL).tolist():
            unit = int(table["unit"][row])
            installs[self.schedule.units[unit].plane].append(
                (int(table["cycle"][row]), loads[unit])
            )
        for entries in installs.values():
            entries.sort()
        sums = {}
        for row in np.flatnonzero(table["op"] == BurstOp.ACCUMULATE).tolist():
            plane = self.schedule.units[int(table["unit"][row])].plane
            sums[plane, int(table["cycle"][row])] = row
        for row in np.flatnonzero(table["op"] == BurstOp.MOVE).tolist():
            plane = self.schedule.units[int(table["unit"][row])].plane
            cycle = int(table["cycle"][row])
            before = [load for at, load in installs[plane] if at <= cycle]
            self.installed[row] = before[-1]
            depends(row, before[-1])
            taker = sums[plane, cycle + chip.delay("product")]
            self.moved[taker] = row
            depends(taker, row)

    def _tables(self, depends: Any) -> None:
        """A gather comes after whatever was written to its table before."""
        table = self.schedule.table
        for row in np.flatnonzero(table["op"] == BurstOp.GATHER).tolist():
            burst, unit = table[row], self.schedule.units[int(table["unit"][row])]
            words = self.words.word(
                int(burst["queue"]), int(burst["bank"]),
                int(burst["address"]) + np.arange(unit.k, dtype=np.int64),
            )  # fmt: skip
            tokens = self.words.find(words, np.full(unit.k, int(burst["cycle"])))
            for writer in np.unique(self.words.token_row[tokens[tokens >= 0]]).tolist():
                self.wanted[writer] += 1
                depends(row, writer)

    def operands(self, row: int) -> list[Arrays]:
        """What a burst takes off its streams, a value for each of its groups."""
        burst = self.schedule.table[row]
        groups: dict[int, list[Bytes]] = defaultdict(list)
        takers = self.matching.takers
        for number in self.takes[row]:
            groups[int(takers.group[number])].append(self.tokens(number))
        if burst["op"] == BurstOp.WRITE:
            return [groups[0][0]]
        unit = self.schedule.units[int(burst["unit"])]
        return [
            joined(groups[n], group.dtype) for n, group in enumerate(unit.inputs) if n in groups
        ]

    def tokens(self, number: int) -> Bytes:
        """The tokens of one burst that takes some."""
        tokens: Bytes | None = None
        for source in self.matching.sources[number]:
            flowing = self.flowing[source.giver]
            if source.mine is None:
                tokens = flowing
            else:
                if tokens is None:
                    tokens = np.empty((int(self.matching.takers.count[number]), LANES), np.uint8)
                tokens[source.mine] = flowing[source.theirs]
            self.uses[source.giver] -= 1
            if not self.uses[source.giver]:
                del self.flowing[source.giver]
        assert tokens is not None, "the checker found a giver of every token"
        return tokens

    def give(self, row: int, values: Sequence[Arrays]) -> None:
        """Put results on streams."""
        givers = self.matching.givers
        planes = [byte_planes(value) for value in values]
        for number in self.gives[row]:
            if self.uses.get(number):
                self.flowing[number] = planes[int(givers.group[number])][int(givers.byte[number])]

    def look(self, row: int, words: Ints, tokens: Ints) -> Bytes:
        """The contents of words, by the write tokens that were found for them."""
        data = np.empty((len(words), LANES), np.uint8)
        old = tokens < 0
        if old.any():
            data[old] = self.words.initial(words[old], row)
        rows = self.words.token_row[np.maximum(tokens, 0)] if not old.all() else tokens
        for writer in np.unique(rows[~old]).tolist():
            mine = ~old & (rows == writer)
            data[mine] = self.written[writer][self.words.token[tokens[mine]]]
            self.wanted[writer] -= 1
            if not self.wanted[writer]:
                del self.written[writer]
        return data

    def step(self, row: int) -> None:
        """Play one burst."""
        burst = self.schedule.table[row]
        op = BurstOp(int(burst["op"]))
        if op == BurstOp.READ:
            words, _ = self.of_read(row)
            self.give(row, [self.look(row, words, self.reads.pop(row))])
            return
        operands = self.operands(row)
        if op == BurstOp.WRITE:
            if self.wanted.get(row):
                self.written[row] = operands[0]
            return
        unit = self.schedule.units[int(burst["unit"])]
        if op == BurstOp.LOAD:
            self.weights[row] = rows_loaded(operands, int(burst["step"]))
        elif op == BurstOp.MOVE:
            weights = self.weights[self.installed[row]]
            self.sums[row] = multiplied(operands[0], weights, unit.first, unit.k)
        elif op == BurstOp.ACCUMULATE:
            sums = self.sums.pop(self.moved[row])
            with np.errstate(all="ignore"):
                self.give(row, [sums + operands[0] if operands else sums])
        else:
            self.give(row, self.result(row, op, unit, operands))

    def result(self, row: int, op: BurstOp, unit: Unit, operands: list[Arrays]) -> list[Arrays]:
        """What other units give."""
        match op:
            case BurstOp.ALU:
                return computed(unit.operations, unit.results, operands)
            case BurstOp.SHUFFLE:
                return [shuffled(operands[0], unit.lanes)]
            case BurstOp.TRANSPOSE:
                whole = transposed(operands)
                return [whole[number] for number in unit.results]
            case BurstOp.GATHER:
                return [self.gathered(row, unit, operands[0])]
            case BurstOp.SEND:
                self.sent[unit.link].append(operands[0])
                return []
            case _:
                return [self.arrived(row, unit)]

    def gathered(self, row: int, unit: Unit, index: Arrays) -> Bytes:
        """A table's words by the numbers in lane 0."""
        burst = self.schedule.table[row]
        numbers = index[:, 0].astype(np.int64)
        wrong = (numbers < 0) | (numbers >= unit.k)
        if wrong.any():
            raise VerificationError(
                f"schedule '{self.schedule.name}', instruction {row}: row "
                f"{int(numbers[wrong][0])} of a table of {unit.k} rows is gathered"
            )
        addresses = int(burst["address"]) + numbers
        words = self.words.word(int(burst["queue"]), int(burst["bank"]), addresses)
        cycles = int(burst["cycle"]) + np.arange(len(numbers)) * int(burst["interval"])
        tokens = self.words.find(words, cycles)
        data = np.empty((len(words), LANES), np.uint8)
        for number in range(len(words)):
            at = int(tokens[number])
            if at < 0:
                data[number] = self.words.initial(words[number : number + 1], row)[0]
            else:
                data[number] = self.written[int(self.words.token_row[at])][self.words.token[at]]
        return data

    def turn(self, row: int) -> int:
        """Which send or receive on its link a burst is."""
        table, units = self.schedule.table, self.schedule.units
        link = units[int(table["unit"][row])].link
        every = np.flatnonzero(table["op"] == table["op"][row]).tolist()
        mine = [r for r in every if units[int(table["unit"][r])].link == link]
        return sorted(mine, key=lambda r: int(table["cycle"][r])).index(row)

    def arrived(self, row: int, unit: Unit) -> Arrays:
        """The next vectors of a link."""
        turn, count = self.turn(row), int(self.schedule.table["count"][row])
        vectors = self.received.get(unit.link, {}).get(turn)
        if vectors is None or vectors.shape != (count, LANES):
            raise InputError(
                f"schedule '{self.schedule.name}' receives {count} vectors on link {unit.link} as "
                f"its receive {turn}; others were given"
            )
        return vectors

    def _left(self) -> dict[str, Arrays]:
        """Rows of outputs and states."""
        contents: dict[str, Arrays] = {}
        places = {place.name: place for place in self.schedule.places}
        for region in self.results():
            place = places[region.tensor]
            rows = contents.setdefault(place.name, np.zeros((place.rows, LANES), place.dtype))
            stripes, planes = len(region.homes), []
            within = np.arange(region.rows, dtype=np.int64)
            for byte in range(len(region.homes[0])):
                homes = np.array([h[byte] for h in region.homes], np.int64)[within % stripes]
                words = (2 * homes[:, 0] + homes[:, 1]) * self.schedule.chip.bank_words
                words += homes[:, 2] + within // stripes
                numbers = self.final[region.tensor, region.first, byte]
                planes.append(self._unread(region.tensor, place.role, words, numbers))
            rows[region.first : region.first + region.rows] = joined(planes, place.dtype)
        return contents

    def _unread(self, tensor: str, role: str, words: Ints, numbers: Ints) -> Bytes:
        """Words of an output; those that nobody wrote are zeros."""
        if role == "state" or not (numbers < 0).any():
            return self.look(-1, words, numbers)
        data = np.zeros((len(words), LANES), np.uint8)
        there = numbers >= 0
        data[there] = self.look(-1, words[there], numbers[there])
        return data


def rows_loaded(operands: Sequence[Arrays], rows: int) -> Arrays:
    """Columns of a matrix over lanes: row `c * len(operands) + j` came as vector c of group j."""
    columns = np.zeros((rows, LANES), operands[0].dtype)
    for turn, vectors in enumerate(operands):
        columns[turn :: len(operands)] = vectors
    return columns
