"""Data flow: every byte that is read was written before, and every output is written in the end.

    reading SBUF or PSUM    each byte was written through the same tile, or an earlier one that it
                            rotates with if no other was in their place since
    summing into PSUM       each byte was begun, by a product that does not accumulate or by any
                            other instruction that writes it
    reading HBM             inputs are there; of other tensors each byte was stored before
    writing HBM             never an input; every output wholly

Rows count in the order they stand in; semaphores, checked elsewhere, keep that order on a machine.
Of each access only the first read and the first write count, since what is written stays so. Areas
are looked at in the largest blocks that no access divides, mostly a whole tile, and tiles with the
same story (all those that a buffer rotates over) once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.codegen.isa.instructions import (
    DTYPE_BYTES,
    DTYPES,
    Allocation,
    InstructionStream,
    Ints,
    Opcode,
    Space,
)
from tilesmith.families.trainium.codegen.isa.verification.areas import Areas, areas
from tilesmith.families.trainium.codegen.isa.verification.report import Mask, breach, hold
from tilesmith.families.trainium.codegen.isa.verification.tiles import share
from tilesmith.search_space.support.errors import VerificationError

READ, SUM, WRITE = range(3)
"""What an instruction does with a place; `SUM` reads what a product is added to."""

Promised = Callable[[str], Mask]
"""Which elements of a tensor, by its name, a stream is to store: bool, in the tensor's shape."""


@dataclass(frozen=True)
class ByteSpan:
    """Bytes `first` to `stop` of the tensor in HBM with number `tensor`."""

    tensor: int
    first: int
    stop: int


@dataclass(frozen=True)
class _Events:
    """The first uses of areas through each access, grouped by area, in order: one column each."""

    area: Ints
    row: Ints
    access: Ints
    kind: Ints


