"""Reading and writing at computed places: gather, scatter, dynamic slices, by their dimension
numbers.

Whatever the numbers, a gather reads rows of a matrix and a scatter writes them: axes that windows
cover whole are within rows, the others are counted by the place of a row. Reading along one axis,
which is most of what models do, stays a Gather along it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilesmith.capabilities.stablehlo.arithmetic import RealValue, choose
from tilesmith.capabilities.stablehlo.attributes import integers
from tilesmith.capabilities.stablehlo.bindings import stablehlo
from tilesmith.capabilities.stablehlo.builder import GraphBuilder, Shape, TensorValue
from tilesmith.capabilities.stablehlo.rules.shapes import concatenate, count, cut, part
from tilesmith.capabilities.stablehlo.translator import Translation, Values, rules
from tilesmith.capabilities.stablehlo.turns import Turns, TurnWindows, WrittenRow


@dataclass(frozen=True)
class Windows:
    """Windows of a tensor: where each begins, and how long it is.

    Attributes:
        batch: extents that windows are counted by.
        starts: by axis, the first element of each window: whole numbers [batch] (or broadcast to
            it); 0 where an axis is left out.
        sizes: of a window, per axis of the tensor.
    """

    batch: Shape
    starts: dict[int, TensorValue]
    sizes: Shape

    def covered(self, shape: Shape) -> int:
        """The axis from which on windows are the whole tensor."""
        axis = len(shape)
        while axis and self.sizes[axis - 1] == shape[axis - 1] and axis - 1 not in self.starts:
            axis -= 1
        return axis


# -- where windows begin ------------------------------------------------------------------------
def components(b: GraphBuilder, indices: TensorValue, vector: int) -> list[TensorValue]:
    """The parts of index vectors along the axis `vector`, in 64 bits."""
    shape = indices.shape
    if vector == len(shape):
        return [b.cast(indices, "int64")]
    rest = (*shape[:vector], *shape[vector + 1 :])
    before = b.producer(indices.name)
    if before is not None and before.is_onnx("Concat") and indices.whole:
        columns = [b.value(name) for name in before.inputs]
        joined = before.attribute("axis") == vector
        if joined and all(column.shape[vector] == 1 for column in columns):
            return [b.cast(b.reshape(column, rest), "int64") for column in columns]
    cuts = (part(b, indices, vector, number, number + 1) for number in range(shape[vector]))
    return [b.cast(b.reshape(column, rest), "int64") for column in cuts]


def batched(b: GraphBuilder, indices: Shape, vector: int, shape: Shape) -> list[TensorValue]:
    """For axes that tensor and indices share: their own count, per window."""
    batch = tuple(extent for axis, extent in enumerate(shape) if axis != vector)
    counts = []
    for axis in indices:
        place = axis - (axis > vector)
        counts.append(b.broadcast(count(b, batch[place], "int64"), batch, (place,)))
    return counts


def clamped(b: GraphBuilder, start: TensorValue, most: int) -> TensorValue:
    """At least 0 and at most `most`, so that a window lies inside."""
    return RealValue(b, start).maximum(0).minimum(most).value


def _rows(b: GraphBuilder, shape: Shape, windows: Windows, lead: int) -> TensorValue:
    """The place of each row: [batch, sizes of the leading axes]."""
    sizes = windows.sizes[:lead]
    whole = (*windows.batch, *sizes)
    total: TensorValue | None = None
    step = 1
    for axis in reversed(range(lead)):
        terms = []
        if axis in windows.starts:
            own = windows.starts[axis]
            terms.append(b.broadcast(own, whole, tuple(range(len(windows.batch)))))
        if sizes[axis] > 1:
            counted = count(b, sizes[axis], "int64")
            terms.append(b.broadcast(counted, whole, (len(windows.batch) + axis,)))
        for term in terms:
            scaled = term if step == 1 else b.elementwise("Mul", term, b.like(step, term))
            total = scaled if total is None else b.elementwise("Add", total, scaled)
        step *= shape[axis]
    zero = b.constant(np.array(0, np.int64))
    return replace(total if total is not None else zero, shape=whole)


# -- reading ------------------------------------------------------------------------------------
def read(b: GraphBuilder, value: TensorValue, windows: Windows) -> TensorValue:
    """[batch, sizes]: windows of a tensor, which lie inside it."""
    shape, sizes = value.shape, windows.sizes
    result = (*windows.batch, *sizes)
    if 0 in result:
        return replace(b.like(0, value), shape=result)
    row = by_turn(b, value, windows)
    if row is not None:
        return row
    cropped = [a for a in range(len(shape)) if a in windows.starts or sizes[a] != shape[a]]
    if not cropped:
        return b.broadcast(value, result, range(len(windows.batch), len(result)))
    lead = windows.covered(shape)
    value = b.full(value)
    if len(cropped) == 1 and cropped[0] in windows.starts:
        return _along(b, value, windows, cropped[0])
    rows = b.reshape(value, (math.prod(shape[:lead]), *shape[lead:]))
    places = b.full(_rows(b, shape, windows, lead))
    extents = (*places.shape, *shape[lead:])
    return b.reshape(
        b.add("Gather", [rows.name, places.name], value.dtype, extents, axis=0), result
    )


def _along(b: GraphBuilder, value: TensorValue, windows: Windows, axis: int) -> TensorValue:
    """Windows that begin anywhere along one axis."""
    places, own = windows.starts[axis], (*windows.batch, windows.sizes[axis])
    rank = len(windows.batch)
    places = b.broadcast(places, own, range(rank))
    if own[-1] > 1:
        ahead = b.broadcast(count(b, own[-1], "int64"), own, (rank,))
        places = b.elementwise("Add", places, ahead)
    if own[-1] == 1:
        own = own[:-1]
    places = b.full(b.reshape(places, own))
    before, after = value.shape[:axis], value.shape[axis + 1 :]
    gathered = b.add(
        "Gather", [value.name, places.name], value.dtype, (*before, *own, *after), axis=axis
    )
    order = (*range(axis, axis + rank), *range(axis), *range(axis + rank, len(gathered.shape)))
    return b.reshape(b.transpose(gathered, order), (*windows.batch, *windows.sizes))


@rules.register("stablehlo.gather")
def _gather(translation: Translation, operation: Any, values: Values) -> Values:
    b, (value, indices) = translation.builder, values[:2]
    axes = stablehlo().GatherDimensionNumbers(operation.attributes["dimension_numbers"])
    sizes = integers(operation, "slice_sizes")
    vector = int(axes.index_vector_dim)
    batch = tuple(extent for axis, extent in enumerate(indices.shape) if axis != vector)
    starts: dict[int, TensorValue] = {}
    parts = components(b, indices, vector)
    for axis, start in zip(axes.start_index_map, parts, strict=True):
        if sizes[axis] < value.shape[axis]:
            starts[axis] = clamped(b, start, value.shape[axis] - sizes[axis])
    shared = tuple(axes.operand_batching_dims)
    counts = batched(b, tuple(axes.start_indices_batching_dims), vector, indices.shape)
    starts.update(zip(shared, counts, strict=True))
    gathered = read(b, value, Windows(batch, starts, sizes))
    gone = {*axes.collapsed_slice_dims, *shared}
    kept = [extent for axis, extent in enumerate(sizes) if axis not in gone]
    gathered = b.reshape(gathered, (*batch, *kept))
    offsets = tuple(axes.offset_dims)
    counted, inside = iter(range(len(batch))), iter(range(len(batch), len(gathered.shape)))
    order = [next(inside) if a in offsets else next(counted) for a in range(len(gathered.shape))]
    return [b.transpose(gathered, order)]


@rules.register("stablehlo.dynamic_slice")
def _dynamic_slice(translation: Translation, operation: Any, values: Values) -> Values:
    b, value = translation.builder, values[0]
    sizes = integers(operation, "slice_sizes")
    starts, moving = _starts(b, value.shape, values[1:], sizes)
    known = {axis: b.constant(np.array(start, np.int64)) for axis, start in enumerate(starts)}
    cropped = [axis for axis, size in enumerate(sizes) if size != value.shape[axis]]
    windows = Windows((), {axis: moving.get(axis, known[axis]) for axis in cropped}, sizes)
    row = by_turn(b, value, windows) if moving else None
    if row is not None:
        return [row]
    value = cut(
        b, value,
        tuple(start if axis not in moving else 0 for axis, start in enumerate(starts)),
        tuple(
            start + size if axis not in moving else extent
            for axis, (start, size, extent) in enumerate(
                zip(starts, sizes, value.shape, strict=True)
            )
        ),
    )  # fmt: skip
    return [read(b, value, Windows((), moving, sizes)) if moving else value]


def _starts(
    b: GraphBuilder, shape: Shape, given: Sequence[TensorValue], sizes: Shape
) -> tuple[list[int], dict[int, TensorValue]]:
    """Where a window of such sizes begins: known numbers, and by axis those that are computed."""
    starts, moving = [], {}
    for axis, (value, extent, size) in enumerate(zip(given, shape, sizes, strict=True)):
        known = b.single(value)
        starts.append(0 if known is None else min(max(0, int(known)), extent - size))
        if known is None and size < extent:
            moving[axis] = clamped(b, b.cast(value, "int64"), extent - size)
    return starts, moving


@rules.register("stablehlo.dynamic_update_slice")
def _dynamic_update_slice(translation: Translation, operation: Any, values: Values) -> Values:
    b, (value, update) = translation.builder, values[:2]
    sizes = update.shape
    if 0 in sizes or sizes == value.shape:
        return [update if sizes == value.shape else value]
    starts, moving = _starts(b, value.shape, values[2:], sizes)
    cropped = [axis for axis, size in enumerate(sizes) if size != value.shape[axis]]
    if len(cropped) == 1 and not moving:
        return [_spliced(b, value, update, cropped[0], starts[cropped[0]])]
    known = {axis: b.constant(np.array(start, np.int64)) for axis, start in enumerate(starts)}
    windows = Windows((), {axis: moving.get(axis, known[axis]) for axis in cropped}, sizes)
    return [write(b, value, update, windows, "none")]


def _spliced(
    b: GraphBuilder, value: TensorValue, update: TensorValue, axis: int, start: int
) -> TensorValue:
    """A part along one axis in another's place."""
    before = b.producer(value.name)
    pieces = [value]
    if before is not None and before.is_onnx("Concat") and before.attribute("axis") == axis:
        pieces = [b.value(name) for name in before.inputs]
    stop = start + update.shape[axis]
    low: list[TensorValue] = []
    high: list[TensorValue] = []
    place = 0
    for piece in pieces:
        end = place + piece.shape[axis]
        if place < start:
            low.append(part(b, piece, axis, 0, min(end, start) - place))
        if end > stop:
            high.append(part(b, piece, axis, max(place, stop) - place, end - place))
        place = end
    return concatenate(b, [*low, update, *high], axis)


