"""The best sharding of a model: the problem, its optimum, and what it says of memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilesmith.compiler.graph import Graph
from tilesmith.compiler.sharding.costs import Costs
from tilesmith.compiler.sharding.optimum import optimum
from tilesmith.compiler.sharding.partition import Sharding
from tilesmith.compiler.sharding.problem import problem_of
from tilesmith.compiler.sharding.specs import Spec


@dataclass(frozen=True, eq=False)
class Best:
    """A sharding, what it costs, and what none costs less than, in ns."""

    sharding: Sharding
    objective: int
    bound: int
    proved: bool


def best_sharding(
    graph: Graph, costs: Costs, given: Mapping[str, Spec], effort: float = 60.0
) -> Best:
    """The cheapest sharding that keeps the given specs and a core's memory.

    Raises:
        DependencyError: OR-tools is not installed.
        InputError: none keeps them.
    """
    problem = problem_of(graph, costs, given, costs.core_bytes)
    found = optimum(problem, effort)
    return Best(problem.sharding(found.chosen), found.objective, found.bound, found.proved)
