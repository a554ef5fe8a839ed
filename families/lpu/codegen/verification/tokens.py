"""Tokens of a schedule: which bursts put them on streams, and which take them.

A token on an eastward stream is at position p in cycle tau + p, on a westward one in cycle tau - p:
with a = p eastward and -p westward, tau = cycle - a is its name for life. So a burst is `count`
taus, `interval` apart, from a place `a` on; who takes it has the same taus at a place further on.

Invariants: read off the schedule's table and units alone, not off what the scheduler knew.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import Ints
from tilesmith.families.lpu.codegen.isa.bursts import (
    BurstOp,
    BurstSchedule,
    StreamGroup,
    Unit,
    depths,
    latency,
)

COLUMNS = ("stream", "tau", "count", "interval", "place", "row", "group", "byte", "last")


@dataclass(frozen=True, eq=False)
class Tokens:
    """Bursts of tokens given or taken.

    Attributes:
        stream: number of the stream, twice, plus one if eastward.
        tau, count, interval, place: see the module's docstring.
        row: the burst of the schedule's table.
        group, byte: which of its unit's outputs (inputs), and which byte of it.
        last: whether what is taken does not travel on.
    """

    stream: Ints
    tau: Ints
    count: Ints
    interval: Ints
    place: Ints
    row: Ints
    group: Ints
    byte: Ints
    last: Ints

    def __len__(self) -> int:
        return len(self.tau)

    @cached_property
    def end(self) -> Ints:
        """Behind the last tau."""
        return self.tau + (self.count - 1) * self.interval + 1

    def taus(self, number: int) -> Ints:
        """All of one burst."""
        steps = np.arange(self.count[number], dtype=np.int64)
        return np.asarray(self.tau[number] + steps * self.interval[number])


class _Lister:
    """Rows of `COLUMNS` under way."""

    def __init__(self, schedule: BurstSchedule) -> None:
        self.schedule, self.chip = schedule, schedule.chip
        self.rows: list[tuple[int, ...]] = []

    def group(
        self, row: int, number: int, group: StreamGroup, cell: tuple[int, int, int, int]
    ) -> None:
        """All streams of a group; `cell`: position, cycle, count and interval."""
        place, cycle, count, interval = cell
        ahead = place if group.east else -place
        if count <= 0:
            return
        for byte, stream in enumerate(group.streams):
            self.rows.append((
                2 * stream + group.east, cycle - ahead, count, interval, ahead, row, number, byte,
                group.last,
            ))  # fmt: skip

    def memory(self, op: BurstOp, delay: int) -> None:
        """Reads, writes or gathers of the whole table at once."""
        table = self.schedule.table
        mine = np.flatnonzero(table["op"] == op)
        if not len(mine):
            return
        rows = table[mine]
        east = rows["east"].astype(np.int64)
        ahead = np.array(self.chip.places)[rows["queue"]] * (2 * east - 1)
        columns = (
            2 * rows["stream"].astype(np.int64) + east, rows["cycle"] + delay - ahead,
            rows["count"], rows["interval"], ahead, mine, 0 * mine, 0 * mine, rows["last"],
        )  # fmt: skip
        self.rows += list(zip(*(c.tolist() for c in columns), strict=True))

    def done(self) -> Tokens:
        columns = np.array(self.rows, np.int64).reshape(-1, len(COLUMNS)).T.copy()
        return Tokens(*columns)


def units_of(schedule: BurstSchedule) -> list[tuple[int, BurstOp, Unit, tuple[int, int, int]]]:
    """(row, op, unit, (cycle, count, interval)) of bursts between streams; of VXM one a unit."""
    table = schedule.table
    units = (table["unit"] >= 0) & (table["op"] != BurstOp.INSTALL)
    several = np.isin(table["op"], (BurstOp.ALU, BurstOp.TRANSPOSE))
    mine = np.flatnonzero(units & (~several | (table["step"] == 0)))
    names = ("op", "unit", "cycle", "count", "interval")
    columns = [table[name][mine].tolist() for name in names]
    return [
        (row, BurstOp(op), schedule.units[unit], (cycle, count, interval))
        for row, op, unit, cycle, count, interval in zip(mine.tolist(), *columns, strict=True)
    ]


def given(schedule: BurstSchedule) -> Tokens:
    """Tokens put on streams."""
    lister, chip = _Lister(schedule), schedule.chip
    lister.memory(BurstOp.READ, latency(chip, BurstOp.READ))
    lister.memory(BurstOp.GATHER, latency(chip, BurstOp.GATHER))
    for row, op, unit, (cycle, count, interval) in units_of(schedule):
        for number, group in enumerate(unit.outputs):
            after = output_delay(chip, op, unit, number)
            lister.group(row, number, group, (unit.place, cycle + after, count, interval))
    return lister.done()


def output_delay(chip: Chip, op: BurstOp, unit: Unit, number: int) -> int:
    """Cycles from the issue of a unit's (first) instruction to output `number`."""
    if op == BurstOp.ALU:
        ahead = depths(len(unit.inputs), unit.operations)
        return (ahead[unit.results[number] - len(unit.inputs)] + 1) * latency(chip, BurstOp.ALU)
    return 0 if op == BurstOp.RECEIVE else latency(chip, op)


