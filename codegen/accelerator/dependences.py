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

from dataclasses import dataclass, replace

import numpy as np

from codegen.accelerator.compiled import Ints, compiled
from codegen.accelerator.core import FIRST_DMA_QUEUE, QUEUES
from codegen.accelerator.instructions import DTYPE_BYTES, OPERANDS, InstructionStream, Op, Space

PARTITION_GROUP = 32

SMALLEST_GRANULE = 16
"""Bytes: tiles closer than this are not told apart."""


@dataclass(frozen=True)
class Footprints:
    """What each access touches, as the compiled passes read it. All int64 of shape (accesses,).

    On-chip accesses: cells `first` to `stop` of each partition group `group` to `group_stop`. HBM:
    bytes `first` to `stop` of tensor `tensor` (else -1); where `pitch` is positive, only those
    whose offset modulo `pitch` is in [column, column_stop).
    """

    tensor: Ints
    first: Ints
    stop: Ints
    group: Ints
    group_stop: Ints
    pitch: Ints
    column: Ints
    column_stop: Ints
    cells: int
    groups: int


def extents(stream: InstructionStream) -> tuple[Ints, Ints]:
    """First byte and one past the last of each access (in each partition, or in its tensor)."""
    table = stream.accesses
    size = DTYPE_BYTES[table["dtype"]]
    spans = (table["count"] - 1) * table["stride"]
    spans[:, 0] = np.where(table["space"] == Space.HBM, spans[:, 0], 0)
    low = table["offset"] + np.minimum(spans, 0).sum(axis=1) * size
    return low, table["offset"] + (np.maximum(spans, 0).sum(axis=1) + 1) * size


def footprints(stream: InstructionStream) -> Footprints:
    """The footprint of every access of a stream."""
    table = stream.accesses
    space = table["space"]
    low, high = extents(stream)
    core = stream.core
    granule = _granule(low, high, space != Space.HBM)
    sbuf_cells = -(-core.sbuf_bytes // granule)
    psum_cells = -(-core.psum_bytes // granule)
    base = np.where(space == Space.PSUM, sbuf_cells, 0)
    chip = space != Space.HBM
    groups = 1 if not table["partition"][chip].any() else core.sbuf_partitions // PARTITION_GROUP
    width = PARTITION_GROUP if groups > 1 else core.sbuf_partitions
    last = table["partition"] + table["count"][:, 0]
    pitch, column, column_stop = _columns(stream, low)
    return Footprints(
        tensor=np.where(chip, -1, table["tensor"]),
        first=np.where(chip, base + low // granule, low),
        stop=np.where(chip, base + -(-high // granule), high),
        group=np.where(chip, table["partition"] // width, 0),
        group_stop=np.where(chip, -(-last // width), 0),
        pitch=pitch,
        column=column,
        column_stop=column_stop,
        cells=sbuf_cells + psum_cells,
        groups=max(groups, 1),
    )


def _granule(low: Ints, high: Ints, chip: np.ndarray) -> int:
    """Bytes of a granule: the largest power of two that divides all boundaries, within limits."""
    if not chip.any():
        return 64
    ends = -(-high[chip] // 64) * 64 if (low[chip] % 64 == 0).all() else high[chip]
    common = int(np.gcd.reduce(np.concatenate([low[chip], ends])))
    return min(4096, max(SMALLEST_GRANULE, common & -common if common else 4096))


def _columns(stream: InstructionStream, low: Ints) -> tuple[Ints, Ints, Ints]:
    """The column range of each HBM box: its largest stride, and where in it the inner part lies."""
    table = stream.accesses
    size = DTYPE_BYTES[table["dtype"]]
    strides = np.where(table["count"] > 1, table["stride"], 0)
    pitch = strides.max(axis=1)
    inner = ((table["count"] - 1) * np.where(strides == pitch[:, None], 0, strides)).sum(axis=1) + 1
    safe = np.maximum(pitch, 1) * size
    column = low % safe
    stop = column + inner * size
    usable = (pitch > 0) & (stop <= safe) & ((strides == pitch[:, None]).sum(axis=1) == 1)
    zero = np.zeros_like(pitch)
    return (
        np.where(usable, safe, zero),
        np.where(usable, column, zero),
        np.where(usable, stop, zero),
    )


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
    tracked.
    """
    total = 0
    links = 0
    for i in range(n):
        e = queue[i]
        in_order = e < first_dma
        for q in range(queues):
            latest[q] = -1
        for slot in range(5):
            is_write = slot >= 3
            access = touched[i * 5 + slot]
            if access < 0:
                continue
            t = tensor[access]
            if t >= 0:
                if shared[t] == 0:
                    continue
                at = chain[t]
                while at >= 0:
                    other = link_access[at]
                    apart = first[access] >= stop[other] or first[other] >= stop[access]
                    if pitch[access] > 0 and pitch[access] == pitch[other]:
                        if column[access] >= column_stop[other]:
                            apart = 1
                        if column[other] >= column_stop[access]:
                            apart = 1
                    if not apart and (is_write or link_writes[at] == 1):
                        row = link_row[at]
                        latest[queue[row]] = max(latest[queue[row]], row)
                    at = link[at]
                continue
            for g in range(group[access], group_stop[access]):
                for c in range(g * cells + first[access], g * cells + stop[access]):
                    w = writer[c]
                    if w >= 0:
                        own = in_order and queue[w] == e
                        if not (own and (is_write or relaxed[i] == 1)):
                            latest[queue[w]] = max(latest[queue[w]], w)
                    if is_write:
                        for k in range(reader_count[c]):
                            r = c * queues + k
                            if not (in_order and reader_queue[r] == e):
                                q = reader_queue[r]
                                latest[q] = max(latest[q], reader_row[r])
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
                for c in range(g * cells + first[access], g * cells + stop[access]):
                    if slot >= 3:
                        writer[c] = i
                        reader_count[c] = 0
                    else:
                        k = 0
                        while k < reader_count[c]:
                            if reader_queue[c * queues + k] == e:
                                break
                            k += 1
                        if k == reader_count[c]:
                            reader_count[c] = k + 1
                            reader_queue[c * queues + k] = e
                        reader_row[c * queues + k] = i
        wait_start[i] = total
        for q in range(queues):
            w = latest[q]
            if w < 0 or w >= i:
                continue
            if prune and known[e * queues + q] >= w:
                continue
            if total >= capacity:
                return -1
            known[e * queues + q] = w
            waits[total] = w
            total += 1
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
