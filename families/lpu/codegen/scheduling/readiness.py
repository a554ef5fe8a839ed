"""What has to fit together, and from when on: rows are read once they are written, and overwritten
once they were read.

Rows of a chain are any numbers; a burst's addresses are first + i x step, and its vectors come
evenly. `pieces` cuts rows into such bursts, greedily: which words of which stripe, and at which
vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tilesmith.families.lpu.codegen.dataflow import Ints
from tilesmith.families.lpu.codegen.scheduling.resources.board import Board, Homes
from tilesmith.families.lpu.codegen.scheduling.resources.calendars import BusyIntervals
from tilesmith.families.lpu.codegen.scheduling.resources.memory import Words
from tilesmith.families.lpu.codegen.scheduling.rigid import RowAccess, StreamFlow


class WordPiece(NamedTuple):
    """Vectors first, first + every, ... of a chain are words `word`, `word + step`, ... ."""

    first: int
    length: int
    every: int
    block: int
    stripe: int
    word: int
    step: int

    @property
    def span(self) -> int:
        """From its first vector to behind its last."""
        return (self.length - 1) * self.every + 1


def pieces(
    rows: Ints, block: int, stripes: int, vectors: Ints | None = None
) -> tuple[WordPiece, ...]:
    """Cut rows into pieces. (Chains of equal layers, and a chain that is looked at several times,
    have the same rows: what was cut is kept.)

    Args:
        rows: row numbers, shape (count,).
        block: rows a block.
        stripes: rows of a block are on so many places in turn.
        vectors: when each row's turn is, ascending; in order from 0 by default.
    """
    turns = None if vectors is None else vectors.tobytes()
    return _pieces(rows.tobytes(), block, stripes, turns)


@lru_cache(maxsize=1 << 14)
def _pieces(
    numbers: bytes, block: int, stripes: int, vectors: bytes | None
) -> tuple[WordPiece, ...]:
    rows: Ints = np.frombuffer(numbers, np.int64)
    turns: Ints = np.arange(len(rows)) if vectors is None else np.frombuffer(vectors, np.int64)
    blocks, inside = np.divmod(rows, block)
    words, lanes = np.divmod(inside, stripes)
    keys = blocks * stripes + lanes
    pieces: list[WordPiece] = []
    first = keys[0]
    groups = [np.arange(len(rows))]
    if (keys != first).any():
        order = np.argsort(keys, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)
    for group in groups:
        key = int(keys[group[0]])
        at = divmod(key, stripes)
        pieces += [
            WordPiece(w, n, e, *at, a, s) for w, n, e, a, s in runs(turns[group], words[group])
        ]
    return tuple(sorted(pieces))


def runs(when: Ints, words: Ints) -> list[tuple[int, int, int, int, int]]:
    """(first, count, every, word, step) of stretches in which both grow evenly."""
    count = len(when)
    if count == 1:
        return [(int(when[0]), 1, 1, int(words[0]), 0)]
    gaps = np.stack((np.diff(when), np.diff(words)))
    turns = np.flatnonzero((np.diff(gaps, axis=1) != 0).any(axis=0)) + 1
    stretches = []
    begin = 0
    bounds = [*turns.tolist(), count - 1]
    for bound in bounds:  # a gap `bound` differs from the one before it
        if bound < begin:
            continue
        length = bound - begin + 1
        if length == 1 and bound < count - 1:
            continue
        every, step = (int(gaps[n, begin]) if length > 1 else 1 - n for n in (0, 1))
        stretches.append((int(when[begin]), length, every, int(words[begin]), step))
        begin = bound + 1
    return stretches


Spans = dict[int, list[tuple[int, int]]]
"""By stripe, stretches of vectors: first, and behind the last."""


class Taken(NamedTuple):
    """A port and bank of a slice, for an interval."""

    words: Words
    write: bool
    start: int
    length: int


@dataclass(eq=False)
class StartRequest:
    """What has to fit together, relative to a start.

    Attributes:
        count: vectors.
        units: lines that are given, with start and length.
        pools: lines of which any one will do, with start and length; no two the same.
        floor: the cycle before which nothing may begin.
        cut, spans: pieces of every access, and its blocks with the vectors of each stripe; once
            they are asked for.
        probed: a start before which it cannot be met, as was found (`settling.probe`): what is
            taken stays so.
    """

    name: str
    count: int
    interval: int
    flows: list[StreamFlow]
    accesses: list[RowAccess]
    units: list[tuple[BusyIntervals, int, int]] = field(default_factory=list)
    pools: list[tuple[Sequence[BusyIntervals], int, int]] = field(default_factory=list)
    floor: int = 0
    cut: dict[RowAccess, tuple[WordPiece, ...]] = field(default_factory=dict)
    spans: dict[RowAccess, list[tuple[int, Spans]]] = field(default_factory=dict)
    probed: int = 0

    @property
    def first(self) -> int:
        """When its first unit begins, relative to the start."""
        lines = [*(begin for _, begin, _ in self.units), *(begin for _, begin, _ in self.pools)]
        return min(lines, default=0)


@dataclass(eq=False)
class SettledStart:
    """A start, and what was chosen for it.

    Attributes:
        chosen: number of the line taken of each pool.
        placed: homes of blocks that had none, or need others.
        homes: those that each block of an access is found in.
    """

    start: int
    chosen: list[int]
    taken: list[Taken]
    placed: dict[tuple[str, int, bool], list[Homes]]
    homes: dict[tuple[RowAccess, int], Homes]


def issue(board: Board, access: RowAccess, number: int) -> int:
    """The cycle a slice issues an access of vector 0 in, relative to the start."""
    chip = board.chip
    cell = access.flow.cell(chip.places[number])
    if access.write:
        return cell
    return cell - chip.delay("gather" if access.index is not None else "read")


FAR_APART = 8
"""Vectors from one access of a slice to the next, from which on others may use it in between."""


def spans_of(board: Board, request: StartRequest, access: RowAccess) -> list[tuple[int, Spans]]:
    """Blocks of an access, with the vectors of each stripe; all of a block in one home. Rows are
    cut into pieces, once."""
    known = request.spans.get(access)
    if known is None:
        layout = board.layouts[access.tensor]
        request.cut[access] = pieces(access.rows, layout.block, layout.stripes, access.vectors)
        known = request.spans[access] = _spans(request, access)
    return known


def _spans(request: StartRequest, access: RowAccess) -> list[tuple[int, Spans]]:
    if access.index is not None:  # any row, all the time
        return [(request.cut[access][0].block, {0: [(0, request.count)]})]
    if access.scattered and access.vectors is not None:
        turns = access.vectors
        apart = np.split(turns, np.flatnonzero(np.diff(turns) != 1) + 1)
        return [(0, {0: [(int(run[0]), int(run[-1]) + 1) for run in apart]})]
    blocks: dict[int, Spans] = {}
    for piece in request.cut[access]:
        stripes = blocks.setdefault(piece.block, {})
        begin, end = piece.first, piece.first + piece.span
        if piece.stripe in stripes:
            whole = stripes[piece.stripe]
            stripes[piece.stripe] = [(min(begin, whole[0][0]), max(end, whole[-1][1]))]
        elif piece.every >= FAR_APART:
            stripes[piece.stripe] = [(v, v + 1) for v in range(begin, end, piece.every)]
        else:
            stripes[piece.stripe] = [(begin, end)]
    return list(blocks.items())


def ready_rows(board: Board, tensor: str) -> Ints:
    """When rows may be read, whichever of the rows side by side a chip takes in their place."""
    parts, ready = board.layouts[tensor].tensor.parts, board.ready[tensor]
    return ready if parts == 1 else np.repeat(ready.reshape(-1, parts).max(axis=1), parts)


def earliest(board: Board, request: StartRequest) -> int:
    """The start before which rows are not written yet, or still to be read, or units may not begin
    by the floor."""
    start = max(0, request.floor - request.first) if request.floor else 0
    for access in request.accesses:
        if access.tensor not in board.ready:
            continue
        turns = np.arange(len(access.rows)) if access.vectors is None else access.vectors
        if access.index is not None:
            turns = np.zeros(len(access.rows), np.int64)
        wanted: Ints = ready_rows(board, access.tensor)[access.rows]
        if access.write:
            wanted = np.maximum(wanted, board.read_until[access.tensor][access.rows])
        if not wanted.any():
            continue
        first = int((wanted - turns * request.interval).max())
        numbers = {
            words.slice
            for block, _ in spans_of(board, request, access)
            for homes in board.homes.get((access.tensor, block, access.side), ())
            for stripe in homes
            for words in stripe
        }
        start = max(start, first - min((issue(board, access, n) for n in numbers), default=0))
    return start


def mark(board: Board, request: StartRequest, access: RowAccess, start: int) -> None:
    """Note when rows are written, or read until."""
    if access.tensor not in board.ready:
        return
    turns = np.arange(len(access.rows)) if access.vectors is None else access.vectors
    if access.index is not None:
        turns = np.full(len(access.rows), request.count)
    numbers = {
        words.slice
        for block, _ in spans_of(board, request, access)
        for homes in board.homes[access.tensor, block, access.side]
        for stripe in homes
        for words in stripe
    }
    last = start + max(issue(board, access, n) for n in numbers)
    at = last + turns * request.interval
    table = board.ready if access.write else board.read_until
    after = board.chip.delay("write") if access.write else 1
    np.maximum.at(table[access.tensor], access.rows, at + after)
