"""From a trace to what is placed and built: blocks instead of views, and what compilers leave out.

    t = nisa.activation(...); v[i] = t        written to v[i] at once, where nothing else reads t
    psum[...] += nl.matmul(x, y)              the product sums into the place
    nl.zeros(buffer=nl.psum)                  the first product of a place begins its sum

Invariant: every pass leaves the values of the kernel's outputs as they were.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

from tilesmith.families.trainium.nki.notation.errors import NkiError
from tilesmith.families.trainium.nki.notation.tensors import (
    BLOCK,
    HBM,
    PARTITION,
    NkiArray,
    TensorView,
)
from tilesmith.families.trainium.nki.notation.tracing import OUT, Trace, TracedStep

AXES = 4
"""Axes beside partitions of an access (the instruction set)."""


@dataclass(eq=False)
class TileBlock:
    """A tile that takes a place of its own: one block of an array on chip."""

    array: NkiArray
    number: int
    steps: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        many = prod(self.array.shape[: self.array.partition]) > 1
        return f"{self.array.name}[{self.number}]" if many else self.array.name

    @property
    def partitions(self) -> int:
        return self.array.shape[self.array.partition]

    @property
    def bytes(self) -> int:
        """Of a partition."""
        return prod(self.array.free) * self.array.dtype.itemsize


class Part(NamedTuple):
    """A view of a block: partitions from the first on, and free axes (count, step) from an
    element on."""

    block: TileBlock
    first: int
    partitions: int
    offset: int
    dims: tuple[tuple[int, int], ...]

    @property
    def span(self) -> tuple[int, int]:
        """First and last element of it in a partition."""
        last = self.offset + sum((count - 1) * max(step, 0) for count, step in self.dims)
        return self.offset, last

    @property
    def elements(self) -> int:
        return self.partitions * prod(count for count, step in self.dims if step or count == 1)

    def meets(self, other: "Part") -> bool:
        """Whether both may have elements in common."""
        (a, b), (c, d) = self.span, other.span
        rows = self.first < other.first + other.partitions
        return rows and other.first < self.first + self.partitions and a <= d and c <= b

    def within(self, other: "Part") -> bool:
        """Whether it lies inside of another part that has no gaps."""
        (a, b), (c, d) = self.span, other.span
        rows = other.first <= self.first and (
            self.first + self.partitions <= other.first + other.partitions
        )
        solid = other.elements == other.partitions * (d - c + 1)
        return self == other or (rows and solid and c <= a and b <= d)

    @property
    def is_whole(self) -> bool:
        return self.elements == self.block.partitions * prod(self.block.array.free)


class HbmPart(NamedTuple):
    """A view of a tensor in HBM."""

    array: NkiArray
    offset: int
    dims: tuple[tuple[int, int], ...]


@dataclass(eq=False)
class BlockOperation:
    """A step whose tiles are parts of blocks."""

    method: str
    operands: dict[str, Any]
    line: str
    implicit: bool
    overlaps: bool = False

    def parts(self) -> Iterator[tuple[str, Part]]:
        return ((name, p) for name, p in self.operands.items() if isinstance(p, Part))

    def written(self) -> Iterator[Part]:
        return (p for name, p in self.parts() if name in OUT)

    def read(self) -> Iterator[Part]:
        """Parts whose elements it takes: a product that sums takes its place, too."""
        keeps = self.method == "copy_predicated" or bool(self.operands.get("accumulate"))
        return (p for name, p in self.parts() if name not in OUT or keeps)


Shares = Callable[[list[BlockOperation]], list[BlockOperation]]


def operations(trace: Trace, shares: Shares | None = None) -> list[BlockOperation]:
    """The trace's instructions over blocks, in the order they run in; `shares` leaves out what is
    there already."""
    blocks: dict[tuple[int, int], TileBlock] = {}
    parts: dict[Any, Any] = {}

    def part(view: TensorView, step: TracedStep) -> Any:
        key = (id(view.array), view.first, view.axes)
        if key not in parts:
            parts[key] = _part(view, step.line, blocks)
        return parts[key]

    result = []
    for step in trace.steps:
        operands = {
            n: part(v, step) if isinstance(v, TensorView) else v for n, v in step.operands.items()
        }
        result.append(
            BlockOperation(step.method, operands, step.line, step.implicit, step.overlaps)
        )
    result = _written_at_once(result)
    if shares is not None:
        result = shares(result)
    _begin_sums(result)
    return _filled(result)


def _part(view: TensorView, line: str, blocks: dict[tuple[int, int], TileBlock]) -> Any:
    """The part of a block or of a tensor in HBM that a view is.

    Raises:
        NkiError: it is several blocks, or its partitions are not in their order.
    """
    if view.array.space == HBM:
        return HbmPart(view.array, view.first[2], tuple((a.count, a.step) for a in view.axes))
    key = (id(view.array), view.first[0])
    block = blocks.setdefault(key, TileBlock(view.array, view.first[0]))
    axes = [axis for axis in view.axes if axis.count > 1]
    if any(axis.kind == BLOCK for axis in axes):
        raise NkiError(f"{line}: {view!r} is several blocks; an instruction takes one")
    rows = [axis for axis in axes if axis.kind == PARTITION]
    if rows and (axes[0].kind != PARTITION or len(rows) > 1 or rows[0].step not in (0, 1)):
        raise NkiError(f"{line}: {view!r}: partitions are its first axis, one after the other")
    dims = tuple((axis.count, axis.step) for axis in axes if axis.kind != PARTITION)
    count = rows[0].count if rows else 1
    return Part(block, view.first[1], count, view.first[2], dims or ((1, 1),))


def _split(op: BlockOperation) -> Iterator[BlockOperation]:
    """An operation over more axes than an access has as one for each step of the outermost."""
    parts = dict(op.parts())
    dims = {len(part.dims) for part in parts.values()}
    outer = {part.dims[0][0] for part in parts.values()}
    if max(dims, default=0) <= AXES or len(outer) > 1 or len(dims) > 1:
        yield op
        return
    hbm = {n: v for n, v in op.operands.items() if isinstance(v, HbmPart)}
    if any(len(v.dims) < 2 or v.dims[1][0] not in outer for v in hbm.values()):
        yield op
        return
    for at in range(*outer):
        operands = dict(op.operands)
        for name, part in parts.items():
            offset = part.offset + at * part.dims[0][1]
            operands[name] = part._replace(offset=offset, dims=part.dims[1:])
        for name, view in hbm.items():
            offset = view.offset + at * view.dims[1][1]
            operands[name] = view._replace(offset=offset, dims=(view.dims[0], *view.dims[2:]))
        yield from _split(BlockOperation(op.method, operands, op.line, op.implicit, op.overlaps))


def _uses(ops: list[BlockOperation]) -> dict[int, list[int]]:
    """Operations that work on each block, by its identity."""
    uses: dict[int, list[int]] = defaultdict(list)
    for at, op in enumerate(ops):
        for block in {id(p.block) for _, p in op.parts()}:
            uses[block].append(at)
    return uses


def _written_at_once(ops: list[BlockOperation]) -> list[BlockOperation]:
    """Without copies of what one instruction wrote and nothing else reads, and with products that
    sum into where their results were added."""
    uses, gone = _uses(ops), set()
    for at, op in enumerate(ops):
        source = op.operands.get("b" if op.method == "tensor_tensor" else "a")
        if not op.implicit or not isinstance(source, Part) or op.operands.get("op", "add") != "add":
            continue
        users = [u for u in uses[id(source.block)] if u not in gone]
        if len(users) != 2 or users[1] != at or source.block.array.fill is not None:
            continue
        writer, out = ops[users[0]], op.operands["out"]
        wrote = [name for name, p in writer.parts() if name in OUT and p.block is source.block]
        place = _as(writer.operands[wrote[0]], source, out) if len(wrote) == 1 else None
        if place is None or not _fits(writer, source, op):
            continue
        between = uses[id(out.block)]
        if any(users[0] < u < at for u in between if u not in gone):
            continue
        if op.method == "tensor_tensor":
            writer.operands["accumulate"] = "auto"
        writer.operands[wrote[0]] = place
        uses[id(out.block)] = sorted({*between, users[0]} - {at})
        gone.add(at)
    return [op for at, op in enumerate(ops) if at not in gone]


def _fits(writer: BlockOperation, source: Part, op: BlockOperation) -> bool:
    """Whether what an instruction wrote can stand at once where it was copied, or added, to."""
    out = op.operands["out"]
    spaces = (source.block.array.space, out.block.array.space)
    if op.method == "tensor_tensor":
        sums = writer.method == "matmul" and spaces == ("psum", "psum")
        return sums and writer.operands["accumulate"] is False and op.operands["a"] == out
    if writer.method in ("matmul", "transpose") and spaces[1] != "psum":
        return False
    if writer.method == "load" and spaces[1] != "sbuf":
        return False
    return writer.method != "copy" or source.block.array.dtype == out.block.array.dtype


def _as(wrote: Part, source: Part, out: Part) -> Part | None:
    """Where in `out` stands what was written of `source`, which a mask may have cut off."""
    if wrote == source:
        return out
    begins = (wrote.first, wrote.offset) == (source.first, source.offset)
    alike = len(wrote.dims) == len(source.dims) == len(out.dims)
    if not begins or not alike or wrote.partitions > out.partitions:
        return None
    pairs = zip(wrote.dims, source.dims, out.dims, strict=True)
    if any(w[1] != s[1] or s[0] != o[0] for w, s, o in pairs):
        return None
    dims = tuple((w[0], o[1]) for w, o in zip(wrote.dims, out.dims, strict=True))
    return Part(out.block, out.first, wrote.partitions, out.offset, dims)


def _begin_sums(ops: list[BlockOperation]) -> None:
    """Products with accumulate "auto" sum into what their place holds; the first of a place that
    holds nothing, or zeros that nobody wrote, begins."""
    written: dict[int, list[Part]] = defaultdict(list)
    known: dict[int, set[Part]] = defaultdict(set)
    for op in ops:
        if op.method == "matmul" and op.operands["accumulate"] == "auto":
            out = op.operands["out"]
            mine = known[id(out.block)]
            op.operands["accumulate"] = out in mine or any(
                out.meets(p) for p in written[id(out.block)]
            )
        for part in op.written():
            if part not in known[id(part.block)]:
                known[id(part.block)].add(part)
                written[id(part.block)].append(part)


def _filled(ops: list[BlockOperation]) -> list[BlockOperation]:
    """With what fills tiles of `nl.zeros`, and those that a mask left open, before something reads
    elements that nothing wrote."""
    uses, result = _uses(ops), []
    filled: set[int] = set()
    for op in ops:
        for _, part in op.parts():
            block = part.block
            if not (block.array.masked or block.array.fill is not None) or id(block) in filled:
                continue
            filled.add(id(block))
            if not _covered(block, [ops[u] for u in uses[id(block)]]):
                result.append(_fill(block, op.line))
        result.append(op)
    return result


def _covered(block: TileBlock, ops: list[BlockOperation]) -> bool:
    """Whether all of a block is written before any of it is read."""
    written: set[Part] = set()
    for op in ops:
        read = {p for p in op.read() if p.block is block}
        if any(not any(p.within(w) for w in written) for p in read):
            return covers(block, written)
        written |= {p for p in op.written() if p.block is block}
    return True


def covers(block: TileBlock, parts: Collection[Part]) -> bool:
    """Whether parts are surely all of a block: one is whole, or they lie apart and sum up to it."""
    if any(p.is_whole for p in parts):
        return True
    if sum(p.elements for p in parts) != block.partitions * prod(block.array.free):
        return False
    return not any(a is not b and a.meets(b) for a in parts for b in parts)


def evacuated(ops: list[BlockOperation], array: NkiArray) -> list[BlockOperation]:
    """With tiles of an array in PSUM copied to SBUF when they are written, and read there."""
    last: dict[int, int] = {}
    written: dict[int, dict[Part, None]] = defaultdict(dict)
    for at, op in enumerate(ops):
        for part in op.written():
            if part.block.array is array:
                last[id(part.block)] = at
                written[id(part.block)][part] = None
    copies: dict[int, TileBlock] = {}
    result = []
    for at, op in enumerate(ops):
        operands = {
            name: value._replace(block=copies[id(value.block)])
            if isinstance(value, Part) and name not in OUT and id(value.block) in copies
            else value
            for name, value in op.operands.items()
        }
        result.append(BlockOperation(op.method, operands, op.line, op.implicit, op.overlaps))
        for part in [p for p in op.written() if last.get(id(p.block)) == at]:
            block = part.block
            copies[id(block)] = TileBlock(replace(array, space="sbuf"), block.number)
            whole = Part(block, 0, block.partitions, 0, ((prod(array.free), 1),))
            parts = written[id(block)]
            for piece in [whole] if covers(block, parts) else parts:
                there = piece._replace(block=copies[id(block)])
                operands = {"out": there, "a": piece, "engine": "scalar"}
                result.append(BlockOperation("copy", operands, op.line, True, op.overlaps))
    return result


def _fill(block: TileBlock, line: str) -> BlockOperation:
    count = prod(block.array.free)
    whole = Part(block, 0, block.partitions, 0, ((count, 1),))
    return BlockOperation("memset", {"out": whole, "value": block.array.fill or 0.0}, line, True)
