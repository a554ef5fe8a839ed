"""Partitioned boolean quadratic problems: one option for each node, costs on nodes and on edges.

Layout settlement is such a problem: a node's options are schedules, an edge costs the conversions
between what one writes and the other reads. Nodes of degree 0, 1 and 2 are eliminated without loss
(reductions R0, RI and RII of Scholz and Eckstein, "Register Allocation for Irregular
Architectures", 2002), which solves series-parallel graphs such as residual networks exactly; where
every node has more neighbours, the one with the most is fixed to its locally best option (RN).

Invariants: deterministic (ties go to the lower number); the result is optimal if RN was never
needed, which `Solution.exact` tells.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]


@dataclass(frozen=True)
class Solution:
    """The option chosen for each node, their total cost, and whether it is proved optimal."""

    choices: tuple[int, ...]
    cost: float
    exact: bool


class Problem:
    """Nodes with cost vectors and edges with cost matrices."""

    def __init__(self) -> None:
        self.nodes: list[Costs] = []
        self.edges: dict[tuple[int, int], Costs] = {}

    def add_node(self, costs: Costs) -> int:
        """A node with one cost for each option; returns its number."""
        self.nodes.append(np.array(costs, dtype=np.float64))
        return len(self.nodes) - 1

    def add_edge(self, first: int, second: int, costs: Costs) -> None:
        """Add costs for pairs of options (rows: `first`); edges of a pair of nodes add up."""
        if first == second:
            self.nodes[first] = self.nodes[first] + np.diagonal(costs)
            return
        if first > second:
            first, second, costs = second, first, costs.T
        known = self.edges.get((first, second))
        self.edges[first, second] = costs if known is None else known + costs

    def cost(self, choices: tuple[int, ...]) -> float:
        """Total cost of a choice."""
        total = sum(float(costs[choice]) for costs, choice in zip(self.nodes, choices, strict=True))
        return total + sum(float(m[choices[a], choices[b]]) for (a, b), m in self.edges.items())

    def solve(self) -> Solution:
        """Eliminate node by node, then choose in reverse order."""
        return _Elimination(self).run()


class _Elimination:
    """The shrinking problem, and how to choose for the nodes that left it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.costs = {i: costs.copy() for i, costs in enumerate(problem.nodes)}
        self.edges: dict[int, dict[int, Costs]] = {i: {} for i in self.costs}
        for (a, b), matrix in problem.edges.items():
            self.edges[a][b], self.edges[b][a] = matrix, matrix.T
        self.decisions: list[tuple[int, Callable[[dict[int, int]], int]]] = []

    def run(self) -> Solution:
        exact = True
        fewest = [(len(edges), node) for node, edges in self.edges.items()]
        most = [(-count, node) for count, node in fewest]
        heapify(fewest)
        heapify(most)
        while self.costs:
            node = self._first(fewest, 1)
            if len(self.edges[node]) > 2:
                exact = False
                node = self._first(most, -1)
            touched = tuple(self.edges[node])
            self._eliminate(node)
            for other in touched:
                heappush(fewest, (len(self.edges[other]), other))
                heappush(most, (-len(self.edges[other]), other))
        chosen: dict[int, int] = {}
        for node, decide in reversed(self.decisions):
            chosen[node] = decide(chosen)
        choices = tuple(chosen[i] for i in range(len(self.problem.nodes)))
        return Solution(choices, self.problem.cost(choices), exact)

    def _first(self, heap: list[tuple[int, int]], sign: int) -> int:
        """The first node of a heap whose entry, `sign` times its edges, still holds."""
        while True:
            count, node = heap[0]
            if node in self.costs and count == sign * len(self.edges[node]):
                return node
            heappop(heap)

    def _eliminate(self, node: int) -> None:
        own = self.costs.pop(node)
        neighbours = self.edges.pop(node)
        for other in neighbours:
            del self.edges[other][node]
        if len(neighbours) > 2:
            self._fix(node, own, neighbours)
            return

        def decide(chosen: dict[int, int]) -> int:
            total = own.copy()
            for other, matrix in neighbours.items():
                total = total + matrix[:, chosen[other]]
            return int(np.argmin(total))

        self.decisions.append((node, decide))
        if len(neighbours) == 1:
            ((other, matrix),) = neighbours.items()
            self.costs[other] = self.costs[other] + (own[:, None] + matrix).min(axis=0)
        elif len(neighbours) == 2:
            (a, left), (b, right) = neighbours.items()
            through = (own[:, None, None] + left[:, :, None] + right[:, None, :]).min(axis=0)
            known = self.edges[a].get(b)
            self.edges[a][b] = through if known is None else known + through
            self.edges[b][a] = self.edges[a][b].T

    def _fix(self, node: int, own: Costs, neighbours: dict[int, Costs]) -> None:
        total = own.copy()
        for other, matrix in neighbours.items():
            total = total + (matrix + self.costs[other][None, :]).min(axis=1)
        choice = int(np.argmin(total))
        self.decisions.append((node, lambda chosen: choice))
        for other, matrix in neighbours.items():
            self.costs[other] = self.costs[other] + matrix[choice]
