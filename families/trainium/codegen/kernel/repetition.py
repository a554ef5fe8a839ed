"""Loops written once: iterations that only move to other places and other bytes are copied.

Iterations of a loop over heads or blocks of rows write the same instructions; what differs is which
place of a rotating tile each is on (`Buffers`), and where in HBM, or in a tile from outside, it
reads and writes. `Repetition.period` compares the instructions of two periods and finds how each
operand moves from one to the next; `repeat` writes further periods by that, many times as fast as
they were written first.

    period 1:  load q.strip1 <- q[0];    matmul s0, qt1, kt          q: 4096 bytes further each time
    period 2:  load q.strip0 <- q[4096]; matmul s1, qt0, kt          q.strip: the next of two places

Invariant: what is written is what writing the iterations would have written, as long as their
operands move evenly; who asks knows that from the program (`selection.repetition`).
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tilesmith.families.trainium.codegen.isa.instructions import Allocation, Ints
from tilesmith.families.trainium.codegen.isa.memory import Tile
from tilesmith.families.trainium.codegen.kernel.emitter import OPERAND_COLUMNS, StreamEmitter
from tilesmith.families.trainium.codegen.kernel.kernel_memory import Key


class Mark(NamedTuple):
    """How much had been written at some time: instructions, and tiles."""

    rows: int
    tiles: int


@dataclass(frozen=True)
class _Move:
    """How an operand gets from one period to the next: bytes further, and to a new tile or not."""

    key: Key
    step: int
    renewed: bool


@dataclass(frozen=True)
class Period:
    """The instructions from `begin` to `end`, which follow a period of the same.

    Attributes:
        rows: as a table; moves: of each access in it, by number.
        turns: how many tiles each pool gives in a period, by the pool's identity.
    """

    begin: Mark
    end: Mark
    rows: Ints
    moves: dict[int, _Move]
    turns: dict[int, int]

    @property
    def tiles(self) -> int:
        return self.end.tiles - self.begin.tiles


class Repetition(StreamEmitter):
    """The part of a kernel that knows how to write what it has written again."""

    def mark(self) -> Mark:
        """How much is written by now."""
        return Mark(self.length, len(self._allocations))

    def period(self, first: Mark, begin: Mark) -> Period | None:
        """What is written since `begin`, if it is what was written from `first` to `begin` with
        operands moved; else None."""
        end = self.mark()
        count, tiles = begin.rows - first.rows, begin.tiles - first.tiles
        if not count or (end.rows - begin.rows, end.tiles - begin.tiles) != (count, tiles):
            return None
        for column in (self._immediates, self._choices):
            if column[first.rows : begin.rows] != column[begin.rows :]:
                return None
        turns = self._turns(first.tiles, begin.tiles)
        if turns is None:
            return None
        before = np.array(self._rows[first.rows : begin.rows], dtype=np.int64)
        rows = np.array(self._rows[begin.rows :], dtype=np.int64)
        others = [i for i in range(rows.shape[1]) if i not in OPERAND_COLUMNS]
        if not np.array_equal(before[:, others], rows[:, others]):
            return None
        pairs = {*zip(rows[:, OPERAND_COLUMNS].flat, before[:, OPERAND_COLUMNS].flat, strict=True)}
        moves: dict[int, _Move] = {}
        for now, was in pairs:
            move = self._move(int(now), int(was), tiles)
            if move is None or moves.setdefault(int(now), move) != move:
                return None
        moves.pop(-1)
        return Period(begin, end, rows, moves, turns)

    def _turns(self, first: int, begin: int) -> dict[int, int] | None:
        """How many tiles each pool gives in a period; None unless both periods have tiles of the
        same pools in the same order, the others in the same places."""
        tiles = begin - first
        turns: dict[int, int] = {}
        for at in range(first, begin):
            origin = self._origins[at]
            if origin is not None:
                turns[id(origin[0])] = turns.get(id(origin[0]), 0) + 1
        for at in range(first, begin):
            one, two = self._origins[at], self._origins[at + tiles]
            if one is None or two is None:
                if one is not two or self._allocations[at] != self._allocations[at + tiles]:
                    return None
            elif one[0] is not two[0] or two[1] - one[1] != turns[id(one[0])]:
                return None
        return turns

    def _move(self, now: int, was: int, tiles: int) -> _Move | None:
        """How access `was` became access `now`."""
        if now < 0 or was < 0:
            return _Move(self._keys[0], 0, renewed=False) if now == was else None
        one, two = self._keys[was], self._keys[now]
        if one[:4] != two[:4] or one[6:] != two[6:]:
            return None
        renewed = tiles > 0 and two[5] == one[5] + tiles and two[5] >= 0
        if not renewed and one[5] != two[5]:
            return None
        step = two[4] - one[4]
        if renewed:
            step -= self._allocations[two[5]].offset - self._allocations[one[5]].offset
        return _Move(two, step, renewed)

    def _later(self, tile: int, period: Period, times: int) -> Allocation:
        """The place of what `times` periods later is to these what `tile` is to this one."""
        origin = self._origins[tile]
        if origin is None:
            return self._allocations[tile]
        pool, turn = origin
        turn += period.turns[id(pool)] * times
        return self._allocations[pool.places[turn % len(pool.places)].allocation]

    def repeat(self, period: Period, times: int) -> None:
        """Write a period, the last thing written, `times` more."""
        begin, end = period.begin, period.end
        immediates, choices = self._immediates[begin.rows :], self._choices[begin.rows :]
        lines, origins = self._lines[begin.rows :], self._origins[begin.tiles :]
        allocations = self._allocations[begin.tiles :]
        for time in range(1, times + 1):
            for at, (origin, allocation) in enumerate(zip(origins, allocations, strict=True)):
                if origin is not None:
                    origin = (origin[0], origin[1] + period.turns[id(origin[0])] * time)
                    allocation = self._later(begin.tiles + at, period, time)
                self._allocate(allocation, origin)
            numbers = np.arange(-1, max(period.moves, default=0) + 1)
            for access, move in period.moves.items():
                if move.renewed or move.step:
                    numbers[access + 1] = self._number(self._moved(move, period, time))
            rows = period.rows.copy()
            rows[:, OPERAND_COLUMNS] = numbers[rows[:, OPERAND_COLUMNS] + 1]
            self._rows += map(tuple, rows.tolist())
            self._immediates += immediates
            self._choices += choices
            self._lines += lines
        for pool in {id(o[0]): o[0] for o in origins if o is not None}.values():
            pool.skip(period.turns[id(pool)] * times)
        assert len(self._allocations) == end.tiles + period.tiles * times

    def _moved(self, move: _Move, period: Period, times: int) -> Key:
        space, tensor, dtype, partition, offset, tile, counts, strides = move.key
        offset += move.step * times
        if move.renewed:
            offset += self._later(tile, period, times).offset - self._allocations[tile].offset
            tile += period.tiles * times
        return (space, tensor, dtype, partition, offset, tile, counts, strides)

    def moved_by(self, tile: int, period: Period, times: int) -> int:
        """Bytes from the place of a tile to that of its equal `times` periods later."""
        return self._later(tile, period, times).offset - self._allocations[tile].offset

    def renewed(self, tile: Tile, period: Period, times: int) -> Tile:
        """What is to a handle given since the loop began, after `times` periods, what it is now."""
        place = self._later(tile.allocation, period, times)
        offset = place.offset + tile.offset - self._allocations[tile.allocation].offset
        number = tile.allocation + period.tiles * times
        return replace(tile, name=place.name, allocation=number, offset=offset)

    def relative(self, tile: Tile, since: int) -> tuple[object, ...]:
        """What two handles have in common that are the same but for the time: `since` tiles were
        there when the loop began."""
        at = tile.allocation
        if at < since:
            return (at, tile.offset)
        origin = self._origins[at]
        base = self._allocations[at].offset if origin is not None else 0
        return (
            at - len(self._allocations), tile.offset - base, tile.partition, tile.partitions,
            tile.dims, id(origin[0]) if origin is not None else 0,
        )  # fmt: skip
