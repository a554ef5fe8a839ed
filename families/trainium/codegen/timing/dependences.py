"""Data dependences of an instruction stream, and the semaphores that they imply.

An instruction depends on the last writer of what it reads, and on the readers since and the last
writer of what it overwrites. One pass over the rows finds all such pairs: each cell of a memory on
chip knows its last writer and who read it since; accesses to HBM are compared as strided boxes,
tensor by tensor. Boxes that cannot be told apart cheaply count as overlapping, which is safe.
Schedules of whole programs and of loops (`scheduling`), semaphores and their verification all come
from these pairs. Invariant: an order that keeps every pair has the same pairs.

A queue's semaphore counts its finished instructions, in order, so waiting for one instruction is
waiting for all before it in its queue: at most one wait for each other queue is kept, and none
that an earlier wait of the same queue already covers. A compute engine needs no wait to overwrite
what it read or wrote itself (it works in order), but one to read its own result, which takes a
latency to appear; the tensor engine needs none for that either.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tilesmith.codegen.compiled import Ints, compiled
from tilesmith.families.trainium.codegen.isa.core import FIRST_DMA_QUEUE, QUEUES
from tilesmith.families.trainium.codegen.isa.footprints import Footprints, footprints
from tilesmith.families.trainium.codegen.isa.instructions import OPERANDS, InstructionStream, Opcode

TOUCHED = len(OPERANDS)
"""Accesses of a row: those read, then those written."""

FIRST_WRITTEN = 3

PLACE, OVERWRITES, READS = -1, 0, 1
"""Why a row follows another (`Dependences.flow`): only for the place of its tile; to overwrite what
the other touches; to read what the other writes."""


class _Rows(NamedTuple):
    """Accesses that rows touch (n * TOUCHED), -1: none; whether each HBM tensor is `stored`; the
    tile of each access, and a number for the place it shares with others, -1 where none counts;
    whether a row keeps its order among all such (collectives, which cores meet in one order)."""

    touched: Ints
    stored: Ints
    ordered: Ints
    tile: Ints
    place: Ints


class _Memory(NamedTuple):
    """What is known of memory while rows are gone through; chains end with -1.

    Attributes:
        writer: the last row that wrote each cell on chip; `readers`: the latest of a chain of
            entries, for rows that read it since.
        accessed: two for each HBM tensor: the latest of a chain of entries for its reads, and for
            its writes.
        tile: the one that each place is given to; `users`: the latest of a chain of entries for
            its accesses; `former`: the same of the tile before it.
        entry: three numbers each: the entry before it, its row, its access.
        low, high: between which bytes an entry's access and those before it in its chain lie.
        entries: how many there are.
    """

    writer: Ints
    readers: Ints
    accessed: Ints
    tile: Ints
    users: Ints
    former: Ints
    entry: Ints
    low: Ints
    high: Ints
    entries: Ints


class _Pairs(NamedTuple):
    """Pairs found so far, sorted by the later: rows that row i must follow are
    earlier[start[i]:start[i + 1]], and `flow` says why.

    Attributes:
        total: how many pairs there are, even if only `capacity` fit.
        seen, place: the latest row that was paired with each row, and where.
    """

    capacity: int
    total: Ints
    start: Ints
    earlier: Ints
    flow: Ints
    seen: Ints
    place: Ints


@compiled
def _pair(i: int, row: int, flow: int, pairs: _Pairs) -> None:
    """Row `i` must follow `row`; the strongest reason counts."""
    if pairs.seen[row] != i:
        k = pairs.total[0]
        pairs.seen[row] = i
        pairs.place[row] = k
        pairs.total[0] = k + 1
        if k < pairs.capacity:
            pairs.earlier[k] = row
            pairs.flow[k] = flow
    if pairs.place[row] < pairs.capacity:
        pairs.flow[pairs.place[row]] = max(flow, pairs.flow[pairs.place[row]])


@compiled
def _remember(row: int, access: int, before: int, memory: _Memory) -> int:
    """A new entry of the chain whose latest is `before`; its number."""
    k = memory.entries[0]
    memory.entries[0] = k + 1
    memory.entry[3 * k] = before
    memory.entry[3 * k + 1] = row
    memory.entry[3 * k + 2] = access
    return int(k)


@compiled
def _apart(one: int, two: int, feet: Footprints) -> int:
    """Whether two accesses of one tensor in HBM surely share no byte."""
    if feet.first[one] >= feet.stop[two] or feet.first[two] >= feet.stop[one]:
        return 1
    alike = feet.pitch[one] > 0 and feet.pitch[one] == feet.pitch[two]
    left = feet.column[one] >= feet.column_stop[two]
    return int(alike and (left or feet.column[two] >= feet.column_stop[one]))


@compiled
def _meet_in_hbm(
    i: int, access: int, slot: int, feet: Footprints, m: _Memory, pairs: _Pairs
) -> None:
    """Pair row `i` with those whose bytes in HBM it touches, a read only with writes."""
    flow = int(slot < FIRST_WRITTEN)
    for chain in range(flow, 2):
        at = m.accessed[2 * feet.tensor[access] + chain]
        while at >= 0 and feet.first[access] < m.high[at] and m.low[at] < feet.stop[access]:
            if _apart(access, m.entry[3 * at + 2], feet) == 0:
                _pair(i, m.entry[3 * at + 1], flow, pairs)
            at = m.entry[3 * at]


@compiled
def _meet_on_chip(i: int, start: int, stop: int, slot: int, m: _Memory, pairs: _Pairs) -> None:
    """Pair row `i` with the writers of cells `start` to `stop`, and a write with their readers."""
    flow = int(slot < FIRST_WRITTEN)
    for c in range(start, stop):
        if m.writer[c] >= 0:
            _pair(i, m.writer[c], flow, pairs)
        if flow == OVERWRITES:
            at = m.readers[c]
            while at >= 0:
                _pair(i, m.entry[3 * at + 1], OVERWRITES, pairs)
                at = m.entry[3 * at]


@compiled
def _note_in_hbm(i: int, access: int, slot: int, feet: Footprints, m: _Memory) -> None:
    """Row `i` reads or writes a tensor."""
    chain = 2 * feet.tensor[access] + int(slot >= FIRST_WRITTEN)
    before = m.accessed[chain]
    k = _remember(i, access, before, m)
    m.accessed[chain] = k
    m.low[k] = feet.first[access]
    m.high[k] = feet.stop[access]
    if before >= 0:
        m.low[k] = min(m.low[k], m.low[before])
        m.high[k] = max(m.high[k], m.high[before])


@compiled
def _note_on_chip(i: int, start: int, stop: int, slot: int, m: _Memory) -> None:
    """Row `i` is the writer of cells `start` to `stop`, or one more reader."""
    for c in range(start, stop):
        if slot < FIRST_WRITTEN:
            m.readers[c] = _remember(i, 0, m.readers[c], m)
        else:
            m.writer[c] = i
            m.readers[c] = -1


@compiled
def _meet_in_place(i: int, access: int, slot: int, rows: _Rows, m: _Memory, pairs: _Pairs) -> None:
    """Row `i` uses a tile: it follows all that used the one before it in the same place, unless it
    reads what it follows already."""
    p = rows.place[access]
    if m.tile[p] != rows.tile[access]:
        m.tile[p] = rows.tile[access]
        m.former[p] = m.users[p]
        m.users[p] = -1
    if slot >= FIRST_WRITTEN or m.users[p] < 0:
        at = m.former[p]
        while at >= 0:
            if m.entry[3 * at + 1] < i:
                _pair(i, m.entry[3 * at + 1], PLACE, pairs)
            at = m.entry[3 * at]
    m.users[p] = _remember(i, access, m.users[p], m)


@compiled
def _find(n: int, rows: _Rows, feet: Footprints, m: _Memory, pairs: _Pairs) -> int:
    """Fill `pairs`; how many pairs there are."""
    before = -1
    for i in range(n):
        pairs.start[i] = pairs.total[0]
        if rows.ordered[i] == 1:
            if before >= 0:
                _pair(i, before, OVERWRITES, pairs)
            before = i
        for slot in range(TOUCHED):
            access = rows.touched[i * TOUCHED + slot]
            if access >= 0 and feet.tensor[access] >= 0:
                if rows.stored[feet.tensor[access]] == 1:
                    _meet_in_hbm(i, access, slot, feet, m, pairs)
            elif access >= 0:
                for g in range(feet.group[access], feet.group_stop[access]):
                    start = g * feet.cells + feet.first[access]
                    stop = g * feet.cells + feet.stop[access]
                    _meet_on_chip(i, start, stop, slot, m, pairs)
                if rows.place[access] >= 0:
                    _meet_in_place(i, access, slot, rows, m, pairs)
        for slot in range(TOUCHED):
            access = rows.touched[i * TOUCHED + slot]
            if access >= 0 and feet.tensor[access] >= 0:
                if rows.stored[feet.tensor[access]] == 1:
                    _note_in_hbm(i, access, slot, feet, m)
            elif access >= 0:
                for g in range(feet.group[access], feet.group_stop[access]):
                    start = g * feet.cells + feet.first[access]
                    stop = g * feet.cells + feet.stop[access]
                    _note_on_chip(i, start, stop, slot, m)
    pairs.start[n] = pairs.total[0]
    return int(pairs.total[0])


@dataclass(frozen=True)
class Dependences:
    """Pairs of rows that keep their order, sorted by the later.

    Attributes:
        start: row i follows rows earlier[start[i]:start[i + 1]], shape (n + 1,).
        earlier, later: rows.
        flow: `READS` where the later reads what the earlier writes, `OVERWRITES` where it does not,
            `PLACE` where they touch no byte in common.
    """

    start: Ints
    earlier: Ints
    later: Ints
    flow: Ints

    def reordered(self, order: Ints) -> "Dependences":
        """The pairs of the same rows in another order that keeps them: row i is the old
        order[i]."""
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        later, earlier = place[self.later], place[self.earlier]
        sort = np.argsort(later, kind="stable")
        start = np.zeros_like(self.start)
        np.cumsum(np.bincount(later, minlength=len(order)), out=start[1:])
        return Dependences(start, earlier[sort], later[sort], self.flow[sort])


def operand_tables(stream: InstructionStream) -> tuple[Ints, Ints]:
    """Accesses read, shape (n, 3), and written, shape (n, 2), by each row; -1 for none."""
    rows = stream.rows
    reads = np.stack([rows[name] for name in ("in0", "in1", "in2")], axis=1)
    writes = np.stack([rows[name] for name in ("out", "out2")], axis=1)
    return np.ascontiguousarray(reads), np.ascontiguousarray(writes)


def dependences(stream: InstructionStream, tiles: bool = False) -> Dependences:
    """All pairs of rows that touch the same bytes, one of them writing, none in between writing
    them, for the rows in their present order.

    Args:
        tiles: pairs that keep tiles apart, too: no tile is used before the last one in its place is
            no more. It takes no semaphores, but that is how streams are written and verified.
    """
    n = len(stream)
    feet = footprints(stream)
    reads, writes = operand_tables(stream)
    touched = np.concatenate([reads, writes], axis=1).reshape(-1)
    stored = np.zeros(max(len(stream.tensors), 1), dtype=np.int64)
    ordered = stream.rows["op"] == Opcode.COLLECTIVE
    writes = (stream.rows["op"] == Opcode.STORE) | (ordered & (stream.rows["out"] >= 0))
    stored[stream.accesses["tensor"][stream.rows["out"][writes]]] = 1
    spans = np.where(feet.tensor >= 0, 0, (feet.stop - feet.first) * (feet.group_stop - feet.group))
    entries = int(spans[reads[reads >= 0]].sum()) + 2 * n * TOUCHED
    owner = stream.accesses["allocation"]
    place = _places(stream, touched) if tiles else _filled(len(owner), -1)
    rows, places = (
        _Rows(touched, stored, ordered.astype(np.int64), owner, place),
        int(place.max(initial=-1)) + 1,
    )
    capacity = 16 * n + 64
    while True:
        pairs = _Pairs(
            capacity, _filled(1, 0), _filled(n + 1, 0), _filled(capacity), _filled(capacity),
            _filled(n, -1), _filled(n),
        )  # fmt: skip
        memory = _Memory(
            _filled(feet.cells * feet.groups, -1), _filled(feet.cells * feet.groups, -1),
            _filled(2 * len(stored), -1), _filled(places, -1), _filled(places, -1),
            _filled(places, -1), _filled(3 * entries), _filled(entries), _filled(entries),
            _filled(1, 0),
        )  # fmt: skip
        total = _find(n, rows, feet, memory, pairs)
        if total <= capacity:
            later = np.repeat(np.arange(n, dtype=np.int64), np.diff(pairs.start))
            return Dependences(pairs.start, pairs.earlier[:total], later, pairs.flow[:total])
        capacity = total


def _places(stream: InstructionStream, touched: Ints) -> Ints:
    """A number for the place of each access; tiles that share bytes share their place. -1 in HBM,
    and for tiles that no row touches."""
    owner = stream.accesses["allocation"]
    used = np.unique(owner[touched[touched >= 0]])
    used = used[used >= 0]
    tiles = [stream.allocations[tile] for tile in used]
    start = np.array([tile.offset + (int(tile.space) << 40) for tile in tiles], dtype=np.int64)
    stop = start + np.array([tile.bytes for tile in tiles], dtype=np.int64)
    by_start = np.argsort(start, kind="stable")
    reach = np.maximum.accumulate(stop[by_start])
    number = np.zeros(len(stream.allocations) + 1, dtype=np.int64)
    number[used[by_start[1:]]] = np.cumsum(start[by_start[1:]] >= reach[:-1])
    places: Ints = np.where(np.isin(owner, used), number[owner], -1)
    return places


def _filled(length: int, value: int | None = None) -> Ints:
    """An array of one value, or of any."""
    array = np.empty(length, dtype=np.int64)
    if value is not None:
        array.fill(value)
    return array


class Waits(NamedTuple):
    """Row i waits for rows waits[start[i]:start[i + 1]]; `latest` row of each queue that one
    depends on, and of each pair of queues the latest `known` to be done."""

    start: Ints
    waits: Ints
    latest: Ints
    known: Ints


@compiled
def _derive(
    n: int, prune: int, queue: Ints, start: Ints, earlier: Ints, flow: Ints, derived: Waits
) -> int:
    """Fill `start` and `waits` of `derived`; the number of waits."""
    total = 0
    for i in range(n):
        own = queue[i]
        for q in range(QUEUES):
            derived.latest[q] = -1
        for e in range(start[i], start[i + 1]):
            q = queue[earlier[e]]
            in_order = q == own and own < FIRST_DMA_QUEUE
            if (flow[e] >= OVERWRITES and not in_order) or (flow[e] == READS and own > 0):
                derived.latest[q] = max(derived.latest[q], earlier[e])
        derived.start[i] = total
        for q in range(QUEUES):
            w = derived.latest[q]
            if w >= 0 and not (prune == 1 and derived.known[own * QUEUES + q] >= w):
                derived.known[own * QUEUES + q] = w
                derived.waits[total] = w
                total += 1
    derived.start[n] = total
    return total


def required_waits(stream: InstructionStream, known: Dependences, prune: bool) -> tuple[Ints, Ints]:
    """(`wait_start`, `waits`) that the data demands, for the rows in their present order.

    Args:
        prune: leave out waits that an earlier wait of the same queue covers.
    """
    n = len(stream)
    waits = Waits(
        _filled(n + 1), _filled(len(known.earlier)), _filled(QUEUES), _filled(QUEUES * QUEUES, -1)
    )
    total = _derive(
        n, int(prune), stream.rows["queue"], known.start, known.earlier, known.flow, waits
    )
    return waits.start, waits.waits[:total].copy()


def with_semaphores(
    stream: InstructionStream, known: Dependences | None = None
) -> InstructionStream:
    """The same stream with the waits that its data demands; `known`: its dependences, if known."""
    known = dependences(stream) if known is None else known
    wait_start, waits = required_waits(stream, known, prune=True)
    return replace(stream, wait_start=wait_start, waits=waits)
