"""The verifier: does a program keep the rules of the loop IR and the limits of its target?

It runs on what lowering made, before any code is generated, and on what a pass or a person changed.
Every message names the block, buffer or loop and the rule or limit it breaks. See `program.py` for
the rules. Index ranges need numbers: they are checked where no symbol is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from tilesmith.search_space.dtypes import size_of
from tilesmith.search_space.errors import VerificationError
from tilesmith.search_space.ir.bounds import Surroundings
from tilesmith.search_space.ir.expression import ONE, Expr
from tilesmith.search_space.ir.intrinsics import (
    FAMILIES,
    INTRINSICS,
    IntrinsicSpec,
    Match,
    Memory,
    machine_limits,
    match,
    memories,
)
from tilesmith.search_space.ir.program import (
    Allocate,
    Block,
    Buffer,
    If,
    Intrinsic,
    Loop,
    Program,
    Sequence,
    Statement,
    walk,
)
from tilesmith.search_space.ir.scalar import Call, Condition, Load, Scalar, Select
from tilesmith.search_space.target import Target

CPU_SCOPES = ("global", "packed", "local", "register")
ACCELERATOR_SCOPES = ("global", "packed", "hbm", "sbuf", "psum")
"""Anything global or packed is in HBM there."""
ENGINES = ("dma", "tensor", "vector", "scalar", "gpsimd")


def verify(program: Program, target: Target | None = None) -> None:
    """Check a program, symbolic or bound; with a target, its scopes, instructions and capacities.

    Raises:
        VerificationError: naming the block, buffer or loop, and the rule or limit that is broken.
    """
    checker = _Checker.of(program, target)
    for buffer in (*program.parameters, *program.literals):
        checker.declare(buffer)
    for statement in (program.prologue, program.body):
        if statement is not None:
            checker.check(statement, Surroundings())


def _loop_names(program: Program) -> frozenset[str]:
    statements = [s for s in (program.prologue, program.body) if s is not None]
    return frozenset(s.variable for whole in statements for s in walk(whole) if isinstance(s, Loop))


@dataclass
class _Checker:
    """The state of one walk.

    Attributes:
        loops: names of all loop variables; other free names are symbols.
        kinds: kind of every loop around, by variable.
        scopes: memory scopes the target has; empty without a target.
        limits: of the target's instructions, by name; empty on a CPU.
        used: bytes in use in each partition of each on-chip memory.
        instruction: name of the intrinsic around.
        tensorized: whether the program consists of an accelerator's instructions.
        proved: index ranges decided before.
    """

    target: Target | None
    loops: frozenset[str]
    scopes: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    memories: Mapping[str, Memory] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    instruction: str = ""
    tensorized: bool = False
    proved: dict[object, bool] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, target: Target | None) -> _Checker:
        loops = _loop_names(program)
        if target is None:
            return cls(None, loops)
        if target.family not in FAMILIES:
            return cls(target, loops, CPU_SCOPES)
        return cls(
            target, loops, ACCELERATOR_SCOPES, machine_limits(target), memories(target),
            tensorized=any(isinstance(s, Intrinsic) for s in walk(program.body)),
        )  # fmt: skip

    # -- statements ---------------------------------------------------------------------------
    def check(self, statement: Statement, around: Surroundings) -> None:
        match statement:
            case Loop():
                self._loop(statement, around)
            case Sequence(statements):
                for inner in statements:
                    self.check(inner, around)
            case If(condition, then, otherwise):
                self._variables(condition, around, "the condition of an if")
                self.check(then, around.knowing(condition))
                if otherwise is not None:
                    self.check(otherwise, around.otherwise(condition))
            case Allocate(buffer, body):
                self._allocate(buffer, body, around)
            case Intrinsic():
                self._intrinsic(statement, around)
            case Block():
                self._block(statement, around)

    def _loop(self, loop: Loop, around: Surroundings) -> None:
        if loop.variable in around.extents:
            raise VerificationError(f"loop '{loop.variable}' stands inside a loop of that name")
        self._variables((loop.extent,), around, f"the extent of loop '{loop.variable}'")
        if loop.stages < 1:
            raise VerificationError(f"loop '{loop.variable}' is pipelined {loop.stages} deep")
        if loop.kind == "vector" and any(isinstance(s, Loop) for s in walk(loop.body)):
            raise VerificationError(f"vector loop '{loop.variable}' holds another loop")
        self.kinds[loop.variable] = loop.kind
        self.check(loop.body, around.inside(loop.variable, loop.extent))

    def _allocate(self, buffer: Buffer, body: Statement, around: Surroundings) -> None:
        self._variables(buffer.shape, around, f"the shape of buffer '{buffer.name}'")
        self.declare(buffer)
        before = dict(self.used)
        self._capacity(buffer)
        self.check(body, around)
        self.used = before
        del self.buffers[buffer.name]

    def declare(self, buffer: Buffer) -> None:
        """A buffer comes into being: its name must be free, its memory one of the target's."""
        if buffer.name in self.buffers:
            raise VerificationError(f"buffer '{buffer.name}' is allocated inside its own lifetime")
        if self.scopes and buffer.scope not in self.scopes:
            assert self.target is not None
            raise VerificationError(
                f"buffer '{buffer.name}' is in '{buffer.scope}', which target "
                f"'{self.target.name}' lacks; it has {', '.join(self.scopes)}"
            )
        if buffer.versions < 1:
            raise VerificationError(f"buffer '{buffer.name}' has {buffer.versions} versions")
        self.buffers[buffer.name] = buffer

    def _capacity(self, buffer: Buffer) -> None:
        """On-chip memories: partitions, banks and bytes."""
        memory = self.memories.get(buffer.scope)
        shape = [extent.constant for extent in buffer.shape]
        if memory is None or any(extent is None for extent in shape):
            return
        partitions, *free = [extent or 0 for extent in shape] or [1]
        size = prod(free) * size_of(buffer.dtype)
        where = f"buffer '{buffer.name}' in {buffer.scope}"
        if partitions > memory.partitions:
            raise VerificationError(
                f"{where} takes {partitions} partitions; there are {memory.partitions}"
            )
        if memory.bank and size > memory.bank:
            raise VerificationError(
                f"{where} takes {size} bytes of each partition; a bank holds {memory.bank}"
            )
        held = -(-size // memory.bank) * memory.bank if memory.bank else size
        self.used[buffer.scope] = self.used.get(buffer.scope, 0) + held * buffer.versions
        if self.used[buffer.scope] > memory.bytes:
            raise VerificationError(
                f"{where} brings the bytes in use to {self.used[buffer.scope]} of each partition; "
                f"it has {memory.bytes}"
            )

    # -- instructions -------------------------------------------------------------------------
    def _intrinsic(self, statement: Intrinsic, around: Surroundings) -> None:
        family = self.target.family if self.target else None
        known = [s for s in INTRINSICS.values() if family is None or family in s.families]
        spec = next((s for s in known if s.name == statement.name), None)
        if spec is None:
            name = f"target '{self.target.name}'" if self.target else "any target"
            raise VerificationError(
                f"intrinsic '{statement.name}' is no instruction of {name}; "
                f"known: {', '.join(s.name for s in known)}"
            )
        if self.instruction:
            raise VerificationError(
                f"intrinsic '{statement.name}' stands inside intrinsic '{self.instruction}'"
            )
        self.instruction = statement.name
        self.check(statement.body, around)
        self.instruction = ""
        if "cpu" in spec.families:
            return
        found = match(statement, self.buffers)
        engine = found.block.engine
        if engine and engine not in spec.engines:
            raise VerificationError(
                f"intrinsic '{spec.name}' in stage '{found.block.stage}' does not run on "
                f"'{engine}'; allowed: {', '.join(spec.engines)}"
            )
        if self.limits:
            self._dimensions(spec, found, around)

    def _dimensions(self, spec: IntrinsicSpec, found: Match, around: Surroundings) -> None:
        """Each dimension of an instruction, at its largest, against the target's limit."""
        for dimension, name in spec.limits.items():
            for loop in found.loops[dimension]:
                around = around.inside(loop.variable, loop.extent)
            size = _product(loop.extent for loop in found.loops[dimension])
            if not self._free(size, around) and not around.holds(self.limits[name] - size):
                raise VerificationError(
                    f"intrinsic '{spec.name}' in stage '{found.block.stage}': "
                    f"{dimension.upper()} = {size} exceeds the limit of {self.limits[name]} "
                    f"({name})"
                )

    # -- blocks -------------------------------------------------------------------------------
    def _block(self, block: Block, around: Surroundings) -> None:
        where = f"block '{block.stage}'"
        if self.limits and not set(filter(None, block.engine.split("|"))) <= set(ENGINES):
            raise VerificationError(
                f"{where} is assigned to engine '{block.engine}'; one of {', '.join(ENGINES)}"
            )
        if self.tensorized and not self.instruction:
            raise VerificationError(
                f"{where} is no part of an instruction; tensorize its loops with one of "
                f"{', '.join(INTRINSICS)}"
            )
        self._variables(block.guard, around, where)
        known = around.knowing(block.guard)
        self._access(block.write, known, where)
        if self.buffers[block.buffer].role in ("input", "literal"):
            raise VerificationError(f"{where} writes '{block.buffer}', which is an input")
        self._scalar(block.value, known, where)

    def _scalar(self, value: Scalar, around: Surroundings, where: str) -> None:
        match value:
            case Load():
                self._access(value, around, where)
            case Call(arguments=arguments):
                for argument in arguments:
                    self._scalar(argument, around, where)
            case Select(condition, then, otherwise):
                self._variables(condition, around, where)
                self._scalar(then, around.knowing(condition), where)
                self._scalar(otherwise, around.otherwise(condition), where)
            case _:
                pass

    def _access(self, access: Load, around: Surroundings, where: str) -> None:
        buffer = self.buffers.get(access.buffer)
        if buffer is None:
            raise VerificationError(
                f"{where} uses buffer '{access.buffer}', which is neither a parameter nor "
                f"allocated around it"
            )
        if len(access.indices) != len(buffer.shape):
            raise VerificationError(
                f"{where} uses {len(access.indices)} indices in {access}; buffer '{buffer.name}' "
                f"has {len(buffer.shape)} dimensions"
            )
        self._variables(access.indices, around, where)
        if buffer.scope == "register":
            self._register(access, around, where)
        for tensor, index in _elements(access.indices):
            self._access(Load(tensor, (index,)), around, where)
        for position, (index, extent) in enumerate(zip(access.indices, buffer.shape, strict=True)):
            if self._free(index, around) or self._free(extent, around):
                continue
            if not self._inside(index, extent, around):
                raise VerificationError(
                    f"{where}: index {position} of {access} can leave 0..{extent - 1}, the range "
                    f"of buffer '{buffer.name}'"
                )

    def _inside(self, index: Expr, extent: Expr, around: Surroundings) -> bool:
        """Whether `0 <= index < extent` in every iteration (remembered: accesses repeat)."""
        key = (index, extent, around.facts, tuple(around.extents.items()))
        known = self.proved.get(key)
        if known is None:
            known = around.holds(index) and around.holds(extent - 1 - index)
            self.proved[key] = known
        return known

    def _register(self, access: Load, around: Surroundings, where: str) -> None:
        """Registers have no addresses: their indices must be known while code is emitted."""
        for name in (name for index in access.indices for name in index.variables()):
            extent = around.extents.get(name)
            single = extent is not None and extent.constant == 1
            if self.kinds.get(name) in ("serial", "parallel") and not single:
                raise VerificationError(
                    f"{where} indexes register buffer '{access.buffer}' by the {self.kinds[name]} "
                    f"loop '{name}'; unroll or vectorize it"
                )

    # -- variables ----------------------------------------------------------------------------
    def _variables(self, found: Condition, around: Surroundings, where: str) -> None:
        """Every variable is that of a loop around, or a symbol."""
        for expression in found:
            for name in expression.variables():
                if name in self.loops and name not in around.extents:
                    raise VerificationError(
                        f"{where} uses variable '{name}' in '{expression}', outside its loop"
                    )

    def _free(self, expression: Expr, around: Surroundings) -> bool:
        """Whether it depends on a symbol, directly or through an extent."""
        return around.closure([expression]) is None


def _elements(indices: Iterable[Expr]) -> Iterator[tuple[str, Expr]]:
    """The tensors that index expressions read, and where."""
    for index in indices:
        for atom in index.atoms():
            for side in (atom.left, atom.right):
                yield from _elements((side,) if side is not None else ())
            if atom.kind == "element" and atom.left is not None:
                yield atom.name, atom.left


def _product(extents: Iterable[Expr]) -> Expr:
    total = ONE
    for extent in extents:
        total = total * extent
    return total
