"""Data dependences of an instruction stream, and the semaphores they imply.

An instruction waits for the last writer of what it reads, and for the last readers and writer of
what it overwrites. Memory is looked at in granules (the largest that keeps the program's tiles
apart), HBM in strided boxes; where boxes cannot be told apart cheaply they count as overlapping,
which is safe.

A queue's semaphore counts its finished instructions, in order, so waiting for one instruction is
waiting for all before it in its queue: at most one wait for each other queue is kept, and none
that an earlier wait of the same queue already covers. A compute engine needs no wait to overwrite
what it read or wrote itself (it works in order), but one to read its own result, which takes a
latency to appear.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilesmith.codegen.compiled import Ints, compiled
from tilesmith.codegen.trainium.isa.core import FIRST_DMA_QUEUE, QUEUES
from tilesmith.codegen.trainium.isa.footprints import footprints
from tilesmith.codegen.trainium.isa.instructions import OPERANDS, InstructionStream, Op


@compiled
def _apart(
    one: int, two: int, first: Ints, stop: Ints, pitch: Ints, column: Ints, column_stop: Ints
) -> int:
    """Whether two accesses of one tensor in HBM surely share no byte."""
    alike = pitch[one] > 0 and pitch[one] == pitch[two]
    beside = column[one] >= column_stop[two] or column[two] >= column_stop[one]
    return int(first[one] >= stop[two] or first[two] >= stop[one] or (alike and beside))


@compiled
def _before_in_hbm(
    access: int,
    is_write: int,
    tensor: Ints,
    first: Ints,
    stop: Ints,
    pitch: Ints,
    column: Ints,
    column_stop: Ints,
    queue: Ints,
    chain: Ints,
    link: Ints,
    link_row: Ints,
    link_access: Ints,
    link_writes: Ints,
    latest: Ints,
) -> int:
    """Raise `latest` to the rows whose bytes in HBM `access` must not overtake."""
    at = chain[tensor[access]]
    while at >= 0:
        if is_write or link_writes[at] == 1:
            other = link_access[at]
            if _apart(access, other, first, stop, pitch, column, column_stop) == 0:
                q = queue[link_row[at]]
                latest[q] = max(latest[q], link_row[at])
        at = link[at]
    return int(at)


@compiled
def _before_on_chip(
    start: int,
    stop: int,
    queues: int,
    own: int,
    own_results: int,
    is_write: int,
    queue: Ints,
    writer: Ints,
    reader_count: Ints,
    reader_queue: Ints,
    reader_row: Ints,
    latest: Ints,
) -> int:
    """Raise `latest` to the writers of cells `start` to `stop`, for a write to their readers too.

    Queue `own` (-1: none) works in order: its reads hold nobody up there, nor its results where
    `own_results` says so.
    """
    for c in range(start, stop):
        w = writer[c]
        if w >= 0:
            q = queue[w]
            if not (q == own and own_results):
                latest[q] = max(latest[q], w)
        if is_write:
            for r in range(c * queues, c * queues + reader_count[c]):
                q = reader_queue[r]
                if q != own:
                    latest[q] = max(latest[q], reader_row[r])
    return stop


@compiled
def _note_on_chip(
    i: int,
    start: int,
    stop: int,
    queues: int,
    own: int,
    is_write: int,
    writer: Ints,
    reader_count: Ints,
    reader_queue: Ints,
    reader_row: Ints,
) -> int:
    """Row `i` of queue `own` is the writer of cells `start` to `stop`, or one more reader."""
    for c in range(start, stop):
        if is_write:
            writer[c] = i
            reader_count[c] = 0
        else:
            k = c * queues
            end = k + reader_count[c]
            while k < end:
                if reader_queue[k] == own:
                    break
                k += 1
            if k == end:
                reader_count[c] += 1
                reader_queue[k] = own
            reader_row[k] = i
    return stop


@compiled
def _keep_waits(
    i: int,
    queues: int,
    capacity: int,
    total: int,
    prune: int,
    own: int,
    latest: Ints,
    known: Ints,
    waits: Ints,
) -> int:
    """Append the waits of row `i` that are needed; their number so far, -1 past `capacity`."""
    for q in range(queues):
        w = latest[q]
        if w < 0 or w >= i:
            continue
        if prune and known[own * queues + q] >= w:
            continue
        if total >= capacity:
            return -1
        known[own * queues + q] = w
        waits[total] = w
        total += 1
    return total


@compiled
def _derive(
    n: int,
    queues: int,
    first_dma: int,
    cells: int,
    prune: int,
    queue: Ints,
    touched: Ints,
    relaxed: Ints,
    tensor: Ints,
    first: Ints,
    stop: Ints,
    group: Ints,
    group_stop: Ints,
    pitch: Ints,
    column: Ints,
    column_stop: Ints,
    shared: Ints,
    writer: Ints,
    reader_count: Ints,
    reader_queue: Ints,
    reader_row: Ints,
    latest: Ints,
    known: Ints,
    chain: Ints,
    link: Ints,
    link_row: Ints,
    link_access: Ints,
    link_writes: Ints,
    wait_start: Ints,
    waits: Ints,
    capacity: int,
) -> int:
    """Fill `wait_start` and `waits`; the number of waits, or -1 if they exceed `capacity`.

    `touched` holds five accesses a row, three read and two written (-1: none); `relaxed` rows (the
    tensor engine's) may read their own engine's results without a wait. `shared` tensors are
    tracked, as a chain of links: one for each access, the latest first.
    """
    total = 0
    links = 0
    for i in range(n):
        e = queue[i]
        own = e
        if e >= first_dma:
            own = -1
        for q in range(queues):
            latest[q] = -1
        for slot in range(5):
            access = touched[i * 5 + slot]
            if access < 0:
                continue
            if tensor[access] >= 0:
                if shared[tensor[access]] == 1:
                    _before_in_hbm(
                        access, slot >= 3, tensor, first, stop, pitch, column, column_stop, queue,
                        chain, link, link_row, link_access, link_writes, latest,
                    )  # fmt: skip
                continue
            for g in range(group[access], group_stop[access]):
                _before_on_chip(
                    g * cells + first[access], g * cells + stop[access], queues, own,
                    slot >= 3 or relaxed[i] == 1, slot >= 3, queue, writer, reader_count,
                    reader_queue, reader_row, latest,
                )  # fmt: skip
        for slot in range(5):
            access = touched[i * 5 + slot]
            if access < 0:
                continue
            t = tensor[access]
            if t >= 0:
                if shared[t] == 1:
                    link_row[links] = i
                    link_access[links] = access
                    link_writes[links] = slot >= 3
                    link[links] = chain[t]
                    chain[t] = links
                    links += 1
                continue
            for g in range(group[access], group_stop[access]):
                _note_on_chip(
                    i, g * cells + first[access], g * cells + stop[access], queues, e, slot >= 3,
                    writer, reader_count, reader_queue, reader_row,
                )  # fmt: skip
        wait_start[i] = total
        total = _keep_waits(i, queues, capacity, total, prune, e, latest, known, waits)
        if total < 0:
            return -1
    wait_start[n] = total
    return total


def operand_tables(stream: InstructionStream) -> tuple[Ints, Ints]:
    """Accesses read, shape (n, 3), and written, shape (n, 2), by each row; -1 for none."""
    rows = stream.rows
    reads = np.stack([rows[name] for name in ("in0", "in1", "in2")], axis=1)
    writes = np.stack([rows[name] for name in ("out", "out2")], axis=1)
    return np.ascontiguousarray(reads), np.ascontiguousarray(writes)


def dependences(stream: InstructionStream, prune: bool) -> tuple[Ints, Ints]:
    """(`wait_start`, `waits`) that the data demands, for the rows in their present order.

    Args:
        prune: leave out waits that an earlier wait of the same queue covers.
    """
    n = len(stream)
    feet = footprints(stream)
    touched = np.concatenate(operand_tables(stream), axis=1)
    rows = stream.rows
    stored = rows["out"][rows["op"] == Op.STORE]
    shared = np.zeros(max(len(stream.tensors), 1), dtype=np.int64)
    shared[stream.accesses["tensor"][stored]] = 1
    relaxed = (rows["queue"] == 0).astype(np.int64)
    size = feet.cells * feet.groups
    capacity = 8 * n + QUEUES
    while True:
        wait_start, waits = np.zeros(n + 1, dtype=np.int64), np.zeros(capacity, dtype=np.int64)
        links = np.zeros((4, n * len(OPERANDS) + 1), dtype=np.int64)
        total = _derive(
            n, QUEUES, FIRST_DMA_QUEUE, feet.cells, int(prune), rows["queue"],
            touched.reshape(-1), relaxed, feet.tensor, feet.first, feet.stop,
            feet.group, feet.group_stop, feet.pitch, feet.column, feet.column_stop, shared,
            np.full(size, -1, dtype=np.int64), np.zeros(size, dtype=np.int64),
            np.zeros(size * QUEUES, dtype=np.int64), np.zeros(size * QUEUES, dtype=np.int64),
            np.zeros(QUEUES, dtype=np.int64), np.full(QUEUES * QUEUES, -1, dtype=np.int64),
            np.full(len(shared), -1, dtype=np.int64), links[0], links[1], links[2], links[3],
            wait_start, waits, capacity,
        )  # fmt: skip
        if total >= 0:
            return wait_start, waits[:total].copy()
        capacity *= 4


def with_semaphores(stream: InstructionStream) -> InstructionStream:
    """The same stream with the waits that its data demands."""
    wait_start, waits = dependences(stream, prune=True)
    return replace(stream, wait_start=wait_start, waits=waits)
