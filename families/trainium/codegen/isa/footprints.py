"""What each access of an instruction stream touches, as the passes over it read it.

On chip, memory is looked at in cells, which no access touches in part: bytes between the bounds of
accesses, rounded to granules (the largest that keep the program's tiles apart). HBM is looked at in
strided boxes, of which the largest stride and the columns within it are told apart.
"""

from dataclasses import dataclass

import numpy as np

from tilesmith.families.trainium.codegen.isa.instructions import (
    DTYPE_BYTES,
    InstructionStream,
    Ints,
    Space,
)

PARTITION_GROUP = 32
"""Partitions told apart together where those that accesses begin at are too many."""

MOST_CELLS, MOST_VISITS = 1 << 20, 1 << 23
"""Cells of all groups, and cells that all accesses touch together, at most where groups are smaller
than that."""

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
    base = np.where(space == Space.PSUM, sbuf_cells, 0)
    chip = space != Space.HBM
    first = np.where(chip, base + low // granule, low)
    stop = np.where(chip, base + -(-high // granule), high)
    bounds = np.unique(np.concatenate([first[chip], stop[chip]]))
    first = np.where(chip, np.searchsorted(bounds, first), first)
    stop = np.where(chip, np.searchsorted(bounds, stop), stop)
    last = table["partition"] + table["count"][:, 0]
    begins = _begins(table["partition"][chip], last[chip], (stop - first)[chip], len(bounds))
    pitch, column, column_stop = _columns(stream, low)
    return Footprints(
        tensor=np.where(chip, -1, table["tensor"]),
        first=first,
        stop=stop,
        group=np.where(chip, np.searchsorted(begins, table["partition"], side="right") - 1, 0),
        group_stop=np.where(chip, np.searchsorted(begins, last), 0),
        pitch=pitch,
        column=column,
        column_stop=column_stop,
        cells=len(bounds),
        groups=len(begins),
    )


def _granule(low: Ints, high: Ints, chip: np.ndarray) -> int:
    """Bytes of a granule: the largest power of two that divides all boundaries, within limits."""
    if not chip.any():
        return 64
    ends = -(-high[chip] // 64) * 64 if (low[chip] % 64 == 0).all() else high[chip]
    common = int(np.gcd.reduce(np.concatenate([low[chip], ends])))
    return min(4096, max(SMALLEST_GRANULE, common & -common if common else 4096))


def _begins(start: Ints, stop: Ints, spans: Ints, cells: int) -> Ints:
    """First partitions of groups, ascending: wherever an access begins, so that two which share no
    partition share no group; coarser ones if that is too many to look at.

    Args:
        start, stop, spans: partitions and cells of each access on chip.
    """
    begins: Ints = np.unique(np.append(start, 0))
    groups = np.searchsorted(begins, stop) - np.searchsorted(begins, start)
    if len(begins) * cells > MOST_CELLS or int((groups * spans).sum()) > MOST_VISITS:
        begins = np.unique(begins // PARTITION_GROUP * PARTITION_GROUP)
    return begins


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
