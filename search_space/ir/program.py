"""The loop IR: the one thing that features, simulators and code generators all read.

    Program   = parameters, prologue, body
    Statement = Loop(variable, extent, kind, body)       kind: serial | parallel | vector | unroll
              | Sequence(statements)
              | If(condition, then, otherwise)           condition: expressions that are all >= 0
              | Allocate(buffer, body)                   the buffer lives inside body
              | Block(buffer[indices] reducer= value)    the only statement that touches memory
              | Intrinsic(name, body)                    body: what one target instruction does

Indices are affine or quasi-affine; tails are `min` extents; tile sizes may be symbols until `bind`
gives them numbers, so that thousands of configurations share one program. A buffer has a memory
scope, a physical shape and a version count (multiple buffering). `prologue` holds the stages that
run once, at compile time (weight packing); its results are the `prepared` parameters.

Invariants (checked by `verifier.verify`): every variable is bound by a loop around it or is a
symbol; every buffer is a parameter or allocated around its uses; index ranks match; a vector loop
has no loop inside; a register buffer is indexed by unrolled and vector variables only.

People, golden files and `db show --program` see programs as text (`print_program`):

    program matmul(a: float32[512x512] in global, ...)
      parallel i.0 in 43:
        allocate c.register: float32[12x2x16] in register
        for k in 512:
          unroll i.1 in 12:
            vector j.2 in 16:
              c.register[i.1, j.1, j.2] += a[i.0*12 + i.1, k] * ...
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from tilesmith.search_space.expressions.expression import Expr, ExprLike
from tilesmith.search_space.expressions.scalar import (
    REDUCTIONS,
    Condition,
    Load,
    Scalar,
    condition_text,
    loads,
    rewrite,
)
from tilesmith.search_space.expressions.sizes import Size

LoopKind = Literal["serial", "parallel", "vector", "unroll", "interleaved"]
Role = Literal["input", "prepared", "output", "temporary", "literal"]


@dataclass(frozen=True)
class Buffer:
    """Memory with a physical shape, row-major.

    Attributes:
        scope: "global" (caches and DRAM), "packed" (global, written once, weights), "local" (a
            thread's workspace), "register", or an accelerator's memory ("hbm", "sbuf", "psum").
        role: who provides it.
        values: numbers of a literal, flattened.
        versions: copies kept for multiple buffering.
    """

    name: str
    shape: tuple[Expr, ...]
    dtype: str = "float32"
    scope: str = "global"
    role: Role = "temporary"
    values: tuple[float, ...] | None = None
    versions: int = 1

    def __str__(self) -> str:
        shape = "x".join(str(e) if e.constant is not None else f"({e})" for e in self.shape)
        versions = f" versions={self.versions}" if self.versions > 1 else ""
        return f"{self.name}: {self.dtype}[{shape or 'scalar'}] in {self.scope}{versions}"


@dataclass(frozen=True)
class Block:
    """One element written: `buffer[indices] = value`, or `reducer=` into it.

    `stage` names the compute stage it comes from; `engine` the accelerator engine it is assigned
    to. A guard makes the write conditional.
    """

    stage: str
    buffer: str
    indices: tuple[Expr, ...]
    value: Scalar
    reducer: str | None = None
    guard: Condition = ()
    engine: str = ""

    @cached_property
    def write(self) -> Load:
        """The access written."""
        return Load(self.buffer, self.indices)

    def accesses(self) -> Iterator[tuple[Load, bool]]:
        """Every access as (access, is_write)."""
        yield self.write, True
        for load in loads(self.value):
            yield load, False


@dataclass(frozen=True)
class Loop:
    """`for variable in range(extent)`. `stages` > 1 asks for software pipelining of that depth."""

    variable: str
    extent: Expr
    kind: LoopKind
    body: "Statement"
    stages: int = 1


@dataclass(frozen=True)
class Sequence:
    """Statements one after another."""

    statements: "tuple[Statement, ...]"


@dataclass(frozen=True)
class If:
    """`then` where all of `condition` is >= 0, else `otherwise` (which may be empty)."""

    condition: Condition
    then: "Statement"
    otherwise: "Statement | None" = None


@dataclass(frozen=True)
class Allocate:
    """A buffer that lives inside `body`."""

    buffer: Buffer
    body: "Statement"


@dataclass(frozen=True)
class Intrinsic:
    """A target instruction; `body` says what it does, point by point."""

    name: str
    body: "Statement"


Statement = Loop | Sequence | If | Allocate | Block | Intrinsic


@dataclass(frozen=True)
class Program:
    """One operator, scheduled.

    Attributes:
        name: of the operator.
        parameters: buffers provided by the caller: inputs, prepared buffers, the output last.
        prologue: statements that fill the prepared buffers, run once; may be None.
        body: what runs every time.
        sizes: symbols that stay until the program runs, and their ranges.
    """

    name: str
    parameters: tuple[Buffer, ...]
    body: Statement
    prologue: Statement | None = None
    literals: tuple[Buffer, ...] = ()
    sizes: tuple[Size, ...] = ()

    def bind(self, values: Mapping[str, ExprLike]) -> "Program":
        """Give symbols numbers, simplifying: the concrete program of one configuration."""

        def index(expression: Expr) -> Expr:
            return expression.substitute(values)

        def buffer(allocated: Buffer) -> Buffer:
            return replace(allocated, shape=tuple(index(e) for e in allocated.shape))

        return replace(
            self,
            parameters=tuple(buffer(b) for b in self.parameters),
            body=transform(self.body, index, buffer),
            prologue=transform(self.prologue, index, buffer) if self.prologue else None,
            sizes=tuple(size for size in self.sizes if size.name not in values),
        )

    def compile_time(self) -> "Program | None":
        """The prologue as the body of a program with the same parameters; None without one.

        It knows no sizes: what is done at compile time is the same for all.
        """
        if self.prologue is None:
            return None
        return replace(self, body=self.prologue, prologue=None, sizes=())

    def parameter(self, name: str) -> Buffer:
        return next(b for b in self.parameters if b.name == name)


def transform(
    statement: Statement,
    index: Callable[[Expr], Expr],
    buffer: Callable[[Buffer], Buffer] = lambda allocated: allocated,
) -> Statement:
    """Rebuild a statement with every index expression mapped by `index`; trivial parts drop out."""
    match statement:
        case Loop(extent=extent, body=body):
            extent, body = index(extent), transform(body, index, buffer)
            return Loop(statement.variable, extent, statement.kind, body, statement.stages)
        case Sequence(statements):
            return sequence(*(transform(s, index, buffer) for s in statements))
        case If(condition, then, otherwise):
            other = transform(otherwise, index, buffer) if otherwise else None
            return simplify_if(
                tuple(index(e) for e in condition), transform(then, index, buffer), other
            )
        case Allocate(allocated, body):
            return Allocate(buffer(allocated), transform(body, index, buffer))
        case Intrinsic(name, body):
            return Intrinsic(name, transform(body, index, buffer))
        case Block():
            return Block(
                statement.stage,
                statement.buffer,
                tuple([index(i) for i in statement.indices]),
                rewrite(statement.value, index),
                statement.reducer,
                open_conditions(tuple([index(e) for e in statement.guard])),
                statement.engine,
            )


def open_conditions(condition: Condition) -> Condition:
    """Drop the expressions that are known to be >= 0."""
    return tuple(e for e in condition if e.constant is None or e.constant < 0)


def simplify_if(condition: Condition, then: Statement, otherwise: Statement | None) -> Statement:
    """`If`, decided where the condition is known."""
    if any(e.constant is not None and e.constant < 0 for e in condition):
        return otherwise or Sequence(())
    rest = open_conditions(condition)
    return If(rest, then, otherwise) if rest else then


def sequence(*statements: Statement | None) -> Statement:
    """Statements in order, nested sequences flattened, a single one returned as it is."""
    flat: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Sequence):
            flat.extend(statement.statements)
        elif statement is not None:
            flat.append(statement)
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat))


def children(statement: Statement) -> tuple[Statement, ...]:
    """The statements directly inside one."""
    match statement:
        case Loop(body=body) | Allocate(body=body) | Intrinsic(body=body):
            return (body,)
        case Sequence(statements):
            return statements
        case If(then=then, otherwise=otherwise):
            return (then, otherwise) if otherwise else (then,)
        case Block():
            return ()


def walk(statement: Statement) -> Iterator[Statement]:
    """The statement and everything inside, outermost first."""
    pending = [statement]
    while pending:
        inner = pending.pop()
        yield inner
        pending += reversed(children(inner))


def blocks(statement: Statement) -> Iterator[Block]:
    """Every block, in program order."""
    return (inside for inside in walk(statement) if isinstance(inside, Block))


_WORD = {
    "serial": "for", "parallel": "parallel", "vector": "vector", "unroll": "unroll",
    "interleaved": "interleaved",
}  # fmt: skip


def print_program(program: Program) -> str:
    """The whole program, one statement a line."""
    parameters = ",\n        ".join(f"{b} ({b.role})" for b in program.parameters)
    lines = [f"program {program.name}({parameters})"]
    if program.prologue is not None:
        lines.append("  prologue:")
        lines += [f"    {line}" for line in _lines(program.prologue)]
    lines.append("  body:")
    lines += [f"    {line}" for line in _lines(program.body)]
    return "\n".join(lines) + "\n"


def _indent(statement: Statement) -> Iterator[str]:
    return (f"  {line}" for line in _lines(statement))


def _lines(statement: Statement) -> Iterator[str]:
    match statement:
        case Loop(variable, extent, kind, body, stages):
            pipelined = f" pipelined {stages}" if stages > 1 else ""
            yield f"{_WORD[kind]} {variable} in {extent}{pipelined}:"
            yield from _indent(body)
        case Sequence(statements):
            for inner in statements:
                yield from _lines(inner)
        case If(condition, then, otherwise):
            yield f"if {condition_text(condition)}:"
            yield from _indent(then)
            if otherwise is not None:
                yield "else:"
                yield from _indent(otherwise)
        case Allocate(buffer, body):
            yield f"allocate {buffer}"
            yield from _lines(body)
        case Intrinsic(name, body):
            yield f"intrinsic {name}:"
            yield from _indent(body)
        case Block():
            guard = f" if {condition_text(statement.guard)}" if statement.guard else ""
            engine = f"  @{statement.engine}" if statement.engine else ""
            sign = "=" if statement.reducer is None else REDUCTIONS[statement.reducer].sign
            yield f"{statement.write} {sign} {statement.value}{guard}{engine}"
