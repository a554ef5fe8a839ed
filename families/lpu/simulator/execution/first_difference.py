"""The first burst of a schedule whose output differs from what its chain means.

Chains are evaluated by themselves (`chains`), and the schedule is played burst by burst. What a
burst puts on streams or into MEM has to be one of the values that flow in its chain: the rows that
it names, for reads and writes; else what a step of its kind gives. What a unit takes has to flow
in the chain, too; if it does not, the burst that gave it is at fault.

Invariant: bursts are looked at in an order in which all that they depend on was looked at before.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.lpu.codegen import dataflow
from tilesmith.families.lpu.codegen.isa.bursts import BurstOp, BurstSchedule
from tilesmith.families.lpu.codegen.verification.tokens import Matching
from tilesmith.families.lpu.simulator.execution.arithmetic import computed
from tilesmith.families.lpu.simulator.execution.chains import Tensors, Values, run_chains
from tilesmith.families.lpu.simulator.execution.functional import ChipPlayer, rows_loaded
from tilesmith.families.lpu.simulator.execution.memory_words import MemoryWords, byte_planes

Arrays = NDArray[Any]

_KINDS = {
    dataflow.Compute: BurstOp.ALU,
    dataflow.Shuffle: BurstOp.SHUFFLE,
    dataflow.Product: BurstOp.ACCUMULATE,
    dataflow.Transpose: BurstOp.TRANSPOSE,
    dataflow.Gather: BurstOp.GATHER,
}
"""Bursts that give what flows out of steps."""

CLOSE = 1e-6
"""Relative difference that is another order of the same sum."""


@dataclass(frozen=True, eq=False)
class _Difference:
    """A burst whose output differs.

    Attributes:
        row: of the schedule's table.
        vector, lane: the first element that is wrong.
        computed, wanted: what it gives, and what would be nearest to it of what flows in its chain.
        reason: what about it is wrong.
    """

    row: int
    vector: int
    lane: int
    computed: float
    wanted: float
    reason: str


class _Meaning:
    """What flows in a chain."""

    def __init__(self) -> None:
        self.values: list[Arrays] = []
        self.results: dict[BurstOp, list[Arrays]] = defaultdict(list)
        self.within: list[list[Arrays]] = []
        self.read: dict[str, dict[int, Arrays]] = defaultdict(dict)
        self.weights: list[Arrays] = []
        self.lanes: set[tuple[int, ...]] = set()
        self.written: dict[str, dict[int, Arrays]] = defaultdict(dict)

    def nearest(self, vector: Arrays, values: Sequence[Arrays] | None = None) -> Arrays | None:
        """The value that a found one is; if it is none, the nearest of its shape and type."""
        values = self.values if values is None else values
        alike = [v for v in values if v.shape == vector.shape and v.dtype == vector.dtype]
        if not alike:
            return None
        mine = np.ascontiguousarray(vector).view(np.uint8)

        def bytes_apart(value: Arrays) -> int:
            if not _apart(vector, value).any():
                return 0
            return 1 + int((np.ascontiguousarray(value).view(np.uint8) != mine).sum())

        return min(alike, key=bytes_apart)

    def first_apart(self, values: Sequence[Arrays]) -> tuple[int | None, Arrays | None]:
        """Which result of a unit's operations is the first to differ, and what it would be.

        A step of as many operations says so by its own results, the one that agrees longest; else
        the result may be any that some step has within.
        """
        alike = [
            part
            for part in self.within
            if [(v.shape, v.dtype) for v in part] == [(v.shape, v.dtype) for v in values]
        ]
        firsts = [
            next((n for n, v in enumerate(values) if _apart(v, part[n]).any()), len(values))
            for part in alike
        ]
        if firsts and max(firsts) < len(values):
            return max(firsts), alike[int(np.argmax(firsts))][max(firsts)]
        known = [v for part in self.within for v in part]
        for number, value in enumerate(values):
            closest = self.nearest(value, known)
            if closest is None or _apart(value, closest).any():
                return number, closest
        return None, None


class _WrongError(Exception):
    """The search is over."""

    def __init__(self, difference: _Difference) -> None:
        super().__init__(difference.reason)
        self.difference = difference


def first_difference(
    flow: dataflow.Dataflow,
    schedule: BurstSchedule,
    contents: Mapping[str, Arrays],
    matching: Matching,
) -> _Difference | None:
    """The first burst that differs; None if none does.

    Args:
        contents: as `functional.execute`.

    Raises:
        JobError: a chain that sends to other chips.
    """
    meanings: dict[str, _Meaning] = defaultdict(_Meaning)

    def note(chain: dataflow.Chain, values: Values, tensors: Tensors) -> None:
        _note(meanings[chain.name], chain, values, tensors)

    run_chains(flow, contents, note)
    words = MemoryWords(schedule, contents)
    player = _Checking(schedule, matching, words, {})
    player.meanings = dict(meanings)
    try:
        player.play()
    except _WrongError as wrong:
        return wrong.difference
    return None


def _note(meaning: _Meaning, chain: dataflow.Chain, values: Values, tensors: Tensors) -> None:
    meaning.values += values.values()
    for value, array in values.items():
        kind = _KINDS.get(type(chain.steps[value.step]))
        if kind is not None:
            meaning.results[kind].append(array)
    for number, step in enumerate(chain.steps):
        match step:
            case dataflow.Read(rows, frame):
                pairs = zip(rows.numbers.tolist(), values[dataflow.ChainValue(number)], strict=True)
                meaning.read[rows.tensor] |= {row: vector for row, vector in pairs if row >= 0}
                if frame:
                    meaning.read[frame][0] = tensors[frame][0]
            case dataflow.Product(weights=weights):
                rows = weights.numbers.tolist()
                meaning.weights.append(tensors[weights.tensor][weights.numbers])
                meaning.read[weights.tensor] |= {r: tensors[weights.tensor][r] for r in rows}
            case dataflow.Gather(table=table):
                meaning.read[table] |= dict(enumerate(tensors[table]))
            case dataflow.Write(value, rows):
                pairs = zip(rows.numbers.tolist(), values[value], strict=True)
                meaning.written[rows.tensor] |= dict(pairs)
            case dataflow.Compute(inputs, operations, _):
                taken = [values[v] for v in inputs]
                every = range(len(inputs), len(inputs) + len(operations))
                meaning.within.append(computed(operations, list(every), taken))
            case dataflow.Shuffle(lanes=lanes):
                meaning.lanes.add(tuple(lanes))
            case _:
                pass


class _Checking(ChipPlayer):
    """Plays a schedule, and raises `_WrongError` at the first burst that differs."""

    meanings: dict[str, _Meaning]

    def meaning(self, row: int) -> _Meaning | None:
        """What flows in the chain of a burst; None of chains that scheduling added."""
        return self.meanings.get(self.schedule.chains[int(self.schedule.table["chain"][row])])

    def operands(self, row: int) -> list[Arrays]:
        operands = super().operands(row)
        op, meaning = BurstOp(int(self.schedule.table["op"][row])), self.meaning(row)
        if meaning is None:
            return operands
        if op == BurstOp.WRITE:
            self.in_memory(row, operands[0], meaning.written, "it writes something else")
        elif op in (
            BurstOp.ALU,
            BurstOp.SHUFFLE,
            BurstOp.MOVE,
            BurstOp.TRANSPOSE,
            BurstOp.ACCUMULATE,
            BurstOp.GATHER,
        ):
            for number, value in enumerate(operands):
                nearest = meaning.nearest(value)
                if nearest is not None and _apart(value, nearest).any():
                    self.blame(row, number, value, nearest)
        elif op == BurstOp.LOAD:
            self.loaded(row, operands)
        return operands

    def loaded(self, row: int, vectors: list[Arrays]) -> None:
        """Raise unless what is loaded are the weights of some product."""
        whole = rows_loaded(vectors, int(self.schedule.table["step"][row]))
        weights = [w for meaning in self.meanings.values() for w in meaning.weights]
        nearest = _Meaning().nearest(whole, weights)
        if nearest is None or not _apart(whole, nearest).any():
            return
        turn = int(np.flatnonzero(_apart(whole, nearest).any(axis=1))[0]) % len(vectors)
        wanted = np.array(vectors[turn])
        mine = nearest[turn :: len(vectors)]
        wanted[: len(mine)] = mine
        self.blame(row, turn, vectors[turn], wanted)

    def blame(self, row: int, operand: int, given: Arrays, wanted: Arrays) -> None:
        """Raise at who gave an operand that is wrong."""
        planes = zip(byte_planes(np.asarray(given)), byte_planes(np.asarray(wanted)), strict=True)
        giver = self.giver(row, operand, [(one != two).any(axis=-1) for one, two in planes])
        raise _WrongError(_told(giver, given, wanted, "its chain wants other rows there"))

    def giver(self, row: int, operand: int, wrong: Sequence[NDArray[np.bool_]]) -> int:
        """Who gave the first vector of a byte plane that is wrong."""
        takers = self.matching.takers
        for number in self.takes[row]:
            if int(takers.group[number]) != operand or not wrong[int(takers.byte[number])].any():
                continue
            vectors = np.flatnonzero(wrong[int(takers.byte[number])])
            for source in self.matching.sources[number]:
                count = int(takers.count[number])
                mine = np.arange(count) if source.mine is None else np.arange(count)[source.mine]
                if np.isin(vectors, mine).any():
                    return int(self.matching.givers.row[source.giver])
        return row

    def give(self, row: int, values: Sequence[Arrays]) -> None:
        op, meaning = BurstOp(int(self.schedule.table["op"][row])), self.meaning(row)
        if meaning is not None and op == BurstOp.READ:
            self.in_memory(row, values[0], meaning.read, "it reads something else")
        elif meaning is not None:
            for value in values:
                whole = np.broadcast_to(value, (int(self.schedule.table["count"][row]), 320))
                copied = op == BurstOp.ALU and self.copies(row)
                nearest = meaning.nearest(whole, None if copied else meaning.results[op])
                if nearest is not None and _apart(whole, nearest).any():
                    self.within(row, meaning, whole, nearest)
        super().give(row, values)

    def copies(self, row: int) -> bool:
        """Whether VXM only gives what it takes: scheduling adds that where rows are copied."""
        unit = self.schedule.units[int(self.schedule.table["unit"][row])]
        return all(operation.function == "copy" for operation in unit.operations)

    def within(self, row: int, meaning: _Meaning, given: Arrays, nearest: Arrays) -> None:
        """Raise at a unit that gives something else; of VXM at the ALU that does."""
        reason = "no step of its chain gives that"
        table = self.schedule.table
        if table["op"][row] == BurstOp.ALU:
            unit, mine = self.schedule.units[int(table["unit"][row])], int(table["unit"][row])
            every = range(len(unit.inputs), len(unit.inputs) + len(unit.operations))
            values = computed(unit.operations, list(every), self.last)
            at, wanted = meaning.first_apart(values)
            if at is not None:
                rows = np.flatnonzero((table["unit"] == mine) & (table["step"] == at))
                wanted = nearest if wanted is None else wanted
                self.moved_wrongly(row, meaning, values[at], wanted)
                raise _WrongError(_told(int(rows[0]), values[at], wanted, reason))
        raise _WrongError(_told(row, given, nearest, reason))

    def moved_wrongly(self, row: int, meaning: _Meaning, given: Arrays, wanted: Arrays) -> None:
        """Raise at a burst of the same chain that moves lanes as no step does.

        Where lanes repeat, what it gives may still be what another step gives, so that only what is
        computed of it differs.
        """
        table = self.schedule.table
        alike = (table["op"] == BurstOp.SHUFFLE) & (table["chain"] == table["chain"][row])
        for other in np.flatnonzero(alike).tolist():
            if self.schedule.units[int(table["unit"][other])].lanes not in meaning.lanes:
                reason = "no step of its chain moves lanes so"
                raise _WrongError(_told(other, given, wanted, reason))

    def result(self, row: int, op: BurstOp, unit: Any, operands: list[Arrays]) -> list[Arrays]:
        self.last = operands
        return super().result(row, op, unit, operands)

    def in_memory(
        self, row: int, given: Arrays, rows: Mapping[str, Mapping[int, Arrays]], reason: str
    ) -> None:
        """Raise unless a burst's words are the bytes of the rows that it names."""
        burst = self.schedule.table[row]
        known = rows.get(self.schedule.places[int(burst["tensor"])].name)
        if known is None:
            return
        for turn, vector in enumerate(given):
            number = int(burst["row"]) + turn * int(burst["pitch"])
            wanted = known.get(number)
            if wanted is None:
                reason = f"row {number} is none of its chain's"
                raise _WrongError(
                    _told(row, given[turn : turn + 1], given[turn : turn + 1], reason)
                )
            plane = byte_planes(wanted[None])[int(burst["byte"])][0]
            if not np.array_equal(plane, vector):
                raise _WrongError(_told(row, vector[None], plane[None], reason, turn))


def _told(row: int, given: Arrays, wanted: Arrays, reason: str, turn: int = 0) -> _Difference:
    given = np.broadcast_to(given, wanted.shape)
    places = np.argwhere(_apart(given, wanted))
    vector, lane = (int(n) for n in places[0]) if len(places) else (0, 0)
    return _Difference(
        row, vector + turn, lane, float(given[vector, lane]), float(wanted[vector, lane]), reason
    )


def _apart(given: Arrays, wanted: Arrays) -> NDArray[np.bool_]:
    """Which elements are not the same, but for the order of a sum."""
    given = np.broadcast_to(given, wanted.shape)
    if wanted.dtype.kind != "f":
        return np.asarray(given != wanted)
    ours, theirs = given.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(all="ignore"):
        close = np.abs(ours - theirs) <= CLOSE * np.abs(theirs)
    return np.asarray(~(close | (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))))
