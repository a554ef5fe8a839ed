"""Handles for operands (`HbmView`, `Tile`) and the allocators that place tiles in SBUF and PSUM.

Both handles are views: slicing gives another view of the same memory, as numpy does, and never
copies. The first axis of a tile is the partition; an access has up to four free axes beside it.

Invariants: views are frozen and stay inside their tensor or tile; allocators never hand out bytes
that are in use, and say what is in use when a request does not fit.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tilesmith.families.trainium.codegen.isa.instructions import DIMENSIONS, QUARTER, Space
from tilesmith.families.trainium.codegen.isa.lines import KernelError
from tilesmith.families.trainium.codegen.isa.numbers import all_whole, whole
from tilesmith.search_space.expressions.dtypes import size_of

Dims = tuple[tuple[int, int], ...]


def _slice(dims: Dims, index: Any, what: str) -> tuple[int, list[tuple[int, int] | None]]:
    """Apply a numpy-style index: (offset, dims with None where an integer dropped one)."""
    parts = _spelled_out(index, len(dims))
    if len(parts) > len(dims):
        raise KernelError(f"{what} has {len(dims)} axes; {len(parts)} indices were given")
    offset = 0
    kept: list[tuple[int, int] | None] = []
    for axis, (count, stride) in enumerate(dims):
        part = parts[axis] if axis < len(parts) else slice(None)
        if isinstance(part, slice):
            start, stop, step = _indices(part, count, what, axis)
            length = len(range(start, stop, step))
            wanted = part.stop
            if length < 1 or (isinstance(wanted, int) and wanted > count):
                raise KernelError(f"{what}: {part} is outside axis {axis} of {count} elements")
            kept.append((length, stride * step))
            offset += start * stride
        else:
            place = _place(part, count, what, axis)
            kept.append(None)
            offset += place * stride
    return offset, kept


def _spelled_out(index: Any, axes: int) -> tuple[Any, ...]:
    """An index as a tuple; `...` stands for all axes that nothing else names."""
    parts = index if isinstance(index, tuple) else (index,)
    dots = [at for at, part in enumerate(parts) if part is Ellipsis]
    if not dots:
        return parts
    if len(dots) > 1:
        raise KernelError("an index has '...' once: it stands for all axes that nothing else names")
    rest = axes - (len(parts) - 1)
    return (*parts[: dots[0]], *[slice(None)] * max(rest, 0), *parts[dots[0] + 1 :])


def _place(index: Any, count: int, what: str, axis: int) -> int:
    """The element an index names of `count`; negative ones count from the end."""
    try:
        place = operator.index(index)
    except TypeError:
        raise KernelError(
            f"{what}: index {index!r} of axis {axis} is a {type(index).__name__}; a whole number, "
            "a slice or ... is expected"
        ) from None
    if not -count <= place < count:
        raise KernelError(f"{what}: index {place} is outside axis {axis} of {count} elements")
    return place % count


def _indices(part: slice, count: int, what: str, axis: int) -> tuple[int, int, int]:
    """Start, stop and step of a slice of `count` elements."""
    try:
        return part.indices(count)
    except (TypeError, ValueError) as error:
        raise KernelError(f"{what}: {part} is no slice of axis {axis} ({error})") from None


def _axes(named: Sequence[int], first: int, count: int, what: str) -> list[int]:
    """Every axis once, counted from 0; `named` counts them from `first`, or from the end."""
    axes = [axis + count if axis < 0 else axis - first for axis in named]
    if sorted(axes) != list(range(count)):
        raise KernelError(
            f"{what} has the axes {first} to {first + count - 1}; permute takes each of them once, "
            f"not {tuple(named)}"
        )
    return axes


@dataclass(frozen=True)
class HbmView:
    """Part of a tensor in HBM: element offset and (count, stride in elements) of each axis."""

    name: str
    tensor: int
    dtype: str
    offset: int
    dims: Dims

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(count for count, _ in self.dims)

    def __getitem__(self, index: Any) -> "HbmView":
        offset, kept = _slice(self.dims, index, f"tensor '{self.name}'")
        dims = tuple(d for d in kept if d is not None)
        return replace(self, offset=self.offset + offset, dims=dims)

    def permute(self, *axes: int) -> "HbmView":
        """Axes in another order."""
        order = _axes(axes, 0, len(self.dims), f"tensor '{self.name}'")
        return replace(self, dims=tuple(self.dims[axis] for axis in order))

    def split(self, axis: int, *counts: int) -> "HbmView":
        """One axis as several, outermost first; their product is its extent."""
        axis = whole(axis, "an axis to split")
        if not -len(self.dims) <= axis < len(self.dims):
            raise KernelError(f"'{self.name}' has {len(self.dims)} axes to split, and no {axis}")
        axis %= len(self.dims)
        total, stride = self.dims[axis]
        parts: list[tuple[int, int]] = []
        for count in reversed(all_whole(counts, "parts of an axis", 1)):
            parts.insert(0, (count, stride))
            stride *= count
            if total % count:
                raise KernelError(f"axis of {total} elements does not split into {counts}")
            total //= count
        if total != 1:
            raise KernelError(f"axis {axis} of tensor '{self.name}' does not split into {counts}")
        return replace(self, dims=(*self.dims[:axis], *parts, *self.dims[axis + 1 :]))

    def broadcast(self, partitions: int) -> "HbmView":
        """The same elements for each of `partitions` partitions: a new first axis of stride 0."""
        count = whole(partitions, "partitions to broadcast to", 1)
        return replace(self, dims=((count, 0), *self.dims))


@dataclass(frozen=True)
class Tile:
    """Part of SBUF or PSUM: byte offset in each partition, and the free axes' (count, stride)."""

    name: str
    space: Space
    allocation: int
    dtype: str
    partition: int
    partitions: int
    offset: int
    dims: Dims

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.partitions, *(count for count, _ in self.dims))

    def __getitem__(self, index: Any) -> "Tile":
        what = f"tile '{self.name}'"
        parts = _spelled_out(index, 1 + len(self.dims)) or (slice(None),)
        rows = parts[0]
        if not isinstance(rows, slice):
            row = _place(rows, self.partitions, what, 0)
            rows = slice(row, row + 1)
        skipped, kept = _slice(((self.partitions, 1),), rows, what)
        offset, free = _slice(self.dims, parts[1:], what)
        assert kept[0] is not None
        if kept[0][1] != 1:
            raise KernelError(f"{what}: partitions are taken one after the other, without a step")
        return replace(
            self,
            partition=self.partition + skipped,
            partitions=kept[0][0],
            offset=self.offset + offset * size_of(self.dtype),
            dims=tuple(d for d in free if d is not None) or ((1, 1),),
        )

    def split(self, axis: int, *counts: int) -> "Tile":
        """One free axis (1 is the first) as several, outermost first."""
        axis = whole(axis, "an axis to split")
        axis = axis + len(self.dims) if axis < 0 else axis - 1
        view = HbmView(self.name, 0, self.dtype, 0, self.dims).split(axis, *counts)
        return replace(self, dims=view.dims)

    def permute(self, *axes: int) -> "Tile":
        """Free axes in another order; axes count from 1, the partition stays first."""
        order = _axes(axes, 1, len(self.dims), f"tile '{self.name}'")
        return replace(self, dims=tuple(self.dims[axis] for axis in order))

    def broadcast(self, *counts: int) -> "Tile":
        """The same elements repeated: new innermost free axes of stride 0.

        A [P, 1] tile broadcast to n reads as [P, n].
        """
        base = tuple(d for d in self.dims if d[0] != 1)
        repeats = all_whole(counts, "axes to broadcast to", 1)
        return replace(self, dims=(*base, *((count, 0) for count in repeats)))


