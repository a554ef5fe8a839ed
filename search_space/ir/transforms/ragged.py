"""Tails whose length is known at run time only: programs that keep sizes (`Program.sizes`).

Unrolled and vector loops must have constant extents. Where a size decides how long the last tile
is, `cut` parts full tiles from short ones:

    for t in (n + 11)//12: unroll i in min(12, n - 12*t): s
    -->  for t in n//12: unroll i in 12: s
         for u in (n + 11)//12 - n//12: unroll i in min(12, n - 12*(n//12 + u)): s

and `settle` makes constants of unrolled extents that are left:

    unroll i in min(4, e): s     -->  for i in min(4, e): s               (no register hangs on i)
                                 -->  a copy of s for each length that the tail may have

Valid in: tile sizes bound, constant tails peeled. Valid out: the same values; the extent of an
unrolled loop is a constant, that of a vector loop, too, or it has an end (`most_of`): the loop runs
under a mask, its first lane always in use.
"""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

from tilesmith.search_space.expressions.expression import (
    ZERO,
    Atom,
    Expr,
    apply,
    const,
    element,
    floordiv,
    maximum,
    minimum,
    var,
)
from tilesmith.search_space.expressions.ranges import nonnegative
from tilesmith.search_space.expressions.scalar import loads
from tilesmith.search_space.expressions.sizes import Size, limits
from tilesmith.search_space.ir.lanes import most_of, settle_lanes, sides
from tilesmith.search_space.ir.program import (
    Allocate,
    Buffer,
    If,
    Intrinsic,
    Loop,
    Program,
    Sequence,
    Statement,
    blocks,
    sequence,
    simplify_if,
    transform,
    walk,
)
from tilesmith.search_space.ir.transforms.simplification import (
    fold,
    minima,
    peel_tails,
    simplify,
    substitute,
)
from tilesmith.search_space.support.errors import ScheduleError

_REAL = ("serial", "parallel")


def within_ranges(program: Program) -> Program:
    """Return the program with every index and condition decided that ranges of sizes decide."""
    sizes = {size.name for size in program.sizes}

    def index(expression: Expr) -> Expr:
        if expression.constant is not None or not expression.variables() & sizes:
            return expression
        mapped = expression.map_atoms(atom)
        if mapped.variables() and mapped.variables() <= sizes:
            low, high = limits(mapped, program.sizes)
            return const(low) if low == high else mapped
        return mapped

    def atom(factor: Atom) -> Expr:
        if factor.kind == "var":
            return Expr((((factor,), 1),))
        left, right = (index(operand) for operand in factor.operands)
        difference = left - right
        if factor.kind in ("min", "max") and difference.variables() <= sizes:
            low, high = limits(difference, program.sizes)
            if high <= 0 or low >= 0:
                return left if (high <= 0) == (factor.kind == "min") else right
        if factor.kind == "element":
            return element(factor.name, left, right)
        return apply(factor.kind, left, right)

    return replace(program, body=transform(program.body, index))


def finish_tails(program: Program) -> Program:
    """Both passes over the body of a program that keeps sizes.

    Raises:
        ScheduleError: a loop would be unrolled as often as a size says.
    """
    body = simplify(cut(program.body))
    fixed = {s.buffer.name for s in walk(body) if isinstance(s, Allocate) and _in_registers(s)}
    fixed |= {literal.name for literal in program.literals}
    body = settle_lanes(simplify(_Settler(frozenset(fixed)).settle(body)), fixed)
    return replace(program, body=transform(body, lambda e: e, _roomy(program.sizes)))


def _in_registers(statement: Allocate) -> bool:
    return statement.buffer.scope == "register"


def _roomy(sizes: Many[Size]) -> Callable[[Buffer], Buffer]:
    """Registers have room for the largest tile, whatever the sizes."""

    def change(buffer: Buffer) -> Buffer:
        if buffer.scope != "register":
            return buffer
        return replace(buffer, shape=tuple(const(limits(e, sizes)[1]) for e in buffer.shape))

    return change


# -- full tiles and short ones ----------------------------------------------------------------
def cut(statement: Statement) -> Statement:
    """Part full tiles from short ones; see the module's docstring."""
    match statement:
        case Loop(_, _, kind) if kind in ("serial", "parallel"):
            return cut_loop(statement)
        case Loop() | Intrinsic() | Allocate():
            return replace(statement, body=cut(statement.body))
        case Sequence(statements):
            return sequence(*(cut(s) for s in statements))
        case If(condition, then, otherwise):
            other = cut(otherwise) if otherwise is not None else None
            return If(condition, cut(then), other)
        case _:
            return statement


