"""The layout solver against exhaustive search."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tilesmith.compiler.settling import pbqp
from tilesmith.compiler.settling.pbqp import Problem


def random_problem(rng: np.random.Generator, nodes: int, edges: list[tuple[int, int]]) -> Problem:
    problem = Problem()
    options = rng.integers(1, 4, nodes)
    for count in options:
        problem.add_node(rng.integers(0, 20, count).astype(float))
    for a, b in edges:
        problem.add_edge(a, b, rng.integers(0, 20, (options[a], options[b])).astype(float))
    return problem


def best(problem: Problem) -> float:
    choices = itertools.product(*(range(len(costs)) for costs in problem.nodes))
    return min(problem.cost(choice) for choice in choices)


@given(st.integers(0, 2**32 - 1), st.integers(1, 7))
def test_residual_chains_are_solved_exactly(seed: int, nodes: int) -> None:
    """Chains with skip connections that don't cross are series-parallel."""
    rng = np.random.default_rng(seed)
    chain = [(i, i + 1) for i in range(nodes - 1)]
    skips = [(i, i + 2) for i in range(0, nodes - 2, 2)]
    problem = random_problem(rng, nodes, chain + skips + chain[:1])
    solution = problem.solve()
    assert solution.exact
    assert solution.cost == problem.cost(solution.choices) == best(problem)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_any_graph_gets_a_legal_solution(seed: int, nodes: int) -> None:
    rng = np.random.default_rng(seed)
    edges = [pair for pair in itertools.combinations(range(nodes), 2) if rng.random() < 0.8]
    problem = random_problem(rng, nodes, edges)
    solution = problem.solve()
    lowest = best(problem)
    assert solution.cost == problem.cost(solution.choices) >= lowest
    assert not solution.exact or solution.cost == lowest


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_nodes_go_in_the_order_of_their_edges_at_that_time(seed: int, nodes: int) -> None:
    """The next node is the one of the fewest edges; of the most, where all have three or more."""
    rng = np.random.default_rng(seed)
    edges = [pair for pair in itertools.combinations(range(nodes), 2) if rng.random() < 0.6]
    problem = random_problem(rng, nodes, edges)
    gone = pbqp._Elimination(problem)
    gone.run()
    near = {i: {b if a == i else a for a, b in edges if i in (a, b)} for i in range(nodes)}
    for node, _ in gone.decisions:
        wanted = min(near, key=lambda n: (len(near[n]), n))
        if len(near[wanted]) > 2:
            wanted = max(near, key=lambda n: (len(near[n]), -n))
        assert node == wanted
        around = near.pop(node)
        for other in around:
            near[other] -= {node}
            if len(around) == 2:
                near[other] |= around - {other}


def test_an_edge_from_a_node_to_itself_costs_that_option() -> None:
    problem = Problem()
    node = problem.add_node(np.array([0.0, 1.0]))
    problem.add_edge(node, node, np.array([[5.0, 9.0], [9.0, 0.0]]))
    assert problem.solve().choices == (1,)
