"""Specialisation: the inside of a padded or masked loop without its conditions.

Padding and masked reductions put `Select`s into values: a test for each tap of each element, though
only the border ever fails it. Two passes over bound programs:

`decide`: conditions that loop bounds prove or refute vanish.

`specialise`: the innermost real loop around several conditions gets a version without them:

    for x in 56: unroll s in 3: y[x] max= d[2*x + s - 1] if 2*x + s - 1 >= 0 and ... else -inf
    -->  for x in 56: if 2*x - 1 >= 0 and ..: unroll s in 3: y[x] max= d[2*x + s - 1]
                      else: as before

Valid in: symbols bound. Valid out: the same values; at most two versions of a loop body.

`finish`: every pass between a bound program and code: trivial loops, tails, then conditions.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from tilesmith.search_space.expressions.expression import Expr, maximum
from tilesmith.search_space.expressions.ranges import Bounds, lower, upper
from tilesmith.search_space.expressions.scalar import Call, Condition, Scalar, Select
from tilesmith.search_space.ir.program import (
    Allocate,
    Block,
    If,
    Intrinsic,
    Loop,
    Program,
    Sequence,
    Statement,
    blocks,
    walk,
)
from tilesmith.search_space.ir.transforms.borders import at_borders
from tilesmith.search_space.ir.transforms.ragged import finish_tails, within_ranges
from tilesmith.search_space.ir.transforms.simplification import peel_tails, simplify


def decide(statement: Statement, bounds: Bounds | None = None) -> Statement:
    """Drop from every select what the bounds of the loops around it decide."""
    bounds = bounds or {}
    match statement:
        case Loop(variable, extent, _, body):
            inner = {**bounds, variable: upper(extent, bounds) - 1}
            return replace(statement, body=decide(body, inner))
        case Sequence(statements):
            return Sequence(tuple(decide(s, bounds) for s in statements))
        case If(condition, then, otherwise):
            other = decide(otherwise, bounds) if otherwise is not None else None
            return If(condition, decide(then, bounds), other)
        case Allocate() | Intrinsic():
            return replace(statement, body=decide(statement.body, bounds))
        case Block():
            return replace(statement, value=_decide_value(statement.value, bounds))


def _decide_value(value: Scalar, bounds: Bounds) -> Scalar:
    match value:
        case Select(condition, then, otherwise):
            tops = [upper(e, bounds).constant for e in condition]
            if any(top is not None and top < 0 for top in tops):
                return _decide_value(otherwise, bounds)
            lows = [lower(e, bounds).constant for e in condition]
            pairs = zip(condition, lows, strict=True)
            rest = tuple(e for e, low in pairs if low is None or low < 0)
            then = _decide_value(then, bounds)
            return Select(rest, then, _decide_value(otherwise, bounds)) if rest else then
        case Call(function, arguments):
            return Call(function, tuple(_decide_value(a, bounds) for a in arguments))
        case _:
            return value


def specialise(statement: Statement) -> Statement:
    """See the module's docstring."""
    match statement:
        case Loop(_, _, kind, body):
            if kind in ("serial", "parallel") and not _has_real_loop(body):
                return replace(statement, body=_two_versions(body))
            return replace(statement, body=specialise(body))
        case Sequence(statements):
            return Sequence(tuple(specialise(s) for s in statements))
        case If(condition, then, otherwise):
            other = specialise(otherwise) if otherwise is not None else None
            return If(condition, specialise(then), other)
        case Allocate() | Intrinsic():
            return replace(statement, body=specialise(statement.body))
        case Block():
            return statement


def _has_real_loop(statement: Statement) -> bool:
    return any(isinstance(s, Loop) and s.kind in ("serial", "parallel") for s in walk(statement))


def _two_versions(statement: Statement) -> Statement:
    """A statement behind the test that all its selects hold, where that saves tests."""
    match statement:
        case Sequence(statements):
            return Sequence(tuple(_two_versions(s) for s in statements))
        case If(condition, then, otherwise):
            other = _two_versions(otherwise) if otherwise is not None else None
            return If(condition, _two_versions(then), other)
        case Allocate():
            return replace(statement, body=_two_versions(statement.body))
        case Loop() | Intrinsic():
            lows = _tests(statement)
            return If(lows, _without_selects(statement), statement) if lows else statement
        case _:
            return statement


def _tests(loop: Loop | Intrinsic) -> Condition:
    """What must be >= 0 for every select in unrolled loops to hold; empty if it saves nothing."""
    inner = [part for part in walk(loop) if isinstance(part, Loop)]
    if any(part.extent.constant is None for part in inner):
        return ()
    bounds: dict[str, Expr] = {}
    for nested in inner:
        top = nested.extent - 1
        bounds[nested.variable] = maximum(bounds.get(nested.variable, top), top)
    conditions = {e for block in blocks(loop) for e in _conditions(block.value)}
    if all(e.variables().isdisjoint(bounds) for e in conditions):
        return ()
    lows = {lower(e, bounds) for e in conditions}
    if any((low.constant or 0) < 0 for low in lows):
        return ()  # some element always fails: there is no version without tests
    return tuple(sorted((low for low in lows if low.constant is None), key=str))


def _conditions(value: Scalar) -> Iterator[Expr]:
    """Of every select on the way taken when all hold."""
    match value:
        case Select(condition, then, _):
            yield from condition
            yield from _conditions(then)
        case Call(_, arguments):
            for argument in arguments:
                yield from _conditions(argument)


def _without_selects(statement: Statement) -> Statement:
    match statement:
        case Loop() | Allocate() | Intrinsic():
            return replace(statement, body=_without_selects(statement.body))
        case Sequence(statements):
            return Sequence(tuple(_without_selects(s) for s in statements))
        case If(condition, then, otherwise):
            other = _without_selects(otherwise) if otherwise is not None else None
            return If(condition, _without_selects(then), other)
        case Block():
            return replace(statement, value=_taken(statement.value))


def _taken(value: Scalar) -> Scalar:
    """A value whose conditions all hold."""
    match value:
        case Select(_, then, _):
            return _taken(then)
        case Call(function, arguments):
            return Call(function, tuple(_taken(a) for a in arguments))
        case _:
            return value


def finish(program: Program) -> Program:
    """Return the program with constant extents wherever code generators need them.

    Raises:
        ScheduleError: a loop would be unrolled as often as a size says.
    """

    return _varying(program) if program.sizes else _finished(program)


@lru_cache(maxsize=8)
def _varying(program: Program) -> Program:
    """Kept for who verifies it, as it takes seconds where short tiles come in many lengths."""
    return _finished(within_ranges(program))


def _finished(program: Program) -> Program:
    def peeled(statement: Statement) -> Statement:
        return simplify(peel_tails(simplify(statement)))

    def decided(statement: Statement) -> Statement:
        return specialise(decide(statement))

    prologue = decided(peeled(program.prologue)) if program.prologue is not None else None
    whole = replace(program, body=peeled(program.body), prologue=prologue)
    whole = finish_tails(whole) if program.sizes else replace(whole, body=at_borders(whole.body))
    return replace(whole, body=decided(whole.body))