def cut_loop(loop: Loop) -> Statement:
    """Cut the tails of a loop and of the loops inside it."""
    tails = list(_remainders(loop))
    if not tails:
        return replace(loop, body=cut(loop.body))
    full, main = tails[0].count, loop.body
    for tail in tails:
        full, main = minimum(full, tail.count), fold(main, tail.atom)
    main = cut(simplify(peel_tails(simplify(main))))
    rest = roll(loop.body)
    if all(tail.count == full for tail in tails):
        rest = transform(rest, _shorter(tails))
    if loop.kind == "parallel":  # one loop, so that threads share the short tiles too
        return replace(loop, body=simplify_if((full - 1 - var(loop.variable),), main, cut(rest)))
    first = full if nonnegative(full) else maximum(full, ZERO)
    rest = substitute(rest, {loop.variable: full + var(loop.variable)})
    most, extent = most_of(loop.extent), loop.extent - first
    extent = extent if most is None else minimum(most, extent)
    short = simplify(replace(loop, extent=extent, body=rest))
    inside = replace(short, body=cut(short.body)) if isinstance(short, Loop) else cut(short)
    return sequence(replace(loop, extent=minimum(full, loop.extent), body=main), inside)


@dataclass(frozen=True)
class _Tail:
    """`min(whole, rest)` in an unrolled extent, and for how many iterations of a loop around it is
    `whole`. `exact`: beyond them it is less."""

    atom: Atom
    whole: int
    rest: Expr
    count: Expr
    exact: bool


def _remainders(loop: Loop) -> Iterator[_Tail]:
    """Tails that a loop's variable decides, but for those that a loop inside decides."""
    tops = {s.variable: most_of(s.extent) for s in walk(loop.body) if isinstance(s, Loop)}
    real = {s.variable for s in walk(loop.body) if isinstance(s, Loop) and s.kind in _REAL}
    seen: set[Atom] = set()
    for inner in walk(loop.body):
        if not isinstance(inner, Loop) or inner.kind not in ("unroll", "vector"):
            continue
        for atom in minima(inner.extent):
            whole, rest = atom.operands if atom.operands[0].constant else atom.operands[::-1]
            names = rest.variables()
            if atom in seen or whole.constant is None or loop.variable not in names or names & real:
                continue
            seen.add(atom)
            count = _full(loop.variable, whole.constant, rest, tops)
            if count is not None:
                exact = inner.kind == "unroll" and not names & tops.keys()
                yield _Tail(atom, whole.constant, rest, count, exact)


def _shorter(tails: Many[_Tail]) -> Callable[[Expr], Expr]:
    """What tails are beyond the full ones: less than whole."""
    less = {t.atom: minimum(t.whole - 1, t.rest) for t in tails if t.exact}

    def index(expression: Expr) -> Expr:
        if not any(atom in less for atom in expression.atoms()):
            return expression
        return expression.map_atoms(lambda atom: less.get(atom) or Expr((((atom,), 1),)))

    return index


def roll(statement: Statement) -> Statement:
    """Steps that were unrolled, in one serial loop: short tiles come in many lengths, and each has
    a copy of the code.

    for t in ceil(n/4): unroll u in min(4, n - 4*t): s(4*t + u)   -->  for u in n: s(u)
    """
    match statement:
        case Loop(_, _, "serial", Loop(_, _, "unroll")):
            rolled = _rolled(statement)
            return replace(rolled, body=roll(rolled.body))
        case Loop() | Intrinsic() | Allocate():
            return replace(statement, body=roll(statement.body))
        case Sequence(statements):
            return sequence(*(roll(s) for s in statements))
        case If(condition, then, otherwise):
            other = roll(otherwise) if otherwise is not None else None
            return If(condition, roll(then), other)
        case _:
            return statement


def _rolled(loop: Loop) -> Loop:
    inner = loop.body
    assert isinstance(inner, Loop)
    whole = most_of(inner.extent)
    ends = [side.substitute({loop.variable: ZERO}) for side in sides(inner.extent)]
    steady = whole is not None and all(
        side.constant == whole or side + whole * var(loop.variable) == end
        for side, end in zip(sides(inner.extent), ends, strict=True)
    )
    if whole is None or not steady or not _steps(inner, loop.variable, whole):
        return loop
    total = loop.extent * whole
    for end in ends:
        total = total if end.constant == whole else minimum(total, end)
    body = substitute(inner.body, {loop.variable: ZERO})
    return Loop(inner.variable, total, "serial", body)


