"""Weights fetched ahead: while one panel is multiplied, the next one comes into the second cache.

    for panel j: for tile i: for k: c[..] += a[i, k] * b.packed[j, k, :]

The first tile meets panel j in memory, the others have it in the second cache. A processor that
reads ahead along what is read now waits for memory in the first tile, and leaves it idle in the
others. So all tiles together ask for panel j + 1, each for its share: at the beginning of a tile
where that is a few lines, in each step of the innermost loop where it is many.

Only what is packed before the run is fetched, for sums in registers, and only where tiles repeat
what they read. No value depends on it; an address behind the end is one like any other here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from math import prod

from tilesmith.codegen.llvm.expressions.indexing import IndexEmitter, strides
from tilesmith.codegen.llvm.expressions.loads import BufferMemory
from tilesmith.codegen.llvm.expressions.registers import RegisterFile
from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import POINTER, VOID, Function, integer
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import ZERO, Expr, const, var
from tilesmith.search_space.expressions.scalar import Load, loads
from tilesmith.search_space.ir import program as ir

FEW = 32
"""Lines that are asked for at a time: what processors have under way between memory and cache."""
MOST = 4
"""The same in a step of the innermost loop: more would keep its own loads waiting."""

_PREFETCH = "llvm.prefetch.p0"
_BYTE, _INT32 = integer(8), integer(32)
_HINTS = (_INT32(0), _INT32(2), _INT32(1))
"""To be read, into the second cache, data."""


Found = tuple[ir.Block, tuple[ir.Loop, ...]]


@dataclass(frozen=True)
class PrefetchShare:
    """The lines that are asked for at a time.

    Attributes:
        start: in bytes of the buffer, of the first.
        count: how many, one behind the other.
    """

    start: Expr
    count: int


class AheadEmitter:
    """Emits what steps ask for; shares builder, indices, registers and memory with the statement
    emitter, which says which loops it is in."""

    def __init__(
        self,
        builder: Builder,
        index: IndexEmitter,
        registers: RegisterFile,
        memory: BufferMemory,
        line: int,
    ) -> None:
        self._builder, self._index, self._line = builder, index, line
        self._registers, self._memory = registers, memory
        self._around: list[ir.Loop] = []

    @contextmanager
    def inside(self, *nest: ir.Loop) -> Iterator[None]:
        """The bodies of real loops, outermost first."""
        self._around.extend(nest)
        yield
        del self._around[-len(nest) :]

    def emit(self, loop: ir.Loop) -> None:
        """Emit the prefetches that belong at the beginning of a serial loop's body."""
        opened = (s.buffer for s in ir.walk(loop.body) if isinstance(s, ir.Allocate))
        kept = {buffer.name for buffer in opened if buffer.scope == "register"}
        fetched: set[str] = set()
        for block, nest in _innermost(loop.body, ()):
            if block.reducer is None or block.buffer not in kept | self._registers.names:
                continue
            for access in loads(block.value):
                buffer = self._memory.buffers.get(access.buffer)
                if buffer is None or buffer.scope != "packed" or buffer.name in fetched:
                    continue
                fetched.add(buffer.name)
                around = [*self._around, *nest]
                size = size_of(buffer.dtype)
                share = share_of(_offset(access, buffer), around, loop, size, self._line)
                if share is not None:
                    self._fetch(buffer.name, share)

    def _fetch(self, name: str, share: PrefetchShare) -> None:
        module = self._builder.module
        fetch = module.functions.get(_PREFETCH) or Function(
            module, _PREFETCH, VOID, (POINTER, *(hint.type for hint in _HINTS))
        )
        for number in range(share.count):
            place = self._index.value(share.start + number * self._line)
            address = self._builder.gep(self._memory.pointers[name], place, _BYTE)
            self._builder.call(fetch, (address, *_HINTS))


def _offset(access: Load, buffer: ir.Buffer) -> Expr:
    """Elements from the buffer's beginning."""
    offset = ZERO
    for index, step in zip(access.indices, strides(buffer), strict=True):
        offset = offset + index * step
    return offset


def _innermost(statement: ir.Statement, around: tuple[ir.Loop, ...]) -> Iterator[Found]:
    """Blocks, each with the real loops that it is in, outermost first."""
    match statement:
        case ir.Block():
            yield statement, around
        case ir.Loop():
            real = statement.kind in ("serial", "parallel")
            yield from _innermost(statement.body, (*around, statement) if real else around)
        case ir.Sequence(statements):
            for inner in statements:
                yield from _innermost(inner, around)
        case ir.If(_, then, otherwise):
            yield from _innermost(then, around)
            if otherwise is not None:
                yield from _innermost(otherwise, around)
        case ir.Allocate() | ir.Intrinsic():
            yield from _innermost(statement.body, around)


def share_of(
    offset: Expr, around: list[ir.Loop], here: ir.Loop, size: int, line: int
) -> PrefetchShare | None:
    """What is asked for in `here`; None where it is asked for elsewhere, nothing is read again, or
    extents vary.

    Args:
        offset: of what is read, in elements of `size` bytes.
        around: real loops around it, outermost first; `here` is one of them.
    """
    outwards = around[::-1]
    moves = [_number(offset.coefficient(loop.variable)) for loop in outwards]
    within = len(list(takewhile(lambda move: move != 0, moves)))
    over = within + len(list(takewhile(lambda move: move == 0, moves[within:])))
    known = [move for move in moves[: over + 1] if move is not None]
    extents = [e for e in (_number(loop.extent) for loop in outwards[:over]) if e is not None]
    if not 0 < within < over < len(outwards) or len(known) <= over or len(extents) < over:
        return None
    lines = -(-min(map(abs, known[:within])) * prod(extents[:within]) * size // line)
    counts = [-(-lines // prod(extents[place:])) for place in range(over)]
    few = [p for p in range(over) if counts[p] <= FEW and outwards[p].kind == "serial"]
    place = max(few, default=0)
    if outwards[place] is not here:
        return None
    count = counts[place] if place else min(MOST, counts[0])
    number = ZERO
    for outer in range(place, over):
        number = number + var(outwards[outer].variable) * prod(extents[place:outer])
    inner = (s for s in ir.walk(here.body) if isinstance(s, ir.Loop))
    first = {loop.variable: const(0) for loop in (*outwards[:within], *inner)}
    following = offset.substitute(first) + known[over]
    return PrefetchShare(following * size + number * (count * line), count)


def _number(value: Expr | None) -> int | None:
    return None if value is None else value.constant
