"""Operations over blocks become a stream: each block is placed, spilled or reloaded, each
instruction written by the builder of hand-written kernels.

Invariant: rows of the stream keep the order of the kernel's source, and its lines.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Space
from tilesmith.families.trainium.codegen.isa.memory import HbmView, Tile, dense
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.nki.lowering import (
    BlockOperation,
    HbmPart,
    Part,
    TileBlock,
    covers,
)
from tilesmith.families.trainium.nki.notation.errors import NkiError
from tilesmith.families.trainium.nki.notation.tensors import NkiArray
from tilesmith.families.trainium.nki.placing import PlacedSegment, PlacingMemory
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.support.errors import CodegenError

ELEMENTWISE = ("activation", "tensor_tensor", "tensor_scalar", "reciprocal", "copy")

NEVER = 1 << 62
"""When what is not used again is used next."""

UNIT = 64
"""Bytes that places in SBUF are multiples of."""


class _Writer(Kernel):
    """The builder, with the lines of a trace."""

    line = ""

    def _append(self, *row: Any, **options: Any) -> None:
        super()._append(*row, **options)
        self.lines.append(self.line)

    def __init__(self, name: str, core: Core) -> None:
        super().__init__(name, core)
        self.lines: list[str] = []


class FullMemoryError(NkiError):
    """A tile has no room; `array` is whose tiles are waited for longest."""

    def __init__(self, message: str, array: NkiArray | None) -> None:
        super().__init__(message)
        self.array = array


class _Spilled(NamedTuple):
    """Where in HBM a block is, and which parts of it hold something; (): all."""

    view: HbmView
    parts: tuple[Part, ...]


class Build:
    """One kernel being built."""

    def __init__(self, name: str, core: Core, ops: list[BlockOperation]) -> None:
        self.kernel, self.core, self.ops = _Writer(name, core), core, ops
        self.memories = {
            "sbuf": PlacingMemory(core.sbuf_bytes, UNIT),
            "psum": PlacingMemory(core.psum_bytes, UNIT, core.bank_bytes),
        }
        self.views: dict[int, HbmView] = {}
        self.tiles: dict[int, Tile] = {}
        self.segments: dict[int, PlacedSegment] = {}
        self.spilled: dict[int, _Spilled] = {}
        self.written: dict[int, dict[Part, None]] = defaultdict(dict)
        self.clean: dict[int, BlockOperation | None] = {}
        self.uses: dict[int, deque[int]] = defaultdict(deque)
        self.writers: dict[int, int] = defaultdict(int)
        self.by_dma: set[int] = set()
        self.overlapping: set[int] = set()
        for at, op in enumerate(ops):
            for _, part in op.parts():
                if not self.uses[id(part.block)] or self.uses[id(part.block)][-1] != at:
                    self.uses[id(part.block)].append(at)
                if op.overlaps:
                    self.overlapping.add(id(part.block))
                    if op.method in ("load", "store"):
                        self.by_dma.add(id(part.block))
            for part in op.written():
                self.writers[id(part.block)] += 1

    def declare(self, array: NkiArray, role: str) -> None:
        """A tensor in HBM."""
        self.views[id(array)] = self.kernel._tensor(array.name, array.shape, array.dtype, role)

    def stream(self) -> InstructionStream:
        """All of it, as a draft without semaphores."""
        for at, op in enumerate(self.ops):
            self._prepare(op, at)
            self.kernel.line = op.line
            try:
                self._write(op)
            except CodegenError as error:
                raise CodegenError(f"{op.line}: {error}") from None
            self._done(op, at)
        return replace(self.kernel.draft(), lines=tuple(self.kernel.lines))

    def _write(self, op: BlockOperation) -> None:
        operands = {name: self._operand(value) for name, value in op.operands.items()}
        getattr(self.kernel, op.method)(**operands)

    def _operand(self, value: Any) -> Any:
        if isinstance(value, Part):
            base = self.tiles[id(value.block)]
            offset = base.offset + value.offset * size_of(base.dtype)
            return replace(
                base, partition=value.first, partitions=value.partitions, offset=offset,
                dims=value.dims,
            )  # fmt: skip
        if isinstance(value, HbmPart):
            view = self.views[id(value.array)]
            return replace(view, offset=value.offset, dims=value.dims or ((1, 1),))
        return value

    def _next(self, key: int, now: int) -> int:
        """When a block is worked on after `now`."""
        uses = self.uses[key]
        while uses and uses[0] <= now:
            uses.popleft()
        return uses[0] if uses else NEVER

    # -- places ---------------------------------------------------------------------------------
    def _prepare(self, op: BlockOperation, now: int) -> None:
        """Have every block of an operation in its memory."""
        blocks = {id(part.block): part.block for _, part in op.parts()}
        for key in blocks:
            if key in self.segments:
                self.memories[blocks[key].array.space].use(
                    self.segments[key], now, self._next(key, now)
                )
        for block in [block for key, block in blocks.items() if key not in self.segments]:
            if not self._inherits(block, now, op):
                self._place(block, now, op)

    def _inherits(self, block: TileBlock, now: int, op: BlockOperation) -> bool:
        """Give a result the place of an operand of its shape that ends with this operation."""
        out = op.operands.get("out")
        if op.method not in ELEMENTWISE or not isinstance(out, Part) or out.block is not block:
            return False
        if id(block) in self.spilled or self.clean.get(id(block)) is not None:
            return False
        for name in ("a", "data", "b"):
            part = op.operands.get(name)
            if (
                isinstance(part, Part) and self._next(id(part.block), now) == NEVER
                and part[1:] == out[1:] and part.block.bytes == block.bytes
                and part.block.array.space == block.array.space
                and part.block.partitions == block.partitions
                and part.block.array.dtype == block.array.dtype and id(part.block) in self.segments
                and id(part.block) not in self.by_dma
            ):  # fmt: skip
                segment = self.segments.pop(id(part.block))
                segment.block = block
                self.memories[block.array.space].use(segment, now, self._next(id(block), now))
                self.segments[id(block)] = segment
                self.tiles[id(block)] = self.tiles[id(part.block)]
                return True
        return False

    def _place(self, block: TileBlock, now: int, op: BlockOperation) -> None:
        space = block.array.space
        memory = self.memories[space]
        places = 2 if id(block) in self.overlapping else 1
        room = memory.place(block, now, self._next(id(block), now), places, space == "sbuf")
        if room is None:
            longest = max(memory.live, key=lambda one: one.next, default=None)
            held = longest.block.array if longest is not None and longest.block else None
            raise FullMemoryError(self._full(block, now, op), held)
        segment, leaving = room
        for other in leaving:
            self._leave(other)
        self.segments[id(block)] = segment
        self._tile(block, segment)
        self.kernel.line = op.line
        if id(block) in self.spilled:
            spilled = self.spilled[id(block)]
            for rows, columns, tile in self._pieces(block, spilled.parts):
                self.kernel.load(tile, spilled.view[rows, columns])
        elif self.clean.get(id(block)) is not None:
            again = self.clean[id(block)]
            assert again is not None
            self.kernel.line = again.line
            self._write(again)

    def _tile(self, block: TileBlock, segment: PlacedSegment) -> None:
        kind = Space[block.array.space.upper()]
        shape = (block.partitions, *(block.array.free or (1,)))
        tile = self.kernel._tile(kind, shape, block.array.dtype, block.name, segment.first, 0)
        self.tiles[id(block)] = replace(tile, dims=dense((prod(block.array.free),)))

    def _leave(self, block: TileBlock) -> None:
        """Give up the place of a block that is worked on later."""
        key = id(block)
        del self.segments[key]
        if key in self.spilled or self.clean.get(key) is not None:
            return
        name = f"spill of {block.name} {len(self.views)}"
        shape = (block.partitions, prod(block.array.free))
        view = self.views[-len(self.views) - 1] = self.kernel.temporary(
            name, shape, block.array.dtype
        )
        self.spilled[key] = _Spilled(view, self._held(block))
        for rows, columns, tile in self._pieces(block, self.spilled[key].parts):
            self.kernel.store(view[rows, columns], tile)

    def _held(self, block: TileBlock) -> tuple[Part, ...]:
        """What of a block is written so far; (): all of it."""
        written = tuple(self.written[id(block)])
        return () if covers(block, written) else written

    def _pieces(
        self, block: TileBlock, parts: tuple[Part, ...]
    ) -> Iterator[tuple[slice, slice, Tile]]:
        """The places of parts in a block's spill, and in its tile."""
        whole = self._flat(block)
        if not parts:
            yield slice(0, block.partitions), slice(0, prod(block.array.free)), whole
        for part in parts:
            first, last = part.span
            rows = slice(part.first, part.first + part.partitions)
            yield rows, slice(first, last + 1), whole[rows, first : last + 1]

    def _flat(self, block: TileBlock) -> Tile:
        return self.tiles[id(block)]

    def _done(self, op: BlockOperation, now: int) -> None:
        """Note what is in HBM, too, and give back what is not worked on any more."""
        for part in op.written():
            key = id(part.block)
            self.spilled.pop(key, None)
            self.written[key][part] = None
            loaded = op.method == "load" and part.is_whole and self.writers[key] == 1
            source = op.operands.get("source")
            there = isinstance(source, HbmPart) and source.array.role == "input"
            self.clean[key] = op if loaded and there else None
        for _, part in op.parts():
            key = id(part.block)
            if self._next(key, now) == NEVER and key in self.segments:
                segment = self.segments.pop(key)
                self.memories[part.block.array.space].release(segment)

    def _full(self, block: TileBlock, now: int, op: BlockOperation) -> str:
        """Why a block has no room."""
        space = block.array.space
        memory = self.memories[space]
        live: dict[str, list[int]] = {}
        for one in memory.live:
            if one.block is not None:
                entry = live.setdefault(f"{one.block.array.name} ({one.block.array.line})", [0, 0])
                entry[0], entry[1] = entry[0] + 1, entry[1] + one.size
        held = sorted(live.items(), key=lambda item: -item[1][1])[:4]
        beside = "; ".join(f"{n} of {name}, {size} bytes" for name, (n, size) in held)
        return (
            f"{op.line}: {space.upper()} has no room for tile {block.name} {block.array.shape} of "
            f"{block.array.dtype}, {memory.rounded(block.bytes)} bytes a partition of "
            f"{memory.size}; in use are {beside or 'no others'}"
        )
