"""Conflicts: which instructions of a program have to keep their order, whatever queue they are in.

Rows that touch the same bytes, one of them writing, do. Found in one pass over the program: each
cell of a memory on chip knows its last writer and those who have read it since; accesses to HBM are
compared as boxes, tensor by tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilesmith.codegen.compiled import Ints, compiled
from tilesmith.codegen.trainium.isa.footprints import footprints
from tilesmith.codegen.trainium.isa.instructions import OPERANDS, InstructionStream, Op
from tilesmith.codegen.trainium.timing.dependences import operand_tables


@compiled
def _note(
    row: int,
    i: int,
    reads: int,
    total: int,
    capacity: int,
    seen: Ints,
    place: Ints,
    earlier: Ints,
    flow: Ints,
) -> int:
    """Row `i` must follow `row`; how many pairs there are now (they may exceed `capacity`)."""
    if seen[row] != i and total < capacity:
        seen[row] = i
        place[row] = total
        earlier[total] = row
        flow[total] = 0
        total += 1
    elif seen[row] != i:
        total = capacity + 1
    if reads == 1 and seen[row] == i:
        flow[place[row]] = 1
    return total


@compiled
def _meet_in_hbm(
    i: int,
    access: int,
    reads: int,
    total: int,
    capacity: int,
    box: Ints,
    chain: Ints,
    link: Ints,
    seen: Ints,
    place: Ints,
    earlier: Ints,
    flow: Ints,
) -> int:
    """Pair row `i` with those whose bytes in HBM it touches. `box` holds six numbers an access:
    first, stop, pitch, column, its stop, tensor; `link` four: next, row, access, whether it
    writes."""
    mine = access * 6
    at = chain[box[mine + 5]]
    while at >= 0:
        their = link[at * 4 + 2] * 6
        apart = box[mine] >= box[their + 1] or box[their] >= box[mine + 1]
        alike = box[mine + 2] > 0 and box[mine + 2] == box[their + 2]
        beside = box[mine + 3] >= box[their + 4] or box[their + 3] >= box[mine + 4]
        row = link[at * 4 + 1]
        writes = reads == 0 or link[at * 4 + 3] == 1
        if not (apart or (alike and beside)) and row < i and writes:
            total = _note(row, i, reads, total, capacity, seen, place, earlier, flow)
        at = link[at * 4]
    return total


@compiled
def _meet_on_chip(
    i: int,
    start: int,
    stop: int,
    reads: int,
    total: int,
    capacity: int,
    writer: Ints,
    readers: Ints,
    node: Ints,
    seen: Ints,
    place: Ints,
    earlier: Ints,
    flow: Ints,
) -> int:
    """Pair row `i` with the writers of cells `start` to `stop`, and a write with their readers.
    `node` holds two numbers for each reader of a cell: its row, the next."""
    for c in range(start, stop):
        if writer[c] >= 0:
            total = _note(writer[c], i, reads, total, capacity, seen, place, earlier, flow)
        at = readers[c]
        while at >= 0 and reads == 0:
            total = _note(node[at * 2], i, 0, total, capacity, seen, place, earlier, flow)
            at = node[at * 2 + 1]
    return total


@compiled
def _remember(
    i: int, start: int, stop: int, reads: int, nodes: int, writer: Ints, readers: Ints, node: Ints
) -> int:
    """Row `i` is the writer of cells `start` to `stop`, or one more reader; readers so far."""
    for c in range(start, stop):
        if reads == 0:
            writer[c] = i
            readers[c] = -1
        else:
            node[nodes * 2] = i
            node[nodes * 2 + 1] = readers[c]
            readers[c] = nodes
            nodes += 1
    return nodes


@compiled
def _conflicts(
    n: int,
    cells: int,
    capacity: int,
    touched: Ints,
    box: Ints,
    group: Ints,
    group_stop: Ints,
    shared: Ints,
    writer: Ints,
    readers: Ints,
    node: Ints,
    chain: Ints,
    link: Ints,
    seen: Ints,
    place: Ints,
    start: Ints,
    earlier: Ints,
    flow: Ints,
) -> int:
    """Fill `start`, `earlier` and `flow`: the rows that each row must follow, and whether it reads
    what they write. Returns how many, more than `capacity` if that is too little.

    `touched` holds five accesses a row, three read and two written (-1: none).
    """
    total = 0
    links = 0
    nodes = 0
    for i in range(n):
        start[i] = total
        for slot in range(5):
            access = touched[i * 5 + slot]
            reads = int(slot < 3)
            if access < 0:
                continue
            t = box[access * 6 + 5]
            if t >= 0:
                if shared[t] == 1:
                    total = _meet_in_hbm(
                        i, access, reads, total, capacity, box, chain, link, seen, place, earlier,
                        flow,
                    )  # fmt: skip
                continue
            for g in range(group[access], group_stop[access]):
                total = _meet_on_chip(
                    i, g * cells + box[access * 6], g * cells + box[access * 6 + 1], reads, total,
                    capacity, writer, readers, node, seen, place, earlier, flow,
                )  # fmt: skip
        for slot in range(5):
            access = touched[i * 5 + slot]
            if access < 0:
                continue
            t = box[access * 6 + 5]
            if t >= 0:
                link[links * 4] = chain[t]
                link[links * 4 + 1] = i
                link[links * 4 + 2] = access
                link[links * 4 + 3] = int(slot >= 3)
                chain[t] = links
                links += 1
                continue
            for g in range(group[access], group_stop[access]):
                low = g * cells + box[access * 6]
                high = g * cells + box[access * 6 + 1]
                nodes = _remember(i, low, high, int(slot < 3), nodes, writer, readers, node)
        if total > capacity:
            return total
    start[n] = total
    return total


@dataclass(frozen=True)
class Conflicts:
    """Pairs of rows that keep their order, sorted by the later.

    Attributes:
        earlier, later: rows.
        flow: 1 where the later reads what the earlier writes.
    """

    earlier: Ints
    later: Ints
    flow: Ints


def conflicts(stream: InstructionStream) -> Conflicts:
    """All pairs of rows that touch the same bytes, one of them writing, none in between writing."""
    n = len(stream)
    feet = footprints(stream)
    reads, writes = operand_tables(stream)
    touched = np.ascontiguousarray(np.concatenate([reads, writes], axis=1)).reshape(-1)
    rows = stream.rows
    shared = np.zeros(max(len(stream.tensors), 1), dtype=np.int64)
    shared[stream.accesses["tensor"][rows["out"][rows["op"] == Op.STORE]]] = 1
    size = feet.cells * feet.groups
    spans = np.maximum(feet.stop - feet.first, 0) * np.maximum(feet.group_stop - feet.group, 0)
    room = int(np.where(feet.tensor >= 0, 0, spans)[reads[reads >= 0]].sum()) + 1
    columns = (feet.first, feet.stop, feet.pitch, feet.column, feet.column_stop, feet.tensor)
    box = np.ascontiguousarray(np.stack(columns, axis=1)).reshape(-1)
    capacity = 16 * n + 64
    while True:
        start = np.zeros(n + 1, dtype=np.int64)
        earlier, flow = np.zeros(capacity, dtype=np.int64), np.zeros(capacity, dtype=np.int64)
        total = _conflicts(
            n, feet.cells, capacity, touched, box, feet.group, feet.group_stop, shared,
            np.full(size, -1, dtype=np.int64), np.full(size, -1, dtype=np.int64),
            np.zeros(2 * room, dtype=np.int64), np.full(len(shared), -1, dtype=np.int64),
            np.zeros(4 * n * len(OPERANDS) + 4, dtype=np.int64), np.full(n, -1, dtype=np.int64),
            np.zeros(n, dtype=np.int64), start, earlier, flow,
        )  # fmt: skip
        if total <= capacity:
            later = np.repeat(np.arange(n, dtype=np.int64), np.diff(start))
            return Conflicts(earlier[:total].copy(), later, flow[:total].copy())
        capacity *= 4
