"""`Draft`: the instruction streams of several kernels as one table, before it is linked.

Each kernel is a *part*; its rows stand in the order they were written in and follow the part's
before. Passes over a draft change rows and accesses in place: residency turns transfers into
copies or drops them, placement gives every tile its address. Invariants: an access on chip lies
inside its allocation, `offset` counting from the start of the memory as in a finished stream; rows
of one engine stay in order.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilesmith.families.trainium.codegen.isa import instructions as isa
from tilesmith.families.trainium.codegen.isa.core import (
    COLLECTIVE_QUEUE,
    DMA_QUEUES,
    FIRST_DMA_QUEUE,
    Core,
)
from tilesmith.search_space.expressions.dtypes import size_of

QUEUE_SETS = 4
"""Kernels after one another use different sets of DMA queues, so that the next one's weights do
not stand in line behind this one's activations."""


@dataclass(frozen=True)
class Range:
    """Where a tensor lies in the device's memory: a region's name, its first byte, its size."""

    region: str
    offset: int
    nbytes: int

    @property
    def stop(self) -> int:
        return self.offset + self.nbytes

    def meets(self, other: "Range") -> bool:
        return self.region == other.region and self.offset < other.stop and other.offset < self.stop


@dataclass(frozen=True)
class KernelDraft:
    """A kernel to link.

    Attributes:
        places: of each tensor of the stream, in order; None for one that no instruction touches.
    """

    name: str
    stream: isa.InstructionStream
    places: tuple[Range | None, ...]


