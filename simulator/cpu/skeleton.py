"""A program's skeleton: its loops, blocks and accesses as flat lists of expressions.

Made once for each structure, with tile sizes still symbolic; `facts` evaluates it for thousands of
configurations at once. Two structures with equal `signature`s (a permutation of cache blocks, say)
differ in numbers only, so the heavy part of the model handles them in one batch.

Invariants: `loops` are in program order, outer before inner; an unrolled loop around a serial one
counts as serial; register buffers have no addresses; instructions that multiply and add neighbours
are the loops of `instructions.costed`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import ZERO, Expr, const
from tilesmith.search_space.expressions.scalar import Condition, Load, loads
from tilesmith.search_space.ir import program as ir
from tilesmith.simulator.cpu.instructions import (
    WIDENING,
    Arithmetic,
    Costed,
    arithmetic,
    costed,
    selects,
)


@dataclass(frozen=True)
class LoopSite:
    """One loop: `serial` covers parallel ones; `parents` are the loops its extent depends on."""

    variable: str
    kind: str
    extent: Expr
    parents: tuple[int, ...]
    parallel: bool


@dataclass(frozen=True)
class Access:
    """One read or written element.

    Attributes:
        buffer: index into `Skeleton.buffers`.
        address: byte address relative to the buffer; zero for registers.
        coefficients: bytes moved by one step of each loop of the block's path, in order; None where
            the address is not affine in it, or not by the same factor everywhere.
        moves: which of the path's loops move it at all.
        size: bytes of an element, or of neighbours that are read as one.
        widening: operations between what is read and what is computed with.
    """

    buffer: int
    write: bool
    register: bool
    address: Expr
    coefficients: tuple[Expr | None, ...]
    moves: tuple[bool, ...]
    size: int
    widening: float = 0.0


@dataclass(frozen=True)
class _Guard:
    """Expressions that must all be >= 0 (or, negated, not all) for a block to run."""

    conditions: Condition
    negated: bool


@dataclass(frozen=True)
class BlockSite:
    """One block with the loops around it.

    Attributes:
        serial, unrolled, vector: indices of its loops; the path is their concatenation.
        tile_depth: serial loops around the register buffer it updates, -1 if it updates none.
        accumulates: whether it is a reduction update.
        selects: conditions evaluated at run time inside its value.
        stage: the compute stage it comes from.
        pressure: register buffers in scope, by index.
    """

    serial: tuple[int, ...]
    unrolled: tuple[int, ...]
    vector: int | None
    accesses: tuple[Access, ...]
    arithmetic: Arithmetic
    guards: tuple[_Guard, ...]
    tile_depth: int
    accumulates: bool
    selects: int
    stage: str
    pressure: tuple[int, ...]

    @property
    def path(self) -> tuple[int, ...]:
        """All loops around it, outer to inner."""
        return (*self.serial, *self.unrolled, *(() if self.vector is None else (self.vector,)))


@dataclass(frozen=True)
class LoopNode:
    """A serial loop (`loop` -1: the whole program) and what is inside, in order."""

    loop: int
    items: "tuple[LoopNode | int, ...]"

    def blocks(self) -> Iterator[int]:
        """Indices of all blocks inside."""
        for item in self.items:
            if isinstance(item, LoopNode):
                yield from item.blocks()
            else:
                yield item


@dataclass(frozen=True)
class Skeleton:
    """See the module's docstring.

    Attributes:
        buffers: in order of first use; `constant` tells those that hold prepared weights.
    """

    loops: tuple[LoopSite, ...]
    blocks: tuple[BlockSite, ...]
    root: LoopNode
    buffers: tuple[ir.Buffer, ...]
    constant: tuple[bool, ...]

    @cached_property
    def paths(self) -> NDArray[np.int64]:
        """Loops around each access, outer to inner, (accesses, depth); beyond them `len(loops)`."""
        paths = [block.path for block in self.blocks for _ in block.accesses]
        depth = max((len(block.path) for block in self.blocks), default=0)
        padded = [(*path, *[len(self.loops)] * (depth - len(path))) for path in paths]
        return np.array(padded, dtype=np.int64).reshape(len(paths), depth)

    @cached_property
    def signature(self) -> str:
        """Everything the model needs apart from numbers."""
        blocks = [
            (
                b.serial,
                b.unrolled,
                b.vector,
                tuple((a.buffer, a.write, a.register, a.size, a.widening) for a in b.accesses),
                b.arithmetic,
                len(b.guards),
                b.tile_depth,
                b.accumulates,
                b.selects,
                b.pressure,
            )
            for b in self.blocks
        ]
        scopes = [(_in_registers(b), b.scope == "local") for b in self.buffers]
        return repr((blocks, self.root, scopes, self.constant, len(self.loops)))


@dataclass(frozen=True)
class _Context:
    """Where the walk stands."""

    serial: tuple[int, ...] = ()
    unrolled: tuple[int, ...] = ()
    vector: int | None = None
    guards: tuple[_Guard, ...] = ()
    tiles: tuple[tuple[str, int], ...] = ()
    instruction: Costed | None = None


@dataclass
class _Walk:
    program: ir.Program
    loops: list[LoopSite] = field(default_factory=list)
    blocks: list[BlockSite] = field(default_factory=list)
    known: dict[str, ir.Buffer] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    scope: dict[str, int] = field(default_factory=dict)
    """Loop index of each variable in sight."""

    def visit(self, statement: ir.Statement, where: _Context) -> list[LoopNode | int]:
        match statement:
            case ir.Loop():
                return self._loop(statement, where)
            case ir.Sequence(statements):
                return [item for inner in statements for item in self.visit(inner, where)]
            case ir.If(condition, then, otherwise):
                yes = _Guard(condition, False)
                sites = self.visit(then, _guarded(where, yes))
                if otherwise is not None:
                    sites += self.visit(otherwise, _guarded(where, _Guard(condition, True)))
                return sites
            case ir.Allocate(buffer, body):
                self.known[buffer.name] = buffer
                if _in_registers(buffer):
                    tile = (buffer.name, len(where.serial))
                    where = replace(where, tiles=(*where.tiles, tile))
                return self.visit(body, where)
            case ir.Intrinsic():
                found_as = costed(statement)
                return self.visit(found_as.body, replace(where, instruction=found_as))
            case ir.Block():
                self.blocks.append(self._block(statement, where))
                return [len(self.blocks) - 1]

    def _loop(self, loop: ir.Loop, where: _Context) -> list[LoopNode | int]:
        serially = ("serial", "parallel")
        kind = "serial" if loop.kind in serially or _runs(loop.body, serially) else loop.kind
        parents = tuple(sorted(self.scope[v] for v in loop.extent.variables() if v in self.scope))
        self.loops.append(
            LoopSite(loop.variable, kind, loop.extent, parents, loop.kind == "parallel")
        )
        number = len(self.loops) - 1
        outside = self.scope.get(loop.variable)
        self.scope[loop.variable] = number
        serial, unrolled, vector = where.serial, where.unrolled, where.vector
        trivial = loop.extent.constant == 1 and kind != "vector"
        if trivial:
            pass  # simplification removes it
        elif kind == "serial":
            serial = (*serial, number)
        elif kind == "unroll":
            unrolled = (*unrolled, number)
        else:
            vector = number
        inside = replace(where, serial=serial, unrolled=unrolled, vector=vector)
        inner = self.visit(loop.body, inside)
        if outside is None:
            del self.scope[loop.variable]
        else:
            self.scope[loop.variable] = outside
        return [LoopNode(number, tuple(inner))] if kind == "serial" and not trivial else inner

    def _block(self, block: ir.Block, where: _Context) -> BlockSite:
        guards = where.guards
        if block.guard:
            guards = (*guards, _Guard(block.guard, False))
        path = (*where.serial, *where.unrolled)
        path = path if where.vector is None else (*path, where.vector)
        touched = list(dict.fromkeys(block.accesses()))
        wide = where.instruction.neighbours if where.instruction is not None else {}
        accesses = [
            self._access(access, write, path, wide.get(access.buffer, 1))
            for access, write in touched
        ]
        if where.instruction is None:
            pairs = zip(accesses, touched, strict=True)
            accesses = [replace(a, widening=self._widening(block, *access)) for a, access in pairs]
        depth = dict(where.tiles).get(block.buffer, -1)
        if block.reducer is not None and depth < 0:
            accesses.append(self._access(block.write, False, path))
        return BlockSite(
            where.serial,
            where.unrolled,
            where.vector,
            tuple(accesses),
            self._arithmetic(block, where),
            guards,
            depth,
            block.reducer is not None,
            selects(block.value, self._running(where)),
            block.stage,
            tuple(
                self._number(name)
                for name, _ in where.tiles
                if self.known[name].scope == "register"
            ),
        )

    def _widening(self, block: ir.Block, access: Load, write: bool) -> float:
        """What is only moved, from a buffer to one of its type, is not widened."""
        dtype = self._buffer(access.buffer).dtype
        moved = isinstance(block.value, Load) and dtype == self._buffer(block.buffer).dtype
        return 0.0 if write or moved else WIDENING.get(dtype, 0.0)

    def _arithmetic(self, block: ir.Block, where: _Context) -> Arithmetic:
        operations, instruction = arithmetic(block, self._lane(where)), where.instruction
        for read in loads(block.value):
            if numbers := self._buffer(read.buffer).values:
                operations = replace(operations, share=float(np.mean(np.array(numbers) != 0)))
        if instruction is None or instruction.operations is None:
            return operations
        unit = instruction.unit
        if unit == "dot":  # as fast as it is for these elements
            unit = f"dot.{self._buffer(next(loads(block.value)).buffer).dtype}"
        return replace(operations, operations=instruction.operations, copies=False, unit=unit)

    def _running(self, where: _Context) -> frozenset[str]:
        """Variables whose values are known only at run time."""
        return frozenset(self.loops[i].variable for i in where.serial)

    def _lane(self, where: _Context) -> str | None:
        return None if where.vector is None else self.loops[where.vector].variable

    def _access(
        self, access: Load, write: bool, path: tuple[int, ...], neighbours: int = 1
    ) -> Access:
        buffer = self._buffer(access.buffer)
        register = _in_registers(buffer)
        address, size = ZERO, size_of(buffer.dtype)
        stride = const(size)
        for index, extent in zip(reversed(access.indices), reversed(buffer.shape), strict=True):
            address = address + index * stride
            stride = stride * extent
        names = [self.loops[i].variable for i in path]
        variables = address.variables()
        return Access(
            self.numbers[access.buffer],
            write,
            register,
            address,
            tuple(self._step(address, n) for n in names),
            tuple(n in variables for n in names),
            size * neighbours,
        )

    def _step(self, address: Expr, name: str) -> Expr | None:
        """How far one iteration of a loop moves an address; None if that is not always as far."""
        factor = address.coefficient(name)
        if factor is None or not self.scope.keys().isdisjoint(factor.variables()):
            return None
        return factor

    def _buffer(self, name: str) -> ir.Buffer:
        if name not in self.known:
            parameters = (*self.program.parameters, *self.program.literals)
            self.known[name] = next(b for b in parameters if b.name == name)
        self._number(name)
        return self.known[name]

    def _number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))


def _guarded(where: _Context, guard: _Guard) -> _Context:
    return replace(where, guards=(*where.guards, guard))


def _in_registers(buffer: ir.Buffer) -> bool:
    """Or in the code itself, as literals are."""
    return buffer.scope in ("register", "amx") or buffer.values is not None


def _runs(statement: ir.Statement, kinds: tuple[str, ...]) -> bool:
    """Whether a loop of one of these kinds is inside, and runs more than once."""
    match statement:
        case ir.Loop(kind=kind, body=body):
            return (kind in kinds and statement.extent.constant != 1) or _runs(body, kinds)
        case ir.Intrinsic():
            return _runs(costed(statement).body, kinds)
        case ir.Sequence(statements):
            return any(_runs(inner, kinds) for inner in statements)
        case ir.If(then=then, otherwise=otherwise):
            return _runs(then, kinds) or (otherwise is not None and _runs(otherwise, kinds))
        case ir.Allocate(body=body):
            return _runs(body, kinds)
        case ir.Block():
            return False


def skeleton_of(program: ir.Program, constants: frozenset[str] = frozenset()) -> Skeleton:
    """Analyse the body of a (symbolic or bound) program.

    Args:
        constants: names of parameters that hold weights, besides the prepared ones.
    """
    prepared = {b.name for b in program.parameters if b.role == "prepared"}
    weights = frozenset(prepared | constants)
    state = _Walk(program)
    items = state.visit(program.body, _Context())
    names = sorted(state.numbers, key=lambda name: state.numbers[name])
    return Skeleton(
        tuple(state.loops),
        tuple(state.blocks),
        LoopNode(-1, tuple(items)),
        tuple(state.known[name] for name in names),
        tuple(name in weights for name in names),
    )
