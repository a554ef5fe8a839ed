"""Passes over bound programs: trivial loops removed, tails peeled off.

`simplify`: loops of one iteration become their body, loops of none and unused allocations vanish.

`peel_tails`: an unrolled or vector loop must have a constant extent, but a tile size that does not
divide leaves `min(f, n - f*t)`. Only the last tile is short, so the loop that counts the tiles is
cut:

    for t in ceil(n/f): unroll i in min(f, n - f*t): s
    -->  for t in n//f: unroll i in f: s
         t = n//f: unroll i in n%f: s              (only where n%f > 0)

Valid in: a program whose symbols are bound. Valid out: the same, and every extent of an unrolled or
vector loop is a constant.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache

from tilesmith.search_space.expressions.expression import (
    Atom,
    Expr,
    apply,
    const,
    element,
    minimum,
    var,
)
from tilesmith.search_space.expressions.ranges import Bounds, lower, upper, within
from tilesmith.search_space.ir import program as ir


def substitute(statement: ir.Statement, values: Mapping[str, Expr]) -> ir.Statement:
    """Replace variables in a statement."""
    return ir.transform(statement, cache(lambda index: index.substitute(values)))


def simplify(statement: ir.Statement, bounds: Bounds | None = None) -> ir.Statement:
    """Remove loops of one or no iteration and allocations nobody uses; decide what bounds decide.

    Numbers decide what symbols could not: `(4*i + j) // 16` with i, j <= 3 is 0.

    for i in 1: s(i)  -->  s(0)
    for i in 3: for j in min(1, 3 - i): s  -->  for i in 3: s(i, 0)
    """
    bounds = bounds or {}
    match statement:
        case ir.Loop(variable, extent, kind, body):
            extent = resolve(extent, bounds)
            if extent.constant is not None and extent.constant <= 0:
                return ir.Sequence(())
            if extent.constant == 1 and kind != "vector":
                return simplify(substitute(body, {variable: const(0)}), bounds)
            inner_bounds = {**bounds, variable: upper(extent, bounds) - 1}
            return ir.Loop(variable, extent, kind, simplify(body, inner_bounds), statement.stages)
        case ir.Sequence(statements):
            return ir.sequence(*(simplify(s, bounds) for s in statements))
        case ir.If(condition, then, otherwise):
            other = simplify(otherwise, bounds) if otherwise is not None else None
            decided = tuple(_decide(e, bounds) for e in condition)
            return ir.simplify_if(decided, simplify(then, bounds), other)
        case ir.Allocate(buffer, body):
            inner = simplify(body, bounds)
            used = any(
                access.buffer == buffer.name for b in ir.blocks(inner) for access, _ in b.accesses()
            )
            return ir.Allocate(buffer, inner) if used else inner
        case ir.Intrinsic(name, body):
            return ir.Intrinsic(name, simplify(body, bounds))
        case ir.Block():
            return ir.transform(statement, lambda index: within(index, bounds))


def resolve(expression: Expr, bounds: Bounds) -> Expr:
    """Decide each `min` of an expression, in quotients too, whose sides' order is certain."""
    if all(atom.kind in ("var", "element") for atom in expression.atoms()):
        return expression
    return expression.map_atoms(lambda atom: _resolve_atom(atom, bounds))


def _resolve_atom(atom: Atom, bounds: Bounds) -> Expr:
    if atom.kind in ("var", "element") or atom.left is None or atom.right is None:
        return Expr((((atom,), 1),))
    left, right = resolve(atom.left, bounds), resolve(atom.right, bounds)
    if atom.kind != "min":
        return apply(atom.kind, left, right)
    names = left.variables() | right.variables()
    return _smaller(left, right, tuple((n, bounds[n]) for n in sorted(names) if n in bounds))


@lru_cache(maxsize=1 << 14)
def _smaller(left: Expr, right: Expr, known: tuple[tuple[str, Expr], ...]) -> Expr:
    """The minimum of two, decided if their order is certain within bounds. Kept: the extent of a
    tail stands in every access under its loop."""
    bounds = dict(known)
    difference = left - right
    if _at_most(difference, bounds, 0):
        return left
    if _at_most(-difference, bounds, 0):
        return right
    return minimum(left, right)


def _at_most(expression: Expr, bounds: Bounds, limit: int) -> bool:
    """Whether `expression <= limit` is certain."""
    for term in _without_minima(expression):
        top = upper(term, bounds).constant
        if top is not None and top <= limit:
            return True
    return False


def _without_minima(expression: Expr) -> Iterator[Expr]:
    """Upper bounds of an expression: each `min` that is added replaced by one of its sides."""
    yield expression
    for monomial, number in expression.terms:
        if number == 1 and len(monomial) == 1 and monomial[0].kind == "min":
            rest = expression - Expr(((monomial, number),))
            for side in (monomial[0].left, monomial[0].right):
                if side is not None:
                    yield from _without_minima(rest + side)


