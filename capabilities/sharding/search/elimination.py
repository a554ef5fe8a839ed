"""Reducing a problem before it is solved: variables are eliminated without loss, one by one.

A problem is a sum of tables over variables of few values: what options cost, and what moves between
a writer's specs and its readers' cost. Eliminating a variable replaces the tables it is in by their
sum, minimised over it: the optimum stays what it was (Bertele and Brioschi, "Nonserial Dynamic
Programming", 1972; with tables of two variables the reductions of Scholz and Eckstein). A chain of
operators so becomes one table between its ends, a layer of a transformer little more, and what is
left for the solver does not grow with the operators. Invariants: costs are whole numbers in float64
(below 2^53), infinity for what cannot be; deterministic.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]

WIDEST = 1 << 28
"""Entries that an elimination may look at, the variable's own values included: about a second."""

HELD = 1 << 23
"""Entries of the largest table that is made."""


@dataclass(frozen=True, eq=False)
class _Table:
    """What a choice of values for some variables costs."""

    variables: tuple[int, ...]
    costs: Costs


@dataclass
class CostNetwork:
    """Variables, by how many values each has, and tables over them."""

    sizes: list[int] = field(default_factory=list)
    tables: list[_Table] = field(default_factory=list)

    def variable(self, costs: Sequence[float]) -> int:
        """A variable with a cost for each value; its number."""
        self.sizes.append(len(costs))
        number = len(self.sizes) - 1
        self.add((number,), np.array(costs, np.float64))
        return number

    def add(self, variables: Sequence[int], costs: Costs) -> None:
        """A table over variables, an axis of it for each."""
        assert costs.shape == tuple(self.sizes[v] for v in variables), (variables, costs.shape)
        self.tables.append(_Table(tuple(variables), costs))

    def cost(self, values: Mapping[int, int]) -> float:
        """What a choice of values costs."""
        return float(sum(t.costs[tuple(values[v] for v in t.variables)] for t in self.tables))


@dataclass(frozen=True, eq=False)
class ReducedNetwork:
    """What is left of a network, and how values of the rest follow from values of that.

    Attributes:
        tables: over the variables that are left, one for each set of them.
        constant: cost of whatever is chosen.
    """

    sizes: Mapping[int, int]
    tables: tuple[_Table, ...]
    constant: float
    eliminated: tuple[tuple[int, tuple[_Table, ...]], ...]

    @property
    def tuples(self) -> int:
        """Entries of tables of more than one variable: what a solver has to look at."""
        return sum(int(np.isfinite(t.costs).sum()) for t in self.tables if len(t.variables) > 1)

    def complete(self, values: Mapping[int, int]) -> dict[int, int]:
        """Values of all variables, from those of the ones left."""
        assigned = dict(values)
        for variable, tables in reversed(self.eliminated):
            total: Costs | float = 0.0
            for table in tables:
                index = tuple(
                    slice(None) if v == variable else assigned[v] for v in table.variables
                )
                total = total + table.costs[index]
            assigned[variable] = int(np.argmin(total))
        return assigned


def reduce(network: CostNetwork, small: int, widest: int = WIDEST) -> ReducedNetwork:
    """Eliminate until few entries are left, or nothing can be without too large a table.

    Args:
        small: entries that are few enough.
    """
    return _Reduction(network, widest).run(small)


class _Reduction:
    def __init__(self, network: CostNetwork, widest: int) -> None:
        self.sizes = dict(enumerate(network.sizes))
        self.widest = widest
        self.tables: dict[tuple[int, ...], _Table] = {}
        self.of: dict[int, set[tuple[int, ...]]] = {v: set() for v in self.sizes}
        self.constant = 0.0
        self.eliminated: list[tuple[int, tuple[_Table, ...]]] = []
        for table in network.tables:
            self._put(table)

    def run(self, small: int) -> ReducedNetwork:
        total = sum(t.costs.size for t in self.tables.values() if len(t.variables) > 1)
        scores = {variable: self._score(variable) for variable in self.sizes}
        while scores and total > small:
            variable = min(scores, key=lambda v: (scores[v], v))
            wide = scores[variable] // self.sizes[variable] > HELD
            if wide or scores[variable] > self.widest:
                break
            beside = {v for key in self.of[variable] for v in key} - {variable}
            total -= sum(self.tables[k].costs.size for k in self.of[variable] if len(k) > 1)
            total -= self._size(tuple(sorted(beside)))
            self._eliminate(variable, tuple(sorted(beside)))
            total += self._size(tuple(sorted(beside)))
            del scores[variable]
            for other in beside:
                scores[other] = self._score(other)
        return ReducedNetwork(
            dict(self.sizes), tuple(self.tables.values()), self.constant, tuple(self.eliminated)
        )

    def _size(self, key: tuple[int, ...]) -> int:
        """Entries of the table over these variables, if there is one of several."""
        return self.tables[key].costs.size if len(key) > 1 and key in self.tables else 0

    def _score(self, variable: int) -> int:
        """Entries that eliminating a variable has to look at."""
        beside = {v for key in self.of[variable] for v in key}
        return math.prod(self.sizes[v] for v in beside)

    def _put(self, table: _Table) -> None:
        order = sorted(range(len(table.variables)), key=lambda n: table.variables[n])
        key = tuple(table.variables[n] for n in order)
        costs = np.transpose(table.costs, order)
        if not key:
            self.constant += float(costs)
            return
        known = self.tables.get(key)
        self.tables[key] = _Table(key, costs if known is None else known.costs + costs)
        for variable in key:
            self.of[variable].add(key)

    def _eliminate(self, variable: int, beside: tuple[int, ...]) -> None:
        """Join the tables of a variable and minimise over it."""
        joined = tuple(self.tables.pop(key) for key in sorted(self.of.pop(variable)))
        for table in joined:
            for other in table.variables:
                if other != variable:
                    self.of[other].discard(table.variables)
        axes = (*beside, variable)
        spread = [_spread(table, axes) for table in joined]
        best = np.full(tuple(self.sizes[v] for v in beside), np.inf)
        for value in range(self.sizes[variable]):  # never all values at once: a table less
            total = np.zeros(())
            for costs in spread:
                total = total + costs[..., value if costs.shape[-1] > 1 else 0]
            best = np.minimum(best, total)
        self.eliminated.append((variable, joined))
        del self.sizes[variable]
        self._put(_Table(beside, best))


def _spread(table: _Table, axes: Sequence[int]) -> Costs:
    """A table with an axis for each of more variables, one long where it has none."""
    order = [table.variables.index(v) for v in axes if v in table.variables]
    shape = [
        table.costs.shape[table.variables.index(v)] if v in table.variables else 1 for v in axes
    ]
    return np.transpose(table.costs, order).reshape(shape)