def taken(schedule: BurstSchedule) -> Tokens:
    """Tokens that somebody takes off streams, or taps."""
    lister = _Lister(schedule)
    lister.memory(BurstOp.WRITE, 0)
    for row, op, unit, (cycle, count, interval) in units_of(schedule):
        for number, group in enumerate(unit.inputs):
            tokens = count
            if op == BurstOp.LOAD:  # row `number` of each cycle, of so many rows
                rows = int(schedule.table["step"][row])
                tokens = -(-(rows - number) // len(unit.inputs))
            lister.group(row, number, group, (unit.place, cycle, tokens, interval))
    return lister.done()


@dataclass(frozen=True)
class TokenSource:
    """Where a burst's tokens come from: token i of `mine` is token `theirs[i]` of `giver`.

    `mine` and `theirs` are None where all are, one by one.
    """

    giver: int
    mine: Ints | None = None
    theirs: Ints | None = None


class Matching:
    """For every burst of taken tokens those that gave them: the nearest upstream of each tau."""

    def __init__(self, givers: Tokens, takers: Tokens) -> None:
        self.givers, self.takers = givers, takers
        self.sources = [self._search(number) for number in range(len(takers))]
        self.missing = [number for number, source in enumerate(self.sources) if not source]

    @cached_property
    def _by_stream(self) -> dict[int, tuple[Ints, Ints, Ints, Ints, int]]:
        """Of each stream the bursts given in order of tau: numbers, taus, ends, places, and how
        long the longest is."""
        givers = self.givers
        order = np.lexsort((givers.tau, givers.stream))
        bounds = np.flatnonzero(np.diff(givers.stream[order])) + 1
        bursts = {}
        for mine in np.split(order, bounds):
            if len(mine):
                columns = (mine, givers.tau[mine], givers.end[mine], givers.place[mine])
                longest = int((columns[2] - columns[1]).max())
                bursts[int(givers.stream[mine[0]])] = (*columns, longest)
        return bursts

    def _near(self, number: int) -> list[int]:
        """Bursts on a taker's stream, upstream of it, that share some time with it."""
        takers = self.takers
        if int(takers.stream[number]) not in self._by_stream:
            return []
        mine, taus, ends, places, longest = self._by_stream[int(takers.stream[number])]
        begin, end = int(takers.tau[number]), int(takers.end[number])
        first, last = np.searchsorted(taus, (begin - longest, end)).tolist()
        here = slice(first, last)
        near = (ends[here] > begin) & (places[here] <= takers.place[number])
        return [int(giver) for giver in mine[here][near]]

    def _alike(self, giver: int, number: int) -> bool:
        """Whether a burst gives just the tokens that are taken."""
        givers, takers = self.givers, self.takers
        same = (
            givers.tau[giver] == takers.tau[number] and givers.count[giver] == takers.count[number]
        )
        return bool(
            same and (givers.count[giver] == 1 or givers.interval[giver] == takers.interval[number])
        )

    def _search(self, number: int) -> list[TokenSource]:
        """The sources of a burst token by token; none if one of them has no giver."""
        givers, takers = self.givers, self.takers
        near = self._near(number)
        if len(near) == 1 and self._alike(near[0], number):
            return [TokenSource(near[0])]
        places = givers.place[near]
        taus = takers.taus(number)
        chosen = np.full(len(taus), -1, np.int64)
        for giver in [near[n] for n in np.argsort(places, kind="stable").tolist()]:
            steps, rest = np.divmod(taus - givers.tau[giver], givers.interval[giver])
            hit = (rest == 0) & (steps >= 0) & (steps < givers.count[giver])
            chosen[hit] = giver
        if (chosen < 0).any():
            return []
        sources = []
        for giver in np.unique(chosen).tolist():
            at = np.flatnonzero(chosen == giver)
            theirs = (taus[at] - givers.tau[giver]) // givers.interval[giver]
            sources.append(TokenSource(giver, at, theirs))
        return sources