def _decide(expression: Expr, bounds: Bounds) -> Expr:
    """A constant of the same sign if the sign is certain, else the expression."""
    if _at_most(expression, bounds, -1):
        return const(-1)
    low = lower(expression, bounds).constant
    return const(0) if low is not None and low >= 0 else expression


def peel_tails(statement: ir.Statement) -> ir.Statement:
    """See the module's docstring."""
    match statement:
        case ir.Loop(_, _, kind, body) if kind in ("serial", "parallel"):
            return _peel_loop(replace(statement, body=peel_tails(body)))
        case ir.Loop() | ir.Intrinsic() | ir.Allocate():
            return replace(statement, body=peel_tails(statement.body))
        case ir.Sequence(statements):
            return ir.sequence(*(peel_tails(s) for s in statements))
        case ir.If(condition, then, otherwise):
            other = peel_tails(otherwise) if otherwise is not None else None
            return ir.If(condition, peel_tails(then), other)
        case _:
            return statement


def _peel_loop(loop: ir.Loop) -> ir.Statement:
    """Cut one loop at each of its tails."""
    for atom, remainder in _remainders(loop):
        cut, exact = _cut(loop, remainder)
        if cut is None:
            continue
        # Folding may leave inner loops with tails that are constant only now.
        main = replace(loop, body=peel_tails(fold(loop.body, atom)))
        if exact:
            return _peel_loop(main)
        # Substituting the last iteration turns the remainder into a constant by itself.
        short = peel_tails(simplify(substitute(loop.body, {loop.variable: cut})))
        if loop.kind == "parallel":  # one loop, so that threads share the short iteration too
            whole = ir.simplify_if((cut - 1 - var(loop.variable),), main.body, short)
            return _peel_loop(replace(loop, body=whole))
        main = replace(main, extent=minimum(cut, loop.extent))
        condition = _decide(loop.extent - 1 - cut, {})
        return ir.sequence(_peel_loop(main), ir.simplify_if((condition,), short, None))
    return loop


def _unrolled(statement: ir.Statement) -> Iterator[ir.Loop]:
    return (
        s for s in ir.walk(statement) if isinstance(s, ir.Loop) and s.kind in ("unroll", "vector")
    )


def _remainders(loop: ir.Loop) -> Iterator[tuple[Atom, Expr]]:
    """Each `min(f, n - f*t)` in an unrolled extent, t the loop's variable, nested ones too."""
    for inner in _unrolled(loop.body):
        for atom in minima(inner.extent):
            for side in atom.operands:
                if loop.variable in side.variables():
                    yield atom, side


def minima(expression: Expr) -> Iterator[Atom]:
    """Every `min` in an expression, outermost first."""
    for atom in expression.atoms():
        if atom.kind != "var":
            if atom.kind == "min":
                yield atom
            for side in atom.operands:
                yield from minima(side)


def _cut(loop: ir.Loop, remainder: Expr) -> tuple[Expr | None, bool]:
    """Number of full iterations, and whether there is no short one.

    `remainder` must be n - period*(v + outer) + inner, with v the loop's variable, `outer` over the
    variables around it and `inner` over unrolled ones; otherwise the answer is (None, False).
    """
    factor = remainder.coefficient(loop.variable)
    if factor is None or factor.constant is None or factor.constant >= 0:
        return None, False
    period = -factor.constant
    inner = {unrolled.variable for unrolled in _unrolled(loop.body)}
    outer = const(0)
    for monomial, number in remainder.terms:
        names = Expr(((monomial, number),)).variables()
        if not names or names == {loop.variable} or names <= inner:
            continue
        if number % period or names & inner:
            return None, False
        outer = outer + Expr(((monomial, number // period),))
    full, rest = divmod(remainder.offset, period)
    return const(full) + outer, rest == 0


def fold(body: ir.Statement, atom: Atom) -> ir.Statement:
    """Replace one `min(f, remainder)` by f in every extent."""
    left, right = atom.operands
    whole = left if left.constant is not None else right

    def index(expression: Expr) -> Expr:
        if not any(minimum_atom == atom for minimum_atom in minima(expression)):
            return expression
        return expression.map_atoms(
            lambda candidate: whole if candidate == atom else _fold_inside(candidate, index)
        )

    return ir.transform(body, index)


def _fold_inside(atom: Atom, index: Callable[[Expr], Expr]) -> Expr:
    """An atom with `index` applied to its operands."""
    if atom.kind == "var":
        return Expr((((atom,), 1),))
    left, right = atom.operands
    if atom.kind == "element":
        return element(atom.name, index(left), right)
    return apply(atom.kind, index(left), index(right))