def _steps(inner: Loop, outer: str, whole: int) -> bool:
    """Whether everything inside moves with whole*outer + inner, and so no register does."""
    expressions: list[Expr] = []

    def note(expression: Expr) -> Expr:
        expressions.append(expression)
        return expression

    transform(inner.body, note)
    for expression in expressions:
        fast, slow = expression.coefficient(inner.variable), expression.coefficient(outer)
        if fast is None or slow is None or slow != fast * whole:
            return False
    return True


def _full(variable: str, whole: int, rest: Expr, tops: Mapping[str, int | None]) -> Expr | None:
    """For how many iterations `rest >= whole`, wherever the loops inside stand.

    `rest` must be n - period*variable - (multiples of variables inside).
    """
    factor = rest.coefficient(variable)
    if factor is None or factor.constant is None or factor.constant >= 0:
        return None
    period = -factor.constant
    others = rest + period * var(variable)
    for name in others.variables() & tops.keys():
        step, top = others.coefficient(name), tops[name]
        if step is None or step.constant is None or top is None:
            return None
        others = others - step * var(name) + min(0, step.constant * (top - 1))
    if others.variables() & {variable, *tops}:
        return None
    return floordiv(others - whole + period, period)


# -- constants --------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Settler:
    """Makes the extents of unrolled loops constant.

    Attributes:
        fixed: buffers whose indices have to be numbers while code is made.
    """

    fixed: frozenset[str]

    def settle(self, statement: Statement) -> Statement:
        extent = self._deciding(statement)
        if extent is not None:
            return self._copies(statement, extent, 0, self._limit(extent))
        match statement:
            case Loop(_, extent, "vector") if extent.constant is None:
                self._limit(extent)
                return replace(statement, body=self.settle(statement.body))
            case Loop(_, extent, "unroll") if extent.constant is None:
                return self.settle(simplify(cut_loop(replace(statement, kind="serial"))))
            case Loop() | Intrinsic() | Allocate():
                return replace(statement, body=self.settle(statement.body))
            case Sequence(statements):
                return sequence(*(self.settle(s) for s in statements))
            case If(condition, then, otherwise):
                other = self.settle(otherwise) if otherwise is not None else None
                return If(condition, self.settle(then), other)
            case _:
                return statement

    def _limit(self, extent: Expr) -> int:
        most = most_of(extent)
        if most is None:
            raise ScheduleError(
                f"a loop would be unrolled {extent} times, which varies; choose a configuration "
                "that unrolls tiles of fixed sizes"
            )
        return most

    def _deciding(self, statement: Statement) -> Expr | None:
        """The extent of an unrolled loop inside whose variable chooses registers, if it is known
        here: it hangs on no loop inside."""
        inside = {s.variable for s in walk(statement) if isinstance(s, Loop)}
        for nested in walk(statement):
            if (
                isinstance(nested, Loop)
                and nested.kind == "unroll"
                and nested.extent.constant is None
                and not nested.extent.variables() & inside
                and self._chooses(nested)
            ):
                return nested.extent
        return None

    def _copies(self, statement: Statement, extent: Expr, low: int, high: int) -> Statement:
        """The statement for extents from `low` to `high`, parted by halves until one is left."""
        if low == high:
            known = simplify(_with_extent(statement, extent, const(low)))
            return self.settle(simplify(peel_tails(known)))
        middle = (low + high + 1) // 2
        condition = tuple(e - middle for e in sides(extent) if e.constant is None)
        return If(
            condition,
            self._copies(statement, extent, middle, high),
            self._copies(statement, extent, low, middle - 1),
        )

    def _chooses(self, loop: Loop) -> bool:
        """Whether the loop's variable chooses a register."""
        for block in blocks(loop.body):
            for access in (block.write, *loads(block.value)):
                if access.buffer in self.fixed and any(
                    loop.variable in index.variables() for index in access.indices
                ):
                    return True
        return False


def _with_extent(statement: Statement, old: Expr, new: Expr) -> Statement:
    """Every loop of one extent with another."""
    match statement:
        case Loop(extent=extent, body=body):
            inner = _with_extent(body, old, new)
            return replace(statement, extent=new if extent == old else extent, body=inner)
        case Intrinsic() | Allocate():
            return replace(statement, body=_with_extent(statement.body, old, new))
        case Sequence(statements):
            return sequence(*(_with_extent(s, old, new) for s in statements))
        case If(condition, then, otherwise):
            other = _with_extent(otherwise, old, new) if otherwise is not None else None
            return If(condition, _with_extent(then, old, new), other)
        case _:
            return statement
