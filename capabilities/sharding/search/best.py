"""The best sharding of a model that fits a core's memory.

Without regard to memory first: mostly that fits, and is the optimum. Else weights get a price that
is raised until they fit; of all shardings that fit the cheapest is taken, and the best bound of all
prices says how far from the optimum it may be.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tilesmith.capabilities.sharding.layouts.specs import Spec
from tilesmith.capabilities.sharding.partitioning.costs import Costs
from tilesmith.capabilities.sharding.partitioning.partition import Sharding, partition
from tilesmith.capabilities.sharding.partitioning.program import ShardedProgram
from tilesmith.capabilities.sharding.search.optimum import EFFORT, optimum
from tilesmith.capabilities.sharding.search.problem import ShardingProblem, problem_of
from tilesmith.capabilities.sharding.search.tables import Tables
from tilesmith.compiler.graph.graph import Graph

_CHEAP, _DEAR = 1e-7, 1e2
"""ns a byte: what changes nothing, and more than anything costs that moves a byte."""

_PRICES = 12
"""How many prices are tried between these."""


@dataclass(frozen=True, eq=False)
class _Best:
    """A sharding, its program, what it costs, and what none that fits costs less than, in ns.

    Attributes:
        chosen: the option of each item of the problem.
        missing: bytes that a core lacks even so; 0 where it fits.
    """

    chosen: tuple[int, ...]
    sharding: Sharding
    program: ShardedProgram
    objective: int
    bound: int
    missing: int = 0


def best_sharding(
    graph: Graph,
    costs: Costs,
    given: Mapping[str, Spec],
    effort: float = EFFORT,
    limit: int | None = None,
) -> _Best:
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

    problem: ShardingProblem
    tables: Tables
    effort: float
    limit: int

    def at(self, price: float) -> _Best:
        """The best at a price. Its bound is that of all shardings whose weights fit the limit."""
        optimal = optimum(self.problem, self.effort, price, self.tables)
        room = max(0, self.limit - self.least_activations)
        return self.evaluated(optimal.chosen, optimal.bound - round(price * room))

    def evaluated(self, chosen: tuple[int, ...], bound: int) -> _Best:
        """A choice of options as a program."""
        sharding = self.problem.sharding(chosen)
        program = partition(sharding)
        missing = program.weight_bytes + program.activation_bytes - self.limit
        cost = self.problem.cost(chosen)
        return _Best(chosen, sharding, program, cost, bound, max(0, missing))

    @cached_property
    def least_activations(self) -> int:
        """Bytes that a core holds at some time besides weights, however tensors are cut."""
        last: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for number, node in enumerate(self.problem.graph.nodes):
            for name in (*node.reads, *node.writes):
                last[name] = number
                sizes[name] = self.problem.graph.info(name).nbytes // self.problem.mesh.size
        most, held = 0, set[str]()
        for number, node in enumerate(self.problem.graph.nodes):
            held.update(node.writes)
            most = max(most, sum(sizes[name] for name in held))
            held = {name for name in held if last[name] > number}
        return most

    def short(self, free: _Best) -> _Best:
        """The best of those that fit, where the cheapest of all does not."""
        low, high = _CHEAP, _DEAR
        cheap, fits = free, self.at(high)
        tried = [cheap, fits]
        if fits.missing:  # whatever weights cost, it does not fit
            return min(tried, key=lambda one: one.missing)
        for _ in range(_PRICES):
            price = math.sqrt(low * high)
            tried.append(self.at(price))
            if tried[-1].missing:
                low, cheap = price, tried[-1]
            else:
                high, fits = price, tried[-1]
        tried += self._mixed(cheap, fits)
        chosen = min((one for one in tried if not one.missing), key=lambda one: one.objective)
        return replace(chosen, bound=min(chosen.objective, max(one.bound for one in tried)))

    def _mixed(self, cheap: _Best, fits: _Best) -> list[_Best]:
        """Between two shardings: as one at first, as the other after. Layers that are alike become
        too dear at the same price, all at once; here only as many as must."""
        mixtures = []
        for first, second in ((cheap, fits), (fits, cheap)):
            low, high = 0, len(cheap.chosen)  # how many as the first
            while high - low > 1:
                middle = (low + high) // 2
                mixed = self.evaluated((*first.chosen[:middle], *second.chosen[middle:]), 0)
                mixtures.append(mixed)
                if bool(mixed.missing) == (first is cheap):
                    high = middle
                else:
                    low = middle
        return mixtures
