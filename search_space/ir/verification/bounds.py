"""Proofs about index expressions: is `e >= 0` for every iteration of the loops around it?

Variables are eliminated one by one, innermost first, each set to the end of its range that makes
`e`
smallest; a tail's extent `min(f, n - f*t)` offers two ends, and one that works is enough:

    n - 1 - (f*t + i)  with  i < min(f, n - f*t)   -->  n - 1 - f*t - (n - f*t - 1) = 0

Conditions known to hold there (guards, selects) are used likewise. Where every extent is a number,
`holds` counts the iterations through: first if they are few, which takes less time than a proof
that fails, else where no proof is found.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.expressions.expression import Atom, Expr, const
from tilesmith.search_space.expressions.ranges import nonnegative
from tilesmith.search_space.expressions.scalar import Condition

COUNT_LIMIT = 1 << 18
"""Iterations that are counted through; beyond it each loop gives its first and last two, or one."""

_FEW = 1 << 13
"""Iterations that are counted through in the time of a proof, a millisecond."""


@dataclass(frozen=True)
class Surroundings:
    """What is known at a point of a program.

    Attributes:
        extents: of the loops around, outermost first; their variables start at 0.
        facts: expressions known to be >= 0.
        tops: largest value of each variable whose extent has an evident bound.
        proofs: what came of each proof tried here, by expression and facts: minima and facts lead
            to the same expressions by many ways.
    """

    extents: dict[str, Expr] = field(default_factory=dict)
    facts: Condition = ()
    tops: dict[str, int] = field(default_factory=dict)
    proofs: dict[tuple[Expr, Condition], bool] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def inside(self, variable: str, extent: Expr) -> "Surroundings":
        """Return what is known inside the body of a loop over `variable`."""
        ends = [self._evident(-end) for end in _ends(extent)]
        known = [-end - 1 for end in ends if end is not None]
        tops = {**self.tops, variable: min(known)} if known else self.tops
        return replace(self, extents={**self.extents, variable: extent}, tops=tops)

    def knowing(self, facts: Condition) -> "Surroundings":
        """Where more conditions hold."""
        return replace(self, facts=(*self.facts, *facts)) if facts else self

    def otherwise(self, condition: Condition) -> "Surroundings":
        """Where a condition does not hold; only a single expression says anything then."""
        return self.knowing((-condition[0] - 1,)) if len(condition) == 1 else self

    def proves(self, expression: Expr) -> bool:
        """Whether `expression >= 0` can be proved; symbols are taken to be >= 1."""
        if self._is_evident(expression) or self._prove(expression, self.facts):
            return True
        beyond = ((expression - fact).constant for fact in self.facts)
        return any(constant is not None and constant >= 0 for constant in beyond)

    def holds(self, expression: Expr) -> bool:
        """Whether `expression >= 0` in every iteration; all extents must be numbers when bound."""
        if self._is_evident(expression):
            return True
        wanted = self._countable(expression)
        rows = None if wanted is None else _rows(wanted, COUNT_LIMIT, _FEW)
        if rows is not None:
            return self._counted(expression, rows)
        if self.proves(expression):
            return True
        rows = None if wanted is None else _grid(wanted)
        return rows is not None and self._counted(expression, rows)

    def evidently_inside(self, index: Expr, extent: Expr) -> bool:
        """Whether `0 <= index < extent` shows term by term: quick, False where it takes a proof."""
        most = extent.constant
        low = self._evident(index) if most is not None else None
        if most is None or low is None or low < 0:
            return False
        high = self._evident(-index)
        return high is not None and most - 1 + high >= 0

    def _is_evident(self, expression: Expr) -> bool:
        least = self._evident(expression)
        return least is not None and least >= 0

    def _evident(self, expression: Expr) -> int | None:
        """A lower bound term by term: quick, and enough wherever there is no tail."""
        total = 0
        for monomial, factor in expression.terms:
            if not monomial:
                total += factor
            elif len(monomial) > 1 or monomial[0].kind != "var":
                return None
            elif factor < 0:
                top = self.tops.get(monomial[0].name)
                if top is None:
                    return None
                total += factor * top
            elif monomial[0].name not in self.extents:
                return None
        return total

    # -- proof --------------------------------------------------------------------------------
    def _prove(self, expression: Expr, facts: Condition) -> bool:
        number = expression.constant
        if number is not None:
            return number >= 0
        known = self.proofs.get((expression, facts))
        if known is None:
            known = self.proofs[expression, facts] = self._proved(expression, facts)
        return known

    def _proved(self, expression: Expr, facts: Condition) -> bool:
        for monomial, factor in expression.terms:
            atom = next((a for a in monomial if a.kind != "var"), None)
            if atom is not None:
                if len(monomial) > 1:
                    return False
                rest = expression - Expr(((monomial, factor),))
                return self._prove_atom(atom, factor, rest, facts)
        if self._eliminate(expression, facts):
            return True
        return any(self._prove(expression - fact, ()) for fact in facts)

    def _prove_atom(self, atom: Atom, factor: int, rest: Expr, facts: Condition) -> bool:
        """`factor*atom + rest >= 0`."""
        left, right = atom.left, atom.right
        assert left is not None and right is not None
        if atom.kind in ("min", "max"):
            sides = (self._prove(side * factor + rest, facts) for side in (left, right))
            return all(sides) if (atom.kind == "min") == (factor > 0) else any(sides)
        divisor = right.constant
        if divisor is None:
            return False
        if atom.kind == "element":
            return self._prove(rest + min(0, factor * (divisor - 1)), facts)
        if atom.kind == "mod":
            if self._prove(left, facts) and self._prove(right - 1 - left, facts):
                return self._prove(left * factor + rest, facts)
            return self._prove(rest + min(0, factor * (divisor - 1)), facts)
        if factor == 1:  # left//d >= -rest  <=>  left >= -rest*d
            return self._prove(left + rest * divisor, facts)
        if factor == -1:  # left//d <= rest  <=>  left < (rest + 1)*d
            return self._prove(rest * divisor + divisor - 1 - left, facts)
        slack = (divisor - 1) * max(0, factor)
        return self._prove(left * factor - slack + rest * divisor, facts)

    def _eliminate(self, expression: Expr, facts: Condition) -> bool:
        """Set the innermost loop variable of a polynomial to its worst value."""
        names = expression.variables()
        variable = next((name for name in reversed(self.extents) if name in names), None)
        if variable is None:
            return nonnegative(expression)
        factor = expression.coefficient(variable)
        if factor is None:
            return False
        if nonnegative(factor):
            return self._prove(expression.substitute({variable: const(0)}), facts)
        if not nonnegative(-factor):
            return False
        extent = self.extents[variable]
        return any(
            self._prove(expression.substitute({variable: end - 1}), facts) for end in _ends(extent)
        )

    # -- counting -----------------------------------------------------------------------------
    def _countable(self, expression: Expr) -> dict[str, Expr] | None:
        """The loops whose iterations decide about an expression; None where numbers do not say."""
        wanted = self.closure((expression, *self.facts))
        if wanted is None or any(_reads_memory(e) for e in (expression, *self.facts)):
            return None
        return {name: self.extents[name] for name in wanted}

    def _counted(self, expression: Expr, rows: "_Rows") -> bool:
        """Whether it is >= 0 in all of these iterations in which the facts hold."""
        count = len(next(iter(rows.values()))) if rows else 1
        valid = np.ones(count, dtype=np.bool_)
        for fact in self.facts:
            valid &= np.broadcast_to(fact.evaluate(rows) >= 0, valid.shape)
        holds = np.broadcast_to(expression.evaluate(rows) >= 0, valid.shape)
        return bool(np.all(holds | ~valid))

    def closure(self, expressions: Iterable[Expr]) -> list[str] | None:
        """Loops an expression depends on, extents included, outermost first; None: a symbol."""
        needed: set[str] = set()
        pending = {name for e in expressions for name in e.variables()}
        while pending:
            name = pending.pop()
            if name not in self.extents:
                return None
            if name not in needed:
                needed.add(name)
                pending |= self.extents[name].variables()
        return [name for name in self.extents if name in needed]


def _reads_memory(expression: Expr) -> bool:
    """Whether an index in it is known at run time only."""
    return any(
        atom.kind == "element"
        or any(side is not None and _reads_memory(side) for side in (atom.left, atom.right))
        for atom in expression.atoms()
    )


def _ends(extent: Expr) -> list[Expr]:
    """Upper bounds of an extent: the sides of its minima, if it is one, else itself."""
    if len(extent.terms) == 1 and extent.terms[0][1] == 1 and len(extent.terms[0][0]) == 1:
        atom = extent.terms[0][0][0]
        if atom.kind == "min":
            return [end for side in atom.operands for end in _ends(side)]
    return [extent]


_Rows = dict[str, NDArray[np.int64]]
"""Iterations of nested loops, one array for each variable."""


def _grid(extents: dict[str, Expr]) -> _Rows | None:
    """Iterations of nested loops: all, or their corners.

    None where even the corners are too many to count.
    """
    for width in (COUNT_LIMIT, 4, 2):
        rows = _rows(extents, width, COUNT_LIMIT)
        if rows is not None:
            return rows
    return None


def _rows(extents: dict[str, Expr], width: int, limit: int) -> _Rows | None:
    """Up to `width` iterations of each loop, half from either end; None if more than `limit`."""
    rows: _Rows = {}
    count = 1
    for name, extent in extents.items():
        sizes = np.broadcast_to(np.asarray(extent.evaluate(rows), dtype=np.int64), (count,))
        sizes = np.maximum(sizes, 0)
        kept = np.minimum(sizes, width)
        count = int(kept.sum())
        if count > limit:
            return None
        owner = np.repeat(np.arange(len(kept)), kept)
        position = np.arange(count) - np.repeat(np.cumsum(kept) - kept, kept)
        beyond = position >= (kept[owner] + 1) // 2
        rows = {known: column[owner] for known, column in rows.items()}
        rows[name] = np.where(beyond, position + (sizes - kept)[owner], position)
    return rows
