"""Vector loops whose end varies: which lanes they have, and where these stand in memory.

`most_of` is the width that the last, short vector of a row is known to keep to. `settle_lanes`
decides divisions that the ends of short loops and the strides of vectors decide, so that lanes are
seen to stand side by side; where they do not, and their number varies, they go one by one.
"""

from collections.abc import Set
from dataclasses import replace

from tilesmith.search_space.expressions.expression import (
    ONE,
    ZERO,
    Atom,
    Expr,
    Monomial,
    const,
    floordiv,
    mod,
)
from tilesmith.search_space.expressions.ranges import Bounds, lower, upper, within
from tilesmith.search_space.expressions.scalar import loads
from tilesmith.search_space.ir import program as ir


def most_of(extent: Expr) -> int | None:
    """The greatest value of an extent, if a side of its minima says it."""
    known = [top for top in map(_top, sides(extent)) if top is not None]
    return min(known) if known else None


def _top(expression: Expr) -> int | None:
    """An upper bound of a sum: of numbers, minima, and what is taken away from them."""
    total = 0
    for monomial, factor in expression.terms:
        if not monomial:
            total += factor
        elif factor > 0 and len(monomial) == 1 and monomial[0].kind == "min":
            most = most_of(Expr(((monomial, 1),)))
            if most is None:
                return None
            total += factor * most
        elif factor > 0 or not _plain(monomial):
            return None
    return total


def _plain(monomial: Monomial) -> bool:
    return all(atom.kind == "var" for atom in monomial)


def sides(extent: Expr) -> list[Expr]:
    """The sides of nested minima, or the extent itself."""
    if len(extent.terms) == 1 and extent.terms[0][1] == 1 and len(extent.terms[0][0]) == 1:
        atom = extent.terms[0][0][0]
        if atom.kind == "min":
            return [end for side in atom.operands for end in sides(side)]
    return [extent]


def settle_lanes(
    statement: ir.Statement, registers: Set[str], bounds: Bounds | None = None
) -> ir.Statement:
    """See the module's docstring.

    Args:
        registers: buffers whose elements have no addresses: their lanes stay together.
    """
    bounds = bounds or {}
    match statement:
        case ir.Loop(variable, extent, kind, body):
            most = most_of(extent)
            top = const(most) if most is not None else upper(extent, bounds)
            inner = settle_lanes(body, registers, {**bounds, variable: top - 1})
            sized = bool(extent.variables() - bounds.keys())  # it ends where a size says
            if kind == "vector" and sized and _apart(inner, variable, registers):
                kind = "serial"
            return replace(statement, kind=kind, body=inner)
        case ir.Sequence(statements):
            return ir.sequence(*(settle_lanes(s, registers, bounds) for s in statements))
        case ir.If(condition, then, otherwise):
            other = settle_lanes(otherwise, registers, bounds) if otherwise is not None else None
            return ir.If(condition, settle_lanes(then, registers, bounds), other)
        case ir.Allocate():
            return replace(statement, body=settle_lanes(statement.body, registers, bounds))
        case ir.Intrinsic(_, body):  # it knows how to take lanes that stand apart on one side
            around = dict(bounds)
            while isinstance(body, ir.Loop):
                around[body.variable] = const(most_of(body.extent) or 1) - 1
                body = body.body
            return ir.transform(statement, lambda index: _divided(index, around))
        case ir.Block():
            return ir.transform(statement, lambda index: _divided(index, bounds))


def _divided(expression: Expr, bounds: Bounds) -> Expr:
    """With divisions decided that hang on a part that moves in larger steps only:

    (16*y + i) // 32 with i <= 15  -->  y // 2
    """
    expression = within(expression, bounds)
    if all(atom.kind not in ("floordiv", "mod") for atom in expression.atoms()):
        return expression
    return expression.map_atoms(lambda atom: _stepped(atom, bounds))


def _stepped(atom: Atom, bounds: Bounds) -> Expr:
    same = Expr((((atom,), 1),))
    if atom.kind not in ("floordiv", "mod"):
        return same
    value, divisor = atom.operands
    whole = divisor.constant
    for step in {abs(factor) for _, factor in value.terms} if whole else ():
        if step == 1 or whole is None or whole % step:
            continue
        rest = Expr(tuple(term for term in value.terms if term[1] % step))
        low, high = lower(rest, bounds).constant, upper(rest, bounds).constant
        if low is None or high is None or low < 0 or high >= step:
            continue
        coarse = Expr(tuple((m, factor // step) for m, factor in (value - rest).terms))
        if atom.kind == "floordiv":
            return floordiv(coarse, whole // step)
        return mod(coarse, whole // step) * step + rest
    return same


def _apart(statement: ir.Statement, variable: str, registers: Set[str]) -> bool:
    """Whether a variable moves some access by other than one element at a time, and no register."""
    accesses = [a for block in ir.blocks(statement) for a in (block.write, *loads(block.value))]
    if any(a.buffer in registers and _inside(a.indices, variable) for a in accesses):
        return False
    return any(_moves(access.indices, variable) for access in accesses)


def _inside(indices: tuple[Expr, ...], variable: str) -> bool:
    return any(variable in index.variables() for index in indices)


def _moves(indices: tuple[Expr, ...], variable: str) -> bool:
    if _inside(indices[:-1], variable):
        return True
    return bool(indices) and indices[-1].coefficient(variable) not in (ZERO, ONE)