def verify_dataflow(
    stream: InstructionStream,
    given: Sequence[ByteSpan] = (),
    wanted: Sequence[ByteSpan] | None = None,
    promised: Promised | None = None,
) -> None:
    """Check that nothing is read, summed into or left behind that nothing wrote.

    Args:
        given: bytes beside the inputs that are in HBM when the stream starts.
        wanted: bytes that have to be stored when it ends; None: all of every output.
        promised: which elements of an output are to be stored, asked for where some are not (those
            that pad a blocked axis are no part of the result); None: all.

    Raises:
        VerificationError: naming the instruction and the first byte that nothing wrote.
    """
    _inputs(stream)
    whole, tiles = areas(stream), len(stream.allocations)
    if wanted is None:
        wanted = [
            ByteSpan(number, 0, int(whole.size[tiles + number]))
            for number, tensor in enumerate(stream.tensors)
            if tensor.role == "output"
        ]
    events = _events(stream, whole, tiles)
    unit = _units(whole, events, [*given, *wanted], tiles)
    there: dict[int, list[ByteSpan]] = {}
    for span in given:
        there.setdefault(tiles + span.tensor, []).append(span)
    faults = []
    for area, start, stop in _stories(whole, events, unit, tiles):
        size = int(unit[area])
        mask = np.zeros(int(whole.size[area]) // size, dtype=bool)
        for span in there.get(area, ()):
            mask[span.first // size : span.stop // size] = True
        event, byte = _play(whole, events, range(start, stop), mask, size)
        if byte >= 0 and area < tiles:
            event, byte = _kept(stream, whole, events, area)
        if byte >= 0:
            faults.append((int(events.row[event]), event, byte))
    if faults:
        row, event, byte = min(faults)
        raise breach(stream, row, _unwritten(stream, events, event, byte))
    for span in wanted:
        size = int(unit[tiles + span.tensor])
        stored = np.zeros(int(whole.size[tiles + span.tensor]) // size, dtype=bool)
        writes = (events.area == tiles + span.tensor) & (events.kind == WRITE)
        _play(whole, events, np.flatnonzero(writes).tolist(), stored, size)
        _stored(stream, span, stored, size, promised)


def writes_hbm(stream: InstructionStream) -> Mask:
    """Rows whose result is in HBM."""
    op = stream.rows["op"]
    written: Mask = (op == Opcode.STORE) | ((op == Opcode.COLLECTIVE) & (stream.rows["out"] >= 0))
    return written


def _inputs(stream: InstructionStream) -> None:
    """No input is written."""
    stores = np.flatnonzero(writes_hbm(stream))
    tensors = stream.accesses["tensor"][stream.rows["out"][stores]]
    inputs = np.array([tensor.role == "input" for tensor in stream.tensors], dtype=bool)
    wrong = np.zeros(len(stream), dtype=bool)
    wrong[stores] = inputs[tensors] if len(stores) else False
    names = np.full(len(stream), "", dtype=object)
    names[stores] = [stream.tensors[tensor].name for tensor in tensors.tolist()]
    law = "stores into '{}', an input; only outputs and temporaries are written"
    hold(stream, [(wrong, law, names)])


def _events(stream: InstructionStream, whole: Areas, tiles: int) -> _Events:
    """See `_Events`; inputs in HBM, which are there, are left out."""
    rows = stream.rows
    sums = (rows["op"] == Opcode.MATMUL) & (rows["accumulate"] != 0)
    source = rows["in0"].copy()
    source[list(whole.gathered)] = list(whole.gathered.values())
    columns = (
        (source, READ), (rows["in1"], READ), (rows["in2"], READ),
        (np.where(sums, rows["out"], -1), SUM), (rows["out"], WRITE), (rows["out2"], WRITE),
    )  # fmt: skip
    access = np.stack([column for column, _ in columns], axis=1).reshape(-1)
    kind = np.tile([kind for _, kind in columns], len(stream))
    row = np.repeat(np.arange(len(stream)), len(columns))
    present = np.flatnonzero(access >= 0)
    _, first = np.unique(access[present] * len(columns) + kind[present], return_index=True)
    kept = present[np.sort(first)]
    there = np.array([False] * tiles + [t.role == "input" for t in stream.tensors], dtype=bool)
    kept = kept[~there[whole.area[access[kept]]]]
    kept = kept[np.argsort(whole.area[access[kept]], kind="stable")]
    return _Events(whole.area[access[kept]], row[kept], access[kept], kind[kept])


def _units(whole: Areas, events: _Events, spans: Sequence[ByteSpan], tiles: int) -> Ints:
    """The block of each area in bytes: the largest that every event and span leaves whole."""
    unit = whole.size.copy()
    if len(events.area):
        starts = np.flatnonzero(np.diff(events.area, prepend=-1))
        blocks = np.gcd.reduceat(whole.unit(events.access), starts)
        here = events.area[starts]
        unit[here] = np.gcd(unit[here], blocks)
    for span in spans:
        unit[tiles + span.tensor] = np.gcd.reduce(
            [unit[tiles + span.tensor], span.first, span.stop]
        )
    return np.maximum(unit, 1)


def _stories(
    whole: Areas, events: _Events, unit: Ints, tiles: int
) -> Iterator[tuple[int, int, int]]:
    """(area, first event, one past its last) of each tensor, and of tiles that differ."""
    block = unit[events.area]
    history = np.column_stack([
        events.kind, whole.size[events.area] // block, whole.offset[events.access] // block,
        whole.run[events.access] // block, whole.count[events.access],
        whole.stride[events.access] // block[:, None],
    ])  # fmt: skip
    starts = np.flatnonzero(np.diff(events.area, prepend=-1)).tolist()
    known: set[bytes] = set()
    for start, stop in pairwise([*starts, len(history)]):
        area, story = int(events.area[start]), history[start:stop].tobytes()
        if area >= tiles or story not in known:
            known.add(story)
            yield area, start, stop


def _play(
    whole: Areas, events: _Events, these: Iterable[int], mask: Mask, unit: int
) -> tuple[int, int]:
    """Follow an area's events; the first that reads what nothing wrote, and which byte (or -1)."""
    for event in these:
        access = int(events.access[event])
        blocks = _blocks(mask, whole, access, unit)
        if events.kind[event] == WRITE:
            blocks[...] = True
        elif not blocks.all():
            places = _blocks(np.arange(len(mask)), whole, access, unit)
            return event, int(places[~blocks].min()) * unit
    return -1, -1


def _kept(stream: InstructionStream, whole: Areas, events: _Events, area: int) -> tuple[int, int]:
    """As `_play`, for all tiles that rotate over the place of tile `area`: one may count on what
    those before it wrote (a frame filled once), but for the bytes that other tiles wrote since.

    Raises:
        VerificationError: others wrote what is read.
    """
    place = stream.allocations[area]
    shared = [share(place, other) for other in stream.allocations]
    family = [tile for tile, other in enumerate(stream.allocations) if other == place]
    own = np.isin(events.area, family)
    foreign = np.isin(events.area, np.flatnonzero(shared)) & (events.kind == WRITE) & ~own
    these = np.flatnonzero(own | foreign)
    these = these[np.lexsort((events.kind[these], events.row[these]))]
    others = [stream.allocations[tile] for tile in np.unique(events.area[these]).tolist()]
    edges = [edge for other in others for edge in (other.bytes, abs(other.offset - place.offset))]
    unit = int(np.gcd.reduce(np.append(whole.unit(events.access[these]), edges)))
    mask = np.zeros(int(whole.size[area]) // unit, dtype=bool)
    taken = np.full(len(mask), -1, dtype=np.int64)
    for event in these.tolist():
        if foreign[event]:
            _overwrite(stream, whole, events, event, place, mask, taken, unit)
            continue
        unwritten, byte = _play(whole, events, (event,), mask, unit)
        if byte >= 0 and taken[byte // unit] >= 0:
            raise breach(
                stream,
                int(taken[byte // unit]),
                f"takes the place of tile '{place.name}', which is read later for what was "
                "written there once",
            )
        if byte >= 0:
            return unwritten, byte
    return -1, -1


def _overwrite(
    stream: InstructionStream,
    whole: Areas,
    events: _Events,
    event: int,
    place: Allocation,
    mask: Mask,
    taken: Ints,
    unit: int,
) -> None:
    """Take the bytes that an event of another tile writes out of the mask of a place; `taken` is
    the row that did it last."""
    tile = int(events.area[event])
    other = stream.allocations[tile]
    written = np.zeros(int(whole.size[tile]) // unit, dtype=bool)
    _blocks(written, whole, int(events.access[event]), unit)[...] = True
    rows = slice(
        max(place.partition, other.partition),
        min(place.partition + place.partitions, other.partition + other.partitions),
    )
    columns = slice(max(place.offset, other.offset),
                    min(place.offset + place.bytes, other.offset + other.bytes))  # fmt: skip

    def window(table: NDArray[Any], tile: Allocation) -> NDArray[Any]:
        return table.reshape(tile.partitions, tile.bytes // unit)[
            rows.start - tile.partition : rows.stop - tile.partition,
            (columns.start - tile.offset) // unit : (columns.stop - tile.offset) // unit,
        ]

    gone = window(written, other) & window(mask, place)
    window(mask, place)[gone] = False
    window(taken, place)[gone] = int(events.row[event])


def _blocks(table: NDArray[Any], whole: Areas, access: int, unit: int) -> NDArray[Any]:
    """The part of an area's table, one element a block, that an access touches."""
    size = table.itemsize
    return np.ndarray(
        (*whole.count[access].tolist(), int(whole.run[access]) // unit),
        table.dtype,
        buffer=table,
        offset=int(whole.offset[access]) // unit * size,
        strides=(*(whole.stride[access] // unit * size).tolist(), size),
    )


def _unwritten(stream: InstructionStream, events: _Events, event: int, byte: int) -> str:
    area, tiles = int(events.area[event]), len(stream.allocations)
    if area >= tiles:
        name = stream.tensors[area - tiles].name
        return f"reads '{name}' at byte {byte}, which nothing has stored"
    tile = stream.allocations[area]
    row, column = divmod(byte, tile.bytes)
    partition, column = tile.partition + row, tile.offset + column
    memory = Space(tile.space).name
    if events.kind[event] == SUM:
        return (
            f"sums into {memory} at byte {column} of partition {partition} (tile '{tile.name}'), "
            "where nothing has begun a sum"
        )
    return (
        f"reads {memory} at byte {column}, which nothing has written on partition {partition} "
        f"since tile '{tile.name}' has this place"
    )


def _stored(
    stream: InstructionStream, span: ByteSpan, stored: Mask, unit: int, promised: Promised | None
) -> None:
    """The bytes of a span are stored, but for those that were not promised."""
    missing = ~stored
    missing[: span.first // unit] = False
    missing[span.stop // unit :] = False
    if not missing.any():
        return
    tensor = stream.tensors[span.tensor]
    size = int(DTYPE_BYTES[DTYPES.index(tensor.dtype)])
    elements = np.repeat(missing, max(unit // size, 1))
    if promised is not None:
        elements &= promised(tensor.name).reshape(-1)
    if elements.any():
        place = np.unravel_index(int(elements.argmax()) * min(unit, size) // size, tensor.shape)
        line = f"{tensor.line}: " if tensor.line else ""
        raise VerificationError(
            f"{line}kernel '{stream.name}' ends and no instruction has stored "
            f"element {[int(i) for i in place]} of '{tensor.name}' of shape {list(tensor.shape)}; "
            "an output has to be stored wholly"
        )
