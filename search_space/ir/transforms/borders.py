"""Frames of zeros that sums of products read in place: which taps are in them is known in advance.

    for x in 7: for r in 3: unroll s, i: y[i] += (d[u + r - 1, 8*x + i + s - 1] if .. else 0) * w
    -->  the same for x = 0 and x = 6, where s and i decide each tap while code is made, and
         for x in 5: for r in 3: if u + r - 1 in the image: unroll s, i: y[i] += d[..] * w
                                 else: unroll s, i: y[i] += 0 * w

Valid in: symbols bound, tails peeled. Valid out: the same values (0 * w may be NaN).
"""

from dataclasses import replace

from tilesmith.search_space.expressions.expression import Expr, const, var
from tilesmith.search_space.expressions.ranges import lower
from tilesmith.search_space.expressions.scalar import Call, Const, Select
from tilesmith.search_space.ir import program as ir
from tilesmith.search_space.ir.transforms.simplification import simplify, substitute

MOST_APART = 6
"""Iterations at both ends of a loop that are made apart."""


def at_borders(statement: ir.Statement) -> ir.Statement:
    """See the module's docstring."""
    tests = {e for block in ir.blocks(statement) for e in _in_place(block).condition}
    if not tests:
        return statement
    match statement:
        case ir.Loop(variable, kind="vector") if any(variable in e.variables() for e in tests):
            return statement
        case ir.Loop(variable, extent, kind, body):
            first, after = _inside(statement, tests) if kind == "serial" else (0, 0)
            if not 0 < first + (extent.constant or 0) - after <= MOST_APART or not after:
                return _lifted(replace(statement, body=at_borders(body)))
            ends = [simplify(substitute(body, {variable: const(i)}))
                    for i in range(extent.constant or 0) if not first <= i < after]  # fmt: skip
            apart = [at_borders(end) for end in ends]
            moved = at_borders(substitute(body, {variable: var(variable) + first}))
            main = simplify(replace(statement, extent=const(after - first), body=moved))
            return ir.sequence(*apart[:first], main, *apart[first:])
        case ir.Sequence(statements):
            return ir.sequence(*(at_borders(s) for s in statements))
        case ir.If(condition, then, otherwise):
            return ir.If(condition, at_borders(then), otherwise and at_borders(otherwise))
        case ir.Block():
            return _in_place(statement)
        case _:
            return replace(statement, body=at_borders(statement.body))


def _in_place(block: ir.Block) -> ir.If:
    """A block apart from itself where a factor of its product is a zero of a frame."""
    match block.value:
        case Call("multiply", (Select(condition, then, Const(0.0) as zero), other)):
            if block.reducer == "sum":
                sides = (Call("multiply", (factor, other)) for factor in (then, zero))
                return ir.If(condition, *(replace(block, value=value) for value in sides))
    return ir.If((), block)


def _inside(loop: ir.Loop, tests: set[Expr]) -> tuple[int, int]:
    """From which iteration of a loop on, and up to which, tests hold that it decides alone; (0, 0)
    where that is nowhere."""
    first, after = 0, loop.extent.constant or 0
    tops = {s.variable: s.extent - 1 for s in ir.walk(loop.body) if isinstance(s, ir.Loop)}
    for least in (lower(test, tops) for test in tests):
        factor = least.coefficient(loop.variable)
        step = factor.constant if factor is not None else None
        rest = (least - const(step) * var(loop.variable)).constant if step else None
        if step and rest is not None:
            first = max(first, -(rest // step)) if step > 0 else first
            after = min(after, rest // -step + 1) if step < 0 else after
    return (first, after) if first < after else (0, 0)


def _lifted(loop: ir.Loop) -> ir.Statement:
    """A loop whose body is conditional, inside what of the condition is the same for all of it."""
    body = loop.body
    if not isinstance(body, ir.If) or body.otherwise is None:
        return loop
    inner = tuple(e for e in body.condition if loop.variable in e.variables())
    outer = tuple(e for e in body.condition if loop.variable not in e.variables())
    kept = replace(loop, body=ir.simplify_if(inner, body.then, body.otherwise))
    return ir.simplify_if(outer, kept, replace(loop, body=body.otherwise))
