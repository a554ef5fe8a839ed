"""Where the operands of a kernel stand: tensors in HBM, tiles in SBUF and PSUM, their accesses.

`KernelMemory` is the part of `builder.Kernel` that knows places; instructions are the other part.
Tiles come from an allocator or stand at an explicit address; `Buffers` rotates over several places.

Compute engines begin at partitions 0, 32, 64 and 96, and reach 128, 32, 64 and 32 from there. So a
tile of few partitions takes a quarter or two of a memory and no more: the first that has room,
unless its place is given. What an instruction reads together begins at one partition; tiles stand
at 0 as long as there is room, and who fills a memory says where tiles that are read together stand.

Invariant: every tile handle names one allocation, so the verifier can tell which handle a place
belongs to at any time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import (
    DTYPES,
    QUARTER,
    Allocation,
    HbmTensor,
    Space,
)
from tilesmith.families.trainium.codegen.isa.lines import KernelError, Line, caller, line_text
from tilesmith.families.trainium.codegen.isa.memory import HbmView, Tile, dense, padded
from tilesmith.families.trainium.codegen.isa.numbers import all_whole, whole
from tilesmith.families.trainium.schedules.building_blocks.machine import memories
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.hardware.memory import Allocator

_SHOWN = 12
"""Lines of tiles, those that take most."""

WHOLE = 4 * QUARTER

_LAW = (
    f"engines begin at partitions 0, {QUARTER}, {2 * QUARTER} and {3 * QUARTER} alone: at most "
    f"four tiles, of up to {QUARTER} partitions each, share their bytes; rows of one partition "
    "each take least as the partitions of one tile"
)


@dataclass(frozen=True)
class HeldTile:
    """A tile in use: what it was made as, and the line that made it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    line: Line | None


Tiles = Mapping[tuple[int, int], HeldTile]
"""Tiles in use of one memory by first byte and first partition."""


def beginnings(partitions: int) -> Iterator[int]:
    """Partitions that a tile may begin at, so that compute engines reach all of it."""
    yield 0
    for start in (2 * QUARTER, QUARTER, 3 * QUARTER):
        if partitions <= start & -start:
            yield start


def full(allocator: Allocator, amount: int, wanted: HeldTile, tiles: Tiles) -> str:
    """Why a tile found no room: what it needs, and what takes the memory, the largest first."""
    taken = [
        (size, first, stop, offset, tiles.get((offset, first)))
        for (offset, first), (size, _, stop) in allocator.live.items()
    ]
    taken.sort(key=lambda one: (-one[0], _origin(one[4]), one[3], one[1]))
    groups = [
        list(members)
        for _, members in groupby(taken, lambda one: (one[0], one[2] - one[1], _origin(one[4])))
    ]
    groups.sort(key=lambda members: -sum(one[0] for one in members))
    lines = [_line(members) for members in groups[:_SHOWN]]
    if len(groups) > _SHOWN:
        rest = sum(len(members) for members in groups[_SHOWN:])
        lines.append(f"  and {rest} more tiles")
    beside = "beside it are" if lines else "nothing is beside it"
    few = any(stop - first < WHOLE for _, first, stop, *_ in taken)
    return "\n".join(
        (
            f"{allocator.short_of(amount, wanted.name)}; it is {_shape(wanted)}, and {beside}",
            *lines,
            *((_LAW,) if few else ()),
            "give tiles back with free(), choose smaller tiles or fewer buffers",
        )
    )


def _origin(tile: HeldTile | None) -> tuple[str, ...]:
    """What tiles that are told of together have in common."""
    return () if tile is None else (_shape(tile), line_text(tile.line))


def _line(members: Sequence[tuple[int, int, int, int, HeldTile | None]]) -> str:
    size, first, stop, offset, tile = members[0]
    names = [one[4].name for one in members if one[4] is not None]
    many = len(members) > 1
    who = f"'{names[0]}'" if len(set(names)) == 1 else f"'{names[0]}' to '{names[-1]}'"
    count = f"{len(members)} tiles of " if many else ""
    begins = sorted({one[1] for one in members})
    last = stop - first - 1
    rows = " and ".join(f"{start} to {start + last}" if last else f"{start}" for start in begins)
    where = "" if many else f" from byte {offset}"
    line = f", {line_text(tile.line)}" if tile is not None and tile.line is not None else ""
    kind = _shape(tile) if tile is not None else ""
    return f"  {count}{size} bytes{where}, partitions {rows}: {who} {kind}{line}"


def _shape(tile: HeldTile) -> str:
    return f"({', '.join(map(str, tile.shape))}) {tile.dtype}"


_DTYPE = {name: number for number, name in enumerate(DTYPES)}


Key = tuple[int, int, int, int, int, int, tuple[int, ...], tuple[int, ...]]
"""An access: space, tensor, dtype, partition, offset, allocation, counts and strides."""