# -- by turn ------------------------------------------------------------------------------------
_MANY = 1 << 16
"""Elements up to which windows are read before a loop, however often each is among them."""


def by_turn(b: GraphBuilder, value: TensorValue, windows: Windows) -> TensorValue | None:
    """A row of what is read for all turns before the loop; None where it cannot be."""
    turns: Turns | None = b.turns[-1] if b.turns else None
    if turns is None or not windows.starts:
        return None
    state = turns.states.get(value.name) if value.whole else None
    source = value if state is None else state
    rows = turns.rows(b, windows.starts, windows.batch, windows.sizes)
    if rows is None or not turns.is_outside(b, source):
        return None
    elements = turns.count * math.prod((*windows.batch, *windows.sizes))
    if elements > max(_MANY, 16 * math.prod(source.shape)):
        return None
    if not rows.vary:
        if state is not None:
            return None
        with turns.around(b):
            return read(b, value, _windows(b, rows))
    if state is not None:
        turns.seen.append((value.name, rows))
    with turns.around(b):
        whole, backwards = _read_before(b, source, rows, turns.count)
    for name, known in turns.scanned.items():
        if known == (whole, backwards):
            return b.value(name)
    row = b.declare(b.name("row"), value.dtype, (*windows.batch, *windows.sizes))
    turns.scanned[row.name] = (whole, backwards)
    return row


