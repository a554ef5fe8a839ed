"""Elementwise nests: cut into pieces, with the tiles that their values need on the way.

The loops of a nest are dealt to the partition axis of what is written and to free axes;
`elementwise` makes instructions of each piece. A tensor read straight from HBM is staged in SBUF,
spread over partitions where no partition loop indexes it; the last few stay there.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

from tilesmith.families.trainium.codegen.isa.instructions import DIMENSIONS
from tilesmith.families.trainium.codegen.isa.memory import HbmView, Tile, dense
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.codegen.selection.elementwise import Dims, Emission, Value
from tilesmith.families.trainium.codegen.selection.loop_nests.nests import (
    Environment,
    NestAccess,
    PlannedNest,
)
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.scalar import Call
from tilesmith.search_space.support.errors import CodegenError

TileView = Callable[[NestAccess, Environment, str, Dims, int], Tile]

MAX_ELEMENTS = 2048
"""Elements a partition of one elementwise instruction; longer ones are cut so that engines
overlap.
"""

TURNED = ("bfloat16", "float16")
"""Types that the tensor engine turns in one pass; four of float32 are no gain."""

ROTATING = 5
"""Temporaries of an expression's values that take turns, if it needs no more at once."""

STAGED = 8
"""Pieces of one HBM tensor kept staged in SBUF."""


