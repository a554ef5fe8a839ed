"""The best sharding of a model that fits a core's memory.

Without regard to memory first: mostly that fits, and is the optimum. Else weights get a price that
is raised until they fit; of all shardings that fit the cheapest is taken, and the best bound of all
prices says how far from the optimum it may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilesmith.compiler.graph import Graph
from tilesmith.compiler.sharding.costs import Costs
from tilesmith.compiler.sharding.optimum import EFFORT, Optimum, optimum
from tilesmith.compiler.sharding.partition import Sharding, partition
from tilesmith.compiler.sharding.problem import Problem, problem_of
from tilesmith.compiler.sharding.program import Program
from tilesmith.compiler.sharding.specs import Spec

_PRICES = 12
"""How many prices of memory are tried between the last too low and the first high enough."""


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
    limit = costs.core_bytes if limit is None else limit
    first = _made(problem, optimum(problem, effort), 0.0, limit)
    return first if not first.missing else _Short(problem, effort, limit).best(first)


def _made(problem: Problem, found: Optimum, price: float, limit: int) -> Best:
    """A choice as a program. Its bound is that of all choices whose weights fit the limit."""
    sharding = problem.sharding(found.chosen)
    program = partition(sharding)
    needed = program.weight_bytes + program.activation_bytes
    bound = found.bound - round(price * limit)
    cost = problem.cost(found.chosen)
    return Best(sharding, program, cost, bound, max(0, needed - limit))


@dataclass(frozen=True)
class _Short:
    """The search for a price of memory at which a model fits."""

    problem: Problem
    effort: float
    limit: int

    def best(self, free: Best) -> Best:
        low, high = 0.0, max(1.0, free.objective / max(1, self.limit)) * 1e-3
        tried = [free]
        for _ in range(40):  # up to where a byte costs far more than any collective
            found = self._at(high)
            tried.append(found)
            if not found.missing or (found.program.weight_bytes == tried[-2].program.weight_bytes \
                    and high > 1e6):  # fmt: skip
                break
            low, high = high, high * 8
        if not tried[-1].missing:
            for _ in range(_PRICES):
                middle = (low * high) ** 0.5 if low else high / 8
                found = self._at(middle)
                tried.append(found)
                low, high = (middle, high) if found.missing else (low, middle)
        bound = max(one.bound for one in tried)
        fitting = [one for one in tried if not one.missing]
        if not fitting:
            return min(tried, key=lambda one: one.missing)
        chosen = min(fitting, key=lambda one: one.objective)
        return Best(chosen.sharding, chosen.program, chosen.objective, min(bound, chosen.objective))

    def _at(self, price: float) -> Best:
        return _made(self.problem, optimum(self.problem, self.effort, price), price, self.limit)