def _windows(b: GraphBuilder, rows: TurnWindows, turns: int | None = None) -> Windows:
    """The windows of all turns as one batch; those of one turn, where all are the same."""
    batch = rows.batch if turns is None else (turns, *rows.batch)
    starts = {
        axis: b.constant((start[0] if turns is None else start).astype(np.int64))
        if isinstance(start, np.ndarray)
        else replace(start, shape=batch)
        for axis, start in rows.starts.items()
    }
    return Windows(batch, starts, rows.sizes)


def _read_before(
    b: GraphBuilder, value: TensorValue, rows: TurnWindows, turns: int
) -> tuple[TensorValue, bool]:
    """[turns, *batch, *sizes], and whether the last turn's comes first."""
    line = rows.line(value.shape)
    if line is None:
        return b.full(read(b, value, _windows(b, rows, turns))), False
    axis, low, backwards = line
    rows_of_all = part(b, b.full(value), axis, low, low + turns)
    order = (axis, *(a for a in range(len(value.shape)) if a != axis))
    return b.reshape(b.full(b.transpose(rows_of_all, order)), (turns, *rows.sizes)), backwards


def written_by_turn(
    b: GraphBuilder, value: TensorValue, update: TensorValue, windows: Windows, reduction: str
) -> TensorValue | None:
    """What stands for a loop's state of which a row is written; None where that is not by turn."""
    turns: Turns | None = b.turns[-1] if b.turns else None
    if turns is None or value.name not in turns.states or not value.whole:
        return None
    rows = turns.rows(b, windows.starts, windows.batch, windows.sizes)
    if rows is None or not rows.vary:
        return None
    if reduction != "none":
        before = read(b, value, windows)
        update = b.elementwise(reduction.title(), before, b.reshape(update, before.shape))
    token = b.declare(b.name("written"), value.dtype, value.shape)
    given = b.full(b.reshape(b.full(update), (*windows.batch, *windows.sizes)))
    turns.written[token.name] = WrittenRow(value.name, rows, given)
    return token