@dataclass
class Draft:
    """See the module's docstring.

    Attributes:
        tensors: HBM tensors, one for each group of ranges that share bytes.
        ranges: where each of them lies.
        allocations: tiles of all parts; `owners` tells the part of each row.
        groups: cores that take part in collectives together.
    """

    name: str
    core: Core
    tensors: list[isa.HbmTensor]
    ranges: list[Range]
    allocations: list[isa.Allocation]
    rows: dict[str, isa.Ints]
    immediates: isa.Floats
    accesses: dict[str, isa.Ints]
    owners: isa.Ints
    parts: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...] = ()

    def drop(self, gone: isa.Ints) -> None:
        """Remove rows."""
        counts = np.ones(len(self.owners), dtype=np.int64)
        counts[gone] = 0
        self.repeat(counts)

    def repeat(self, counts: isa.Ints) -> isa.Ints:
        """Each row as often as `counts` says (0: not at all); the first new number of each."""
        picks = np.repeat(np.arange(len(self.owners)), counts)
        self.rows = {name: column[picks] for name, column in self.rows.items()}
        self.immediates, self.owners = self.immediates[picks], self.owners[picks]
        firsts: isa.Ints = np.cumsum(counts) - counts
        return firsts

    def add_accesses(
        self, added: Sequence[tuple[int, Sequence[tuple[int, int]], int, int]]
    ) -> isa.Ints:
        """Rewritten copies of accesses: (which, free dims, byte offset, allocation) each."""
        table = self.accesses
        which = np.array([entry[0] for entry in added], dtype=np.int64)
        base = len(table["space"])
        fresh = {name: column[which] for name, column in table.items()}
        fresh["offset"] = np.array([entry[2] for entry in added], dtype=np.int64)
        fresh["allocation"] = np.array([entry[3] for entry in added], dtype=np.int64)
        for row, (_, dims, _, _) in enumerate(added):
            fresh["count"][row, 1:], fresh["stride"][row, 1:] = 1, 0
            for axis, (count, stride) in enumerate(dims):
                place = fresh["count"].shape[1] - len(dims) + axis
                fresh["count"][row, place], fresh["stride"][row, place] = count, stride
        self.accesses = {name: np.concatenate([table[name], fresh[name]]) for name in table}
        return base + np.arange(len(added), dtype=np.int64)

    def users(self) -> dict[int, list[tuple[int, str]]]:
        """(row, operand) pairs of each allocation."""
        index = np.stack([self.rows[operand] for operand in isa.OPERANDS])
        operands, rows = np.nonzero(index >= 0)
        tiles = self.accesses["allocation"][index[operands, rows]]
        order = np.argsort(tiles, kind="stable")
        order = order[np.searchsorted(tiles[order], 0) :]
        names = [isa.OPERANDS[number] for number in operands[order].tolist()]
        pairs = list(zip(rows[order].tolist(), names, strict=True))
        known, firsts = np.unique(tiles[order], return_index=True)
        stops = [*firsts[1:].tolist(), len(pairs)][: len(known)]  # a draft may have no tiles
        bounds = zip(known.tolist(), firsts.tolist(), stops, strict=True)
        return {tile: pairs[start:stop] for tile, start, stop in bounds}

    def transfers(self) -> dict[int, tuple[list[int], list[int]]]:
        """Rows that store to, and rows that load from, each HBM tensor that none gathers from."""
        rows_of: dict[int, tuple[list[int], list[int]]] = {}
        for op, operand, side in ((isa.Opcode.STORE, "out", 0), (isa.Opcode.LOAD, "in0", 1)):
            rows = np.flatnonzero(self.rows["op"] == op)
            tensors = self.accesses["tensor"][self.rows[operand][rows]]
            for row, tensor in zip(rows.tolist(), tensors.tolist(), strict=True):
                rows_of.setdefault(tensor, ([], []))[side].append(row)
        gathered = self.rows["in0"][self.rows["op"] == isa.Opcode.GATHER]
        between = self.rows["op"] == isa.Opcode.COLLECTIVE  # those go from HBM to HBM
        fixed = [gathered, self.rows["in0"][between], self.rows["out"][between]]
        named = np.concatenate(fixed)
        for tensor in np.unique(self.accesses["tensor"][named[named >= 0]]).tolist():
            rows_of.pop(tensor, None)
        return rows_of

    def stream(self) -> isa.InstructionStream:
        """The draft as a stream without semaphores."""
        rows = {name: np.ascontiguousarray(self.rows[name]) for name in isa.INSTRUCTION_COLUMNS}
        rows["position"] = np.arange(len(self.owners), dtype=np.int64)
        return isa.InstructionStream(
            name=self.name,
            core=self.core,
            tensors=tuple(self.tensors),
            allocations=tuple(self.allocations),
            rows=rows,
            immediates=np.ascontiguousarray(self.immediates),
            accesses=self.accesses,
            wait_start=np.zeros(len(self.owners) + 1, dtype=np.int64),
            waits=np.zeros(0, dtype=np.int64),
            groups=self.groups,
        )


def concatenate(name: str, parts: Sequence[KernelDraft], core: Core) -> Draft:
    """All parts, one after the other, on common tensors."""
    ranges = _merged(parts)
    rows: dict[str, list[isa.Ints]] = {column: [] for column in isa.INSTRUCTION_COLUMNS}
    tables: dict[str, list[isa.Ints]] = {}
    allocations: list[isa.Allocation] = []
    named: dict[int, tuple[str, str]] = {}
    roles: dict[int, str] = {}
    immediates: list[isa.Floats] = []
    groups = tuple(dict.fromkeys(group for part in parts for group in part.stream.groups))
    base = 0
    for number, part in enumerate(parts):
        stream = part.stream
        order = np.argsort(stream.rows["position"], kind="stable")
        table = {key: column.copy() for key, column in stream.accesses.items()}
        local_homes = homes(part, ranges)
        _move_tensors(table, part, local_homes, ranges)
        mine = table["allocation"] >= 0
        table["allocation"][mine] += len(allocations)
        allocations += stream.allocations
        for column in isa.INSTRUCTION_COLUMNS:
            values = stream.rows[column][order]
            if column in isa.OPERANDS:
                values[values >= 0] += base
            elif column == "function2" and stream.groups:
                values = _groups(stream, order, values, groups)
            rows[column].append(_queues(values, number) if column == "queue" else values)
        immediates.append(stream.immediates[order])
        for key, entries in table.items():
            tables.setdefault(key, []).append(entries)
        base += len(table["space"])
        for local, home in local_homes.items():
            tensor = stream.tensors[local]
            written = tensor.role != "input"
            roles[home] = "temporary" if written else roles.get(home, "input")
            if written or home not in named:
                named[home] = (f"{part.name}.{tensor.name}", tensor.dtype)
    tensors = [_tensor(ranges[i], *named[i], roles[i]) for i in range(len(ranges))]
    owners = [np.full(len(part.stream), i, dtype=np.int64) for i, part in enumerate(parts)]
    return Draft(
        name, core, tensors, ranges, allocations,
        {column: np.concatenate(values) for column, values in rows.items()},
        np.concatenate(immediates),
        {key: np.concatenate(columns) for key, columns in tables.items()},
        np.concatenate(owners), tuple(part.name for part in parts), groups,
    )  # fmt: skip