def from_reachable(tile: Tile, lowest: int) -> Tile:
    """A tile begun further up, not above `lowest`, so that compute engines reach all of it: they
    begin at multiples of 32 and take no more partitions than the largest power of two in these.
    """
    stop = tile.partition + tile.partitions
    start = tile.partition // QUARTER * QUARTER
    while start and start & -start < stop - start:
        start -= QUARTER
    start = max(start, lowest)
    return replace(tile, partition=start, partitions=stop - start)


def dense(shape: Sequence[int]) -> Dims:
    """Row-major (count, stride) pairs of a shape."""
    dims: list[tuple[int, int]] = []
    stride = 1
    for count in reversed(shape):
        dims.insert(0, (int(count), stride))
        stride *= int(count)
    return tuple(dims)


@lru_cache(maxsize=4096)
def padded(dims: Dims) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Counts and strides of an access, padded to `DIMENSIONS` behind the first axis.

    Raises:
        CodegenError: too many axes for one instruction, even after merging neighbours.
    """
    first, *free = dims
    merged: list[tuple[int, int]] = []
    for count, stride in free:
        if merged and merged[-1][1] == stride * count:
            merged[-1] = (merged[-1][0] * count, stride)
        elif count != 1 or len(free) == 1:
            merged.append((count, stride))
    if len(merged) > DIMENSIONS - 1:
        raise KernelError(f"an access has at most {DIMENSIONS - 1} free axes, not {len(merged)}")
    fill = [(1, 0)] * (DIMENSIONS - 1 - len(merged))
    full = (first, *fill, *merged)
    return tuple(count for count, _ in full), tuple(stride for _, stride in full)