def written_behind(
    b: GraphBuilder, value: TensorValue, stacked: TensorValue, rows: TurnWindows, turns: int
) -> TensorValue:
    """A state after a loop.

    Args:
        stacked: what its turns wrote, [turns, *batch, *sizes], in order of the places where these
            lie in a line.
    """
    line = rows.line(value.shape)
    if line is None:
        return write(b, value, stacked, _windows(b, rows, turns), "none")
    axis, low, _ = line
    others = [extent for a, extent in enumerate(value.shape) if a != axis]
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(value.shape))]
    moved = b.transpose(b.reshape(stacked, (turns, *others)), order)
    return moved if moved.shape == value.shape else _spliced(b, b.full(value), moved, axis, low)


# -- writing ------------------------------------------------------------------------------------
def write(
    b: GraphBuilder,
    value: TensorValue,
    update: TensorValue,
    windows: Windows,
    reduction: str,
    inside: TensorValue | None = None,
) -> TensorValue:
    """A tensor with windows [batch, sizes] written into it, or joined with what is there.

    Args:
        inside: for each row, whether it is written at all; None: every one.
    """  # fmt: skip
    token = written_by_turn(b, value, update, windows, reduction) if inside is None else None
    if token is not None:
        return token
    shape = value.shape
    lead = windows.covered(shape)
    row = shape[lead:]
    count_of_rows = math.prod(shape[:lead])
    rows = b.reshape(b.full(value), (count_of_rows, *row))
    places = _rows(b, shape, windows, lead)
    total = count_of_rows
    if inside is not None:  # what is outside goes into a row that is cut off again
        spare = replace(b.like(0, value), shape=(1, *row))
        rows = concatenate(b, [rows, spare], 0)
        places = choose(b, inside, places, b.like(count_of_rows, places))
        total += 1
    number = math.prod(places.shape)
    places = b.full(b.reshape(b.full(places), (number, 1)))
    updates = b.full(b.reshape(b.full(update), (number, *row)))
    scattered = b.add(
        "ScatterND", [b.full(rows).name, places.name, updates.name], value.dtype,
        (total, *row), reduction=reduction,
    )  # fmt: skip
    if inside is not None:
        scattered = cut(b, scattered, (0,) * len(scattered.shape), (count_of_rows, *row))
    return b.reshape(scattered, shape)