def _merged(parts: Iterable[KernelDraft]) -> list[Range]:
    """Ranges of all tensors, those that share bytes as one, in order."""
    places = sorted(
        {place for part in parts for place in part.places if place is not None},
        key=lambda place: (place.region, place.offset, -place.nbytes),
    )
    merged: list[Range] = []
    for place in places:
        if merged and merged[-1].meets(place):
            last = merged[-1]
            merged[-1] = replace(last, nbytes=max(last.stop, place.stop) - last.offset)
        else:
            merged.append(place)
    return merged


def homes(part: KernelDraft, ranges: Sequence[Range]) -> dict[int, int]:
    """The range that each tensor of a part lies in."""
    starts = [(place.region, place.offset) for place in ranges]
    return {
        local: bisect_right(starts, (place.region, place.offset)) - 1
        for local, place in enumerate(part.places)
        if place is not None
    }


def _move_tensors(
    table: dict[str, isa.Ints], part: KernelDraft, homes: dict[int, int], ranges: list[Range]
) -> None:
    for row in np.flatnonzero(table["space"] == isa.Space.HBM):
        local = int(table["tensor"][row])
        place = part.places[local]
        assert place is not None, f"'{part.stream.tensors[local].name}' is touched but has no place"
        table["tensor"][row] = homes[local]
        table["offset"][row] += place.offset - ranges[homes[local]].offset


def _groups(
    stream: isa.InstructionStream,
    order: isa.Ints,
    values: isa.Ints,
    groups: tuple[tuple[int, ...], ...],
) -> isa.Ints:
    """`function2` of a part's rows, with the groups of collectives as the whole numbers them."""
    places = np.array([groups.index(group) for group in stream.groups], dtype=np.int64)
    between = stream.rows["op"][order] == isa.Opcode.COLLECTIVE
    numbers: isa.Ints = np.where(between, places[np.where(between, values, 0)], values)
    return numbers


def _queues(queue: isa.Ints, number: int) -> isa.Ints:
    """DMA queues of a part: a set of their own, in the order of first use."""
    width = DMA_QUEUES // QUEUE_SETS
    first = FIRST_DMA_QUEUE + number % QUEUE_SETS * width
    dma = queue[(queue >= FIRST_DMA_QUEUE) & (queue != COLLECTIVE_QUEUE)]
    for rank, old in enumerate(dict.fromkeys(dma.tolist())):
        queue[np.flatnonzero(queue == old)] = -1 - (first + rank % width)
    return np.where(queue < 0, -1 - queue, queue)


def _tensor(place: Range, name: str, dtype: str, role: str) -> isa.HbmTensor:
    return isa.HbmTensor(name, (place.nbytes // size_of(dtype),), dtype, role)


def element_bytes(draft: Draft, access: int) -> int:
    """Bytes of an element of an access."""
    return int(isa.DTYPE_BYTES[draft.accesses["dtype"][access]])


def dtype_of(draft: Draft, access: int) -> str:
    """Name of an access's element type."""
    return isa.DTYPES[int(draft.accesses["dtype"][access])]