class PointwiseEmitter:
    """Emits elementwise nests into a kernel.

    Args:
        tile_view: the part of an allocated tile that an access touches.
        views: tensors in HBM by name.
    """

    def __init__(self, kernel: Kernel, tile_view: TileView, views: Mapping[str, HbmView]) -> None:
        self.kernel, self.tile_view, self.views = kernel, tile_view, views
        self.pool = "temporary"
        self.idle: list[Tile] = []
        self.lent: dict[int, Tile] = {}
        self.staged: dict[str, OrderedDict[tuple[object, ...], Tile]] = {}
        self.columns: dict[tuple[str, int, int], Tile] = {}
        self.promised: dict[int, list[tuple[Tile, float]]] = {}
        self.begun: dict[int, set[Tile]] = {}

    def emit(
        self, nest: PlannedNest, env: Environment, sizes: dict[str, int], partition: str
    ) -> None:
        """A nest of one block: a map, or a reduction with `partition` kept."""
        reduced = [n for n in sizes if n not in nest.write.strides and n != partition]
        kept = [n for n in sizes if n in nest.write.strides and n != partition]
        if nest.block.reducer is None and any(sizes[n] > 1 for n in reduced):
            raise CodegenError(f"stage '{nest.block.stage}' writes elements more than once")
        outside: Dims = []
        accumulates = nest.block.reducer is not None and isinstance(nest.block.value, Call)
        if accumulates and any(sizes[n] > 1 for n in kept):
            outside = [(n, sizes[n]) for n in reduced]
            reduced = []
        dims = [(n, sizes[n]) for n in kept + reduced if sizes[n] > 1]
        rows = sizes.get(partition, 1)
        for values in product(*(range(count) for _, count in outside)):
            inner = {**env, **dict(zip((n for n, _ in outside), values, strict=True))}
            for start, part in pieces(dims):
                Emission(self, nest, {**inner, **start}, partition, part, rows).run()

    @contextmanager
    def beside(self, part: str) -> Iterator[None]:
        """Temporaries are those of one part of a loop: another's instructions may stand between."""
        outer = self.pool
        self.pool = f"{outer}.{part}"
        yield
        self.pool = outer

    def promise(self, view: Tile, value: float) -> None:
        """A reduction starts from `value`, unless its first step writes what it works on."""
        earlier = self.promised.setdefault(view.allocation, [])
        written = sum(map(_size, self.begun.pop(view.allocation, ())))
        if len(earlier) == 1 and written >= _size(earlier[0][0]):
            earlier.clear()  # kept: another part of the tile is another reduction's, as a column
        earlier.append((view, value))

    def fulfil(self, out: Tile, whole: bool) -> bool:
        """Whether a step of a reduction into `out` may write instead of combine.

        It may if it is the first there and `whole`. What else was promised of the tile is filled
        now; a part of a dense view that steps write one after the other is filled part by part.
        """
        promises = self.promised.get(out.allocation, [])
        begun = self.begun.setdefault(out.allocation, set())
        if len(promises) == 1 and _inside(out, promises[0][0]) and (whole or begun):
            first = _dense(out) not in begun
            begun.add(_dense(out))
            if first and not whole:
                self.kernel.memset(out, promises[0][1])
            return first and whole
        fresh = False
        for view, value in self.promised.pop(out.allocation, ()):
            if whole and not fresh and _dense(view) == _dense(out):
                fresh = True
            else:
                self.kernel.memset(view, value)
        return fresh

    def temporary(self, like: Tile) -> Tile:
        """A dense fp32 tile of the shape of `like`; give it back with `release`.

        The place used longest ago is taken, of two at least and of `ROTATING` unless it is for a
        column, so that engines can overlap; columns have places of their own.
        """
        elements = math.prod(count for count, _ in like.dims)
        wide = elements > 1
        alike = [t for t in (*self.idle, *self.lent.values()) if (_size(t) > 1) == wide]
        idle = [
            tile
            for tile in self.idle
            if tile.name == self.pool
            and (_size(tile) > 1) == wide
            and _size(tile) >= elements
            and tile.partitions >= like.partitions
        ]
        if len(idle) < 2 or (wide and len(alike) < ROTATING):
            tile = self.kernel.sbuf((like.partitions, elements), name=self.pool)
        else:
            self.idle.remove(idle[0])
            tile = self.kernel.again(idle[0])
        self.lent[tile.allocation] = tile
        dims = dense([c for c, _ in like.dims])
        return replace(tile, partitions=like.partitions, dims=dims)

    def release(self, *values: Value) -> None:
        """Temporaries among `values` are not used any more."""
        for value in values:
            if isinstance(value, Tile) and value.allocation in self.lent:
                self.idle.append(self.lent.pop(value.allocation))

    def stage(
        self, access: NestAccess, env: Environment, partition: str, dims: Dims, rows: int
    ) -> Tile:
        """What an access reads from HBM, in SBUF; reused while it is still there."""
        view = self.views[access.buffer.name]
        offset = access.offset(env) + sum(
            step * env[name] for name, step in access.strides.items() if name in env
        )
        free = [(n, c) for n, c in dims if n in access.strides]
        pattern = tuple((c, access.strides[n]) for n, c in free)
        lead = (rows, access.strides.get(partition, 0))
        if not free and lead[1] == 1 and rows <= self.kernel.core.cols:
            return self._column(view, rows, offset)
        shape = (rows, *(c for _, c in free)) if free else (rows, 1)
        key = (offset, lead, pattern)
        kept = self.staged.setdefault(access.buffer.name, OrderedDict())
        if key not in kept:
            place = self._place(access, kept, shape)
            source = HbmView(
                view.name, view.tensor, view.dtype, offset, (lead, *(pattern or ((1, 1),)))
            )
            self.kernel.load(place, source)
            kept[key] = place
        kept.move_to_end(key)
        tile = kept[key]
        strides = dict(zip((n for n, _ in free), tile.dims, strict=False))
        spread = [(c, strides[n][1] if n in strides else 0) for n, c in dims]
        return replace(tile, dims=tuple(spread) or ((1, 1),))

    def _column(self, view: HbmView, rows: int, offset: int) -> Tile:
        """`rows` numbers of a vector from `offset` on, one on each partition; of whole blocks of a
        vector all are staged together.

        A transfer costs its partitions, however little each of them gets. So the vector comes as a
        row of one partition, where the tensor engine can turn it into columns.
        """
        number, begun = divmod(offset, rows)
        count = math.prod(n for n, _ in view.dims) // rows
        if begun:
            number, count = 0, 1
        first = offset - number * rows
        key = view.name, rows, first
        if key not in self.columns:
            place = self.kernel.sbuf((rows, count), view.dtype, f"{view.name}.staged")
            self.columns[key] = place
            if view.dtype not in TURNED or count > self.kernel.core.bank_bytes // 4:
                dims = ((rows, 1), (count, rows))
                self.kernel.load(place, HbmView(view.name, view.tensor, view.dtype, first, dims))
            else:
                self._turned(place, view, first)
        return self.columns[key][:, number : number + 1]

    def _turned(self, place: Tile, view: HbmView, first: int) -> None:
        """Columns of a vector in SBUF, turned from a row of it."""
        rows, count = place.shape
        row = self.kernel.sbuf((1, rows * count), view.dtype, f"{view.name}.row")
        dims = ((1, 0), (rows * count, 1))
        self.kernel.load(row, HbmView(view.name, view.tensor, view.dtype, first, dims))
        turned = self.kernel.psum((rows, count), name=f"{view.name}.turned")
        for i in range(count):
            self.kernel.transpose(turned[:, i : i + 1], row[:, i * rows : (i + 1) * rows])
        self.kernel.copy(place, turned)
        self.kernel.free(turned)

    def _place(
        self,
        access: NestAccess,
        kept: OrderedDict[tuple[object, ...], Tile],
        shape: tuple[int, ...],
    ) -> Tile:
        """A place for a staged piece: a new one, or that of the piece used longest ago."""
        elements = math.prod(shape[1:])
        fitting = [
            key
            for key, tile in kept.items()
            if tile.partitions >= shape[0] and _size(tile) >= elements
        ]
        if len(kept) >= STAGED and fitting:
            old = self.kernel.again(kept.pop(fitting[0]))
            return replace(old, partitions=shape[0], dims=dense(shape[1:]))
        return self.kernel.sbuf(shape, access.buffer.dtype, f"{access.buffer.name}.staged")


