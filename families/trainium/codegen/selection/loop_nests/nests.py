"""Perfect loop nests around one block: what becomes one instruction (or a few) of an accelerator.

A nest is planned once and emitted for every iteration of the loops outside it. Its accesses are
affine, so each is an address (a compiled expression of the outer variables) and one stride for
each loop of the nest. The order of the loops does not matter (they copy, map or reduce), so code
generation may put any of them into an instruction; loops whose extent depends on another loop of
the nest are left outside.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tilesmith.search_space.expressions.expression import ZERO, Atom, Expr, const
from tilesmith.search_space.expressions.ranges import within
from tilesmith.search_space.expressions.scalar import Load, loads, rewrite
from tilesmith.search_space.ir.program import (
    Allocate,
    Block,
    Buffer,
    Intrinsic,
    Loop,
    Sequence,
    Statement,
    blocks,
    walk,
)
from tilesmith.search_space.support.errors import CodegenError

Environment = dict[str, int]
Evaluate = Callable[[Mapping[str, Any]], Any]


@lru_cache(maxsize=65536)
def compile_expression(value: Expr, arrays: bool = False) -> Evaluate:
    """A function from variables to the value of an expression, much faster than `Expr.evaluate`.

    Args:
        arrays: the variables are numpy arrays (or integers), not integers only.
    """
    constant = value.constant
    if constant is not None:
        return lambda _: constant
    names = {"min": np.minimum, "max": np.maximum} if arrays else {"min": min, "max": max}
    evaluate: Evaluate = eval(f"lambda e: {_source(value)}", names)
    return evaluate


def _source(value: Expr) -> str:
    parts = []
    for monomial, factor in value.terms:
        parts.append("*".join([str(factor), *(_atom(atom) for atom in monomial)]))
    return "(" + (" + ".join(parts) or "0") + ")"


def _atom(atom: Atom) -> str:
    if atom.kind == "var":
        return f"e[{atom.name!r}]"
    assert atom.left is not None and atom.right is not None
    left, right = _source(atom.left), _source(atom.right)
    if atom.kind in ("min", "max"):
        return f"{atom.kind}({left}, {right})"
    return f"({left} {'//' if atom.kind == 'floordiv' else '%'} {right})"


def integer(value: Expr, what: str) -> int:
    """A number; `CodegenError` for an expression that is still symbolic."""
    constant = value.constant
    if constant is None:
        number = (
            value.evaluate(dict.fromkeys(value.variables(), 0)) if not value.variables() else None
        )
        if number is None:
            raise CodegenError(
                f"{what} is {value}; every symbol must be bound before code generation"
            )
        return int(number)
    return constant


@dataclass(frozen=True)
class NestAccess:
    """One access of a nest.

    Attributes:
        row: first index of the first physical axis (the partition, on chip).
        row_strides: its step for each loop of the nest, by variable.
        offset: element offset of the other axes (all axes, in HBM) when every loop is at zero.
        strides: elements that each loop moves it, by variable.
    """

    buffer: Buffer
    row: Evaluate
    row_strides: Mapping[str, int]
    offset: Evaluate
    strides: Mapping[str, int]


@dataclass(frozen=True)
class PlannedNest:
    """Loops (outermost first), the block in them, and its accesses planned.

    Attributes:
        fixed: variables of loops that must stay outside an instruction.
        write: the access written; reads: those read, by `Load`.
    """

    loops: tuple[Loop, ...]
    block: Block
    extents: tuple[Evaluate, ...]
    fixed: frozenset[str]
    write: NestAccess
    reads: Mapping[Load, NestAccess]


def match_nest(statement: Statement) -> tuple[tuple[Loop, ...], Block] | None:
    """The loops and the block of a perfect nest, or None; one instruction is a nest of its own."""
    loops: list[Loop] = []
    statement = statement.body if isinstance(statement, Intrinsic) else statement
    while True:
        match statement:
            case Loop():
                loops.append(statement)
                statement = statement.body
            case Block():
                return tuple(loops), statement
            case _:
                return None


def plan_nest(loops: tuple[Loop, ...], block: Block, buffers: Mapping[str, Buffer]) -> PlannedNest:
    """Plan a nest; `buffers` are those in sight.

    Raises:
        CodegenError: an access is not affine in the nest's loops, or the block is guarded.
    """
    if block.guard:
        raise CodegenError(f"stage '{block.stage}' is guarded; instructions have no guards")
    variables = tuple(loop.variable for loop in loops)
    inner = frozenset(variables)
    fixed = frozenset(name for loop in loops for name in loop.extent.variables() if name in inner)
    single = {loop.variable: 0 for loop in loops if _limit(loop.extent) == 1}
    free = tuple(v for v in variables if v not in fixed)
    bounds = bounds_of(loops)
    block = replace(
        block,
        indices=tuple(within(index.substitute(single), bounds) for index in block.indices),
        value=rewrite(block.value, lambda index: within(index.substitute(single), bounds)),
    )
    return PlannedNest(
        loops,
        block,
        tuple(compile_expression(loop.extent) for loop in loops),
        fixed,
        _access(block.write, buffers, free, single),
        {load: _access(load, buffers, free, single) for load in loads(block.value)},
    )


def bounds_of(loops: Iterable[Loop]) -> dict[str, Expr]:
    """The largest value of each loop variable where one is known (of tails, the full size)."""
    limits = ((loop.variable, _limit(loop.extent)) for loop in loops)
    return {name: const(limit - 1) for name, limit in limits if limit}


def _limit(extent: Expr) -> int | None:
    """A number that an extent does not exceed: itself, or an operand of a minimum."""
    if extent.constant is not None or len(extent.terms) != 1:
        return extent.constant
    ((monomial, factor),) = extent.terms
    if factor != 1 or len(monomial) != 1 or monomial[0].kind != "min":
        return None
    operands = (monomial[0].left, monomial[0].right)
    limits = [_limit(operand) for operand in operands if operand is not None]
    return min((limit for limit in limits if limit is not None), default=None)


def _access(
    load: Load,
    buffers: Mapping[str, Buffer],
    free: tuple[str, ...],
    single: Mapping[str, int],
) -> NestAccess:
    """Plan one access; loops of one iteration (`single`) stay at zero and need not be affine."""
    buffer = buffers[load.buffer]
    indices = [index.substitute(single) for index in load.indices]
    chip = buffer.scope in ("sbuf", "psum")
    shape = [integer(e, f"the shape of '{buffer.name}'") for e in buffer.shape]
    steps = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        steps[axis] = steps[axis + 1] * shape[axis + 1]
    first = 1 if chip else 0
    offset = ZERO
    for index, step in list(zip(indices, steps, strict=True))[first:]:
        offset = offset + index * step
    row = indices[0] if chip else ZERO
    zero = dict.fromkeys(free, 0)
    return NestAccess(
        buffer,
        compile_expression(row.substitute(zero)),
        _strides(row, free, load),
        compile_expression(offset.substitute(zero)),
        _strides(offset, free, load),
    )


def _strides(index: Expr, free: tuple[str, ...], load: Load) -> dict[str, int]:
    strides = {}
    for name in free:
        factor = index.coefficient(name)
        constant = None if factor is None else factor.constant
        if constant is None:
            raise CodegenError(f"access {load} is not affine in loop '{name}'")
        if constant:
            strides[name] = constant
    return strides


def narrow(expression: Expr, env: Environment, low: dict[str, int], high: dict[str, int]) -> None:
    """Cut the ranges [low, high) of a nest's loops to where `expression` is >= 0.

    Loops begin at their value in `env`, if they have one there.

    Raises:
        CodegenError: it depends on more than one of these loops.
    """
    names = [name for name in expression.variables() if name in low]
    base = compile_expression(expression)({**dict.fromkeys(names, 0), **env})
    if not names:
        if base < 0:
            high.update(low)
        return
    factor = expression.coefficient(names[0])
    step = factor.constant if factor is not None and len(names) == 1 else None
    if not step:
        raise CodegenError(f"condition {expression} >= 0 is not a bound of one loop")
    if step > 0:
        low[names[0]] = max(low[names[0]], -(base // step))
    else:
        high[names[0]] = min(high[names[0]], base // -step + 1)


def split_pipeline(
    body: Statement,
) -> tuple[list[Allocate], list[Statement], list[Statement]]:
    """(tiles allocated in a loop's body, the statements that fill them, those that use them).

    The first statements are taken as long as each writes these tiles only. Empty lists if the body
    does not have this form.
    """
    allocations: list[Allocate] = []
    while isinstance(body, Allocate):
        allocations.append(body)
        body = body.body
    statements: list[Statement] = [body]
    if isinstance(body, Sequence):
        statements = list(body.statements)
    own = {allocation.buffer.name for allocation in allocations}
    inner = own | {
        s.buffer.name for top in statements for s in walk(top) if isinstance(s, Allocate)
    }
    count = 0
    for statement in statements:
        written = {block.buffer for block in blocks(statement)}
        if not written & own or not written <= inner:
            break
        count += 1
    if count in (0, len(statements)):
        return [], [], []
    if any(block.buffer in own for statement in statements[count:] for block in blocks(statement)):
        return [], [], []
    return allocations, statements[:count], statements[count:]