class Buffers:
    """Places that tiles of one shape rotate over: `next()` is a new tile in the oldest place."""

    def __init__(self, kernel: "KernelMemory", places: Sequence[Tile]) -> None:
        self._kernel = kernel
        self.places = tuple(places)
        self._turn = 0

    def next(self) -> Tile:
        """The next tile."""
        turn = self._turn
        self._turn += 1
        return self._kernel.again(self.places[turn % len(self.places)], (self, turn))

    def skip(self, turns: int) -> None:
        """As many tiles are given by someone else."""
        self._turn += turns


class KernelMemory:
    """Tensors, tiles and accesses of one kernel. Wrong uses raise `CodegenError`."""

    def __init__(self, name: str, core: Core) -> None:
        if not isinstance(core, Core):
            raise KernelError(
                f"kernel '{name}' is for a core, which a {type(core).__name__} is not; "
                "Core.of(load_target('trn1')) is one"
            )
        self.name, self.core = name, core
        self._given_back: set[int] = set()
        self.by_hand = caller() is not None
        self._held: dict[Space, dict[tuple[int, int], HeldTile]] = {}
        self._tensors: list[HbmTensor] = []
        self._names: set[str] = set()
        self._allocations: list[Allocation] = []
        self._origins: list[tuple[Buffers, int] | None] = []
        self._accesses: dict[Key, int] = {}
        self._keys: list[Key] = []
        self._memory = {
            Space[scope.upper()]: Allocator(scope.upper(), memory)
            for scope, memory in memories(core.target).items()
        }

    # -- tensors and tiles --------------------------------------------------------------------
    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> HbmView:
        """A tensor that is in HBM when the kernel starts."""
        return self._tensor(name, shape, dtype, "input")

    def output(self, name: str, shape: Sequence[int], dtype: str = "float32") -> HbmView:
        """A tensor that the kernel leaves in HBM."""
        return self._tensor(name, shape, dtype, "output")

    def temporary(self, name: str, shape: Sequence[int], dtype: str = "float32") -> HbmView:
        """A tensor in HBM for the kernel's own use (a spill)."""
        return self._tensor(name, shape, dtype, "temporary")

    def _tensor(self, name: str, shape: Sequence[int], dtype: str, role: str) -> HbmView:
        if name in self._names:
            raise KernelError(f"kernel '{self.name}' has two tensors named '{name}'")
        _dtype(dtype)
        line = line_text(caller()) if self.by_hand else ""
        extents = _extents(name, shape, 0)
        self._names.add(name)
        self._tensors.append(HbmTensor(name, tuple(extents), dtype, role, line))
        return HbmView(name, len(self._tensors) - 1, dtype, 0, dense(extents))

    def sbuf(
        self,
        shape: Sequence[int],
        dtype: str = "float32",
        name: str = "tile",
        address: int | None = None,
        partition: int | None = None,
    ) -> Tile:
        """A tile in SBUF: shape (partitions, free...), on the partitions from `partition` on; if
        that is not given from 0 on, and where there is no room from another that compute engines
        reach it from. At byte `address` of each partition if given.
        """
        return self._tile(Space.SBUF, shape, dtype, name, address, partition)

    def psum(
        self,
        shape: Sequence[int],
        dtype: str = "float32",
        name: str = "accumulator",
        bank: int | None = None,
        partition: int | None = None,
    ) -> Tile:
        """A tile in PSUM, at the start of `bank` if given; `partition` as of `sbuf`."""
        address = None if bank is None else whole(bank, "a bank of PSUM") * self.core.bank_bytes
        return self._tile(Space.PSUM, shape, dtype, name, address, partition)

    def buffers(
        self,
        count: int,
        shape: Sequence[int],
        dtype: str = "float32",
        name: str = "buffer",
        space: Space = Space.SBUF,
    ) -> Buffers:
        """`count` places for tiles of one shape (2: double buffering), on the same partitions."""
        places: list[Tile] = []
        for i in range(whole(count, "the count of buffers", 1)):
            partition = places[0].partition if places else None
            places.append(self._tile(space, shape, dtype, f"{name}{i}", None, partition))
        return Buffers(self, places)

    def _tile(
        self,
        space: Space,
        shape: Sequence[int],
        dtype: str,
        name: str,
        address: int | None,
        partition: int | None,
    ) -> Tile:
        _dtype(dtype)
        partitions, *free = _extents(name, shape, 1)
        if partition is not None:
            partition = whole(partition, f"the first partition of tile '{name}'")
        if address is not None:
            address = whole(address, f"the address of tile '{name}'")
        amount = prod(free) * size_of(dtype)
        offset, partition = (
            (address, partition or 0)
            if address is not None
            else self._room(
                space, amount, HeldTile(name, (partitions, *free), dtype, None), partition
            )
        )
        self._allocate(Allocation(name, space, partition, partitions, offset, amount))
        index = len(self._allocations) - 1
        return Tile(name, space, index, dtype, partition, partitions, offset, dense(free))

    def _check_partitions(self, space: Space, name: str, partitions: int, first: int) -> None:
        core = self.core
        there = core.psum_partitions if space == Space.PSUM else core.sbuf_partitions
        if not 0 <= first <= there - partitions:
            raise KernelError(
                f"tile '{name}' of {partitions} partitions from partition {first} on does not fit "
                f"the {there} partitions of {space.name}; the first extent of a tile is its "
                "partitions"
            )

    def _room(
        self, space: Space, amount: int, tile: HeldTile, partition: int | None
    ) -> tuple[int, int]:
        """First byte and partition of a tile of `amount` bytes a partition, which are taken.

        Kernels that nobody wrote by hand have tiles begin at partition 0 and take all: what selects
        their instructions relies on it.
        """
        allocator = self._memory[space]
        if not self.by_hand:
            return allocator.take(amount, tile.name), 0
        self._check_partitions(space, tile.name, tile.shape[0], partition or 0)
        held = self._held.setdefault(space, {})
        tile = replace(tile, line=caller())
        for first in beginnings(tile.shape[0]) if partition is None else (partition,):
            rows = range(first, first + tile.shape[0])
            offset = allocator.place(amount, tile.name, rows)
            if offset is not None:
                held[offset, first] = tile
                return offset, first
        raise KernelError(full(allocator, amount, tile, held))

    def again(self, tile: Tile, origin: tuple[Buffers, int] | None = None) -> Tile:
        """A new tile in the place of an old one, which must not be used any more; `origin`: the
        pool that gives it, and how many it gave before."""
        old = self._allocations[tile.allocation]
        self._allocate(old, origin)
        return Tile(
            tile.name, tile.space, len(self._allocations) - 1, tile.dtype, tile.partition,
            tile.partitions, tile.offset, tile.dims,
        )  # fmt: skip

    def _allocate(self, allocation: Allocation, origin: tuple[Buffers, int] | None = None) -> None:
        self._allocations.append(allocation)
        self._origins.append(origin)

    def free(self, *tiles: Tile) -> None:
        """Give tiles' places back to the allocator; later tiles may take them."""
        for tile in tiles:
            if self.by_hand:
                self._check_own(tile)
                if tile.allocation in self._given_back:
                    raise KernelError(f"tile '{tile.name}' was given back before")
                self._given_back.add(tile.allocation)
            place = self._allocations[tile.allocation]
            self._memory[tile.space].release(place.offset, place.partition)

    # -- accesses -----------------------------------------------------------------------------
    def _access(self, tile: Tile) -> int:
        if self.by_hand:
            self._check_own(tile)
        counts, strides = padded(((tile.partitions, 1), *tile.dims))
        key = (
            int(tile.space), -1, _DTYPE[tile.dtype], tile.partition, tile.offset, tile.allocation,
            counts, strides,
        )  # fmt: skip
        return self._number(key)

    def _check_own(self, tile: object) -> None:
        """Refuse what is no tile, or one of another kernel."""
        if not isinstance(tile, Tile):
            raise KernelError(no_tile(tile))
        places = self._allocations
        if tile.allocation >= len(places) or places[tile.allocation].name != tile.name:
            raise KernelError(f"tile '{tile.name}' is not of kernel '{self.name}', but of another")

    def _hbm_access(self, view: HbmView, dims: tuple[tuple[int, int], ...]) -> int:
        tensors = self._tensors
        if view.tensor >= len(tensors) or tensors[view.tensor].name != view.name:
            raise KernelError(
                f"tensor '{view.name}' is not of kernel '{self.name}', but of another"
            )
        counts, strides = padded(dims)
        offset = view.offset * size_of(view.dtype)
        key = (int(Space.HBM), view.tensor, _DTYPE[view.dtype], 0, offset, -1, counts, strides)
        return self._number(key)

    def _number(self, key: Key) -> int:
        number = self._accesses.get(key)
        if number is None:
            number = self._accesses[key] = len(self._keys)
            self._keys.append(key)
        return number


def _extents(name: str, shape: Sequence[int], least: int) -> list[int]:
    """A shape as whole numbers; a tile has at least its partitions."""
    extents = all_whole(shape, f"the shape of '{name}'")
    if len(extents) < least or not all(n > 0 for n in extents):
        raise KernelError(
            f"'{name}' of shape {tuple(shape)}: extents are positive, the first of a tile its "
            "partitions"
        )
    return extents


def no_tile(given: object) -> str:
    """Why an operand is none."""
    if isinstance(given, Buffers):
        return "an operand is a Buffers; its next() is a tile"
    if isinstance(given, HbmView):
        return f"tensor '{given.name}' is in HBM; load it into a tile, or store a tile into it"
    return f"a tile is expected as an operand, not a {type(given).__name__}"


def _dtype(name: str) -> int:
    if not isinstance(name, str) or name not in _DTYPE:
        raise KernelError(f"unknown dtype '{name}'; one of {', '.join(DTYPES)} is expected")
    return _DTYPE[name]