def _dense(tile: Tile) -> Tile:
    """A tile without axes of one element."""
    return replace(tile, dims=tuple(d for d in tile.dims if d[0] != 1))


def _inside(part: Tile, view: Tile) -> bool:
    """Whether a tile's bytes are among those of a dense view."""
    size = size_of(view.dtype)
    spans = [(count - 1) * stride for count, stride in part.dims]
    dense_view = sum((c - 1) * s for c, s in view.dims) + 1 == _size(view)
    return (
        dense_view
        and view.dtype == part.dtype
        and (view.partition, view.partitions) == (part.partition, part.partitions)
        and view.offset <= part.offset
        and part.offset + (sum(spans) + 1) * size <= view.offset + _size(view) * size
    )


def _size(tile: Tile) -> int:
    """Elements a partition."""
    return math.prod(count for count, _ in tile.dims)


def pieces(dims: Dims) -> Iterator[tuple[dict[str, int], Dims]]:
    """A nest's free loops cut into pieces of at most `MAX_ELEMENTS` and few enough axes.

    Each is (first value of the loops that were cut, loops and counts that remain); pieces of one
    loop are alike but for the last.
    """
    total = math.prod(count for _, count in dims)
    if len(dims) < DIMENSIONS and total <= MAX_ELEMENTS:
        yield {}, dims
        return
    (name, count), *rest = dims
    inner = total // count
    step = 1 if len(dims) >= DIMENSIONS else max(1, MAX_ELEMENTS // inner)
    step = -(-count // -(-count // step))
    for start in range(0, count, step):
        size = min(step, count - start)
        own = [(name, size)] if size > 1 else []
        for more, part in pieces(rest) if step == 1 else [({}, rest)]:
            yield {name: start, **more}, own + part
