"""The best sharding of a model that fits a core's memory.

Without regard to memory first: mostly that fits, and is the optimum. Else weights get a price that
is raised until they fit; of all shardings that fit the cheapest is taken, and the best bound of all
prices says how far from the optimum it may be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilesmith.compiler.graph import Graph
from tilesmith.compiler.sharding.costs import Costs
from tilesmith.compiler.sharding.optimum import EFFORT, optimum
from tilesmith.compiler.sharding.partition import Sharding, partition
from tilesmith.compiler.sharding.problem import Problem, problem_of
from tilesmith.compiler.sharding.program import Program
from tilesmith.compiler.sharding.specs import Spec
from tilesmith.compiler.sharding.tables import Tables

_CHEAP, _DEAR = 1e-7, 1e2
"""ns a byte: what changes nothing, and more than anything costs that moves a byte."""

_PRICES = 12
"""How many prices are tried between these."""


@dataclass(frozen=True, eq=False)
class Best:
    """A sharding, its program, what it costs, and what none that fits costs less than, in ns.

    Attributes:
        missing: bytes that a core lacks even so; 0 where it fits.
    """

    sharding: Sharding
    program: Program
    objective: int
    bound: int
    missing: int = 0


def best_sharding(
    graph: Graph,
    costs: Costs,
    given: Mapping[str, Spec],
    effort: float = EFFORT,
    limit: int | None = None,
) -> Best:
    """The cheapest sharding that keeps the given specs and a core's memory.

    Args:
        limit: bytes of a core; its memory's if None.

    Raises:
        DependencyError: OR-tools is not installed.
    """
    problem = problem_of(graph, costs, given)
    search = _Search(problem, Tables(problem), effort, costs.core_bytes if limit is None else limit)
    first = search.at(0.0)
    return first if not first.missing else search.short(first)


@dataclass(frozen=True)
class _Search:
    """The best shardings at prices of memory."""

    problem: Problem
    tables: Tables
    effort: float
    limit: int

    def at(self, price: float) -> Best:
        """The best at a price. Its bound is that of all shardings whose weights fit the limit."""
        found = optimum(self.problem, self.effort, price, self.tables)
        sharding = self.problem.sharding(found.chosen)
        program = partition(sharding)
        missing = program.weight_bytes + program.activation_bytes - self.limit
        bound = found.bound - round(price * self.limit)
        cost = self.problem.cost(found.chosen)
        return Best(sharding, program, cost, bound, max(0, missing))

    def short(self, free: Best) -> Best:
        """The best of those that fit, where the cheapest of all does not."""
        low, high = _CHEAP, _DEAR
        tried = [free, self.at(high)]
        if tried[-1].missing:  # whatever weights cost, it does not fit
            return min(tried, key=lambda one: one.missing)
        for _ in range(_PRICES):
            price = math.sqrt(low * high)
            tried.append(self.at(price))
            low, high = (price, high) if tried[-1].missing else (low, price)
        chosen = min((one for one in tried if not one.missing), key=lambda one: one.objective)
        return replace(chosen, bound=min(chosen.objective, max(one.bound for one in tried)))
