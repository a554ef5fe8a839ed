"""The best sharding, by integer programming: OR-tools' CP-SAT, with a bound on what is left.

The problem is reduced first: chains of operators and what hangs on few tensors is eliminated
without loss (`elimination`). For what is left CP-SAT has a variable for each value of each variable
and one for each entry of a table; the entries that agree with a value add up to it, so that on a
tree the relaxation is exact. Where weights do not fit, memory gets a price: for every price the
optimum of costs plus price times (bytes less the limit) is a bound, and a sharding that fits a
candidate (Lagrange). Deterministic: one worker, a fixed seed, a limit in the solver's own time.
"""

from collections import defaultdict
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from tilesmith.capabilities.sharding.search.elimination import ReducedNetwork, reduce
from tilesmith.capabilities.sharding.search.problem import ShardingProblem
from tilesmith.capabilities.sharding.search.tables import Tables, paid
from tilesmith.search_space.support.errors import DependencyError, JobError


@dataclass(frozen=True)
class Optimum:
    """What the solver found.

    Attributes:
        chosen: an option for each item.
        objective: its cost in ns.
        bound: no choice costs less, in ns.
    """

    chosen: tuple[int, ...]
    objective: int
    bound: int

    @property
    def proved(self) -> bool:
        """Whether nothing is better."""
        return self.objective <= self.bound

    @property
    def gap(self) -> float:
        """How far the found one may be from the best, as a share of its cost."""
        return 0.0 if self.proved else 1 - self.bound / self.objective


EFFORT = 60.0
"""Default limit of the solver, in its deterministic time (about seconds)."""

SMALL = 1_000
"""Entries of tables that the solver is given as they are: it takes a second or less."""


def optimum(
    problem: ShardingProblem,
    effort: float = EFFORT,
    price: float = 0.0,
    tables: Tables | None = None,
) -> Optimum:
    """The cheapest choice of options, memory apart.

    Args:
        tables: the problem's, where they are there already.
        effort: when to stop looking, in the solver's deterministic time.
        price: ns that a byte of weights on a core costs; it is in objective and bound.

    Raises:
        DependencyError: OR-tools is not installed.
        JobError: nothing was found with so little effort.
    """
    if find_spec("ortools") is None:
        raise DependencyError(
            "ortools is not installed; install it with: pip install 'tilesmith[ortools]'"
        )
    core = reduce((tables or Tables(problem)).priced(price), SMALL)
    values, bound = _solved(core, effort, problem.graph.title)
    whole = core.complete(values)
    chosen = tuple(whole[number] for number in range(len(problem.items)))
    objective = problem.cost(chosen) + sum(
        paid(item.options[choice], price)
        for item, choice in zip(problem.items, chosen, strict=True)
    )
    return Optimum(chosen, objective, min(objective, max(0, bound)))


def _solved(core: ReducedNetwork, effort: float, name: str) -> tuple[dict[int, int], int]:
    """Values of a core's variables, and what no values cost less than."""
    from ortools.sat.python import cp_model

    model: Any = cp_model.CpModel()
    values = {v: [model.new_bool_var("") for _ in range(n)] for v, n in core.sizes.items()}
    terms: list[Any] = []
    for own in values.values():
        model.add_exactly_one(own)
    for table in core.tables:
        if len(table.variables) == 1:
            for variable, cost in zip(values[table.variables[0]], table.costs, strict=True):
                if np.isfinite(cost):
                    terms.append(int(cost) * variable)
                else:
                    model.add(variable == 0)
            continue
        sums: dict[tuple[int, int], list[Any]] = defaultdict(list)
        for index in np.argwhere(np.isfinite(table.costs)):
            entry = model.new_bool_var("")
            terms.append(int(table.costs[tuple(index)]) * entry)
            for variable, value in zip(table.variables, index.tolist(), strict=True):
                sums[variable, value].append(entry)
        for variable in table.variables:
            for value, literal in enumerate(values[variable]):
                model.add(sum(sums[variable, value]) == literal)
    model.minimize(sum(terms))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.linearization_level = 2
    solver.parameters.max_deterministic_time = effort
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise JobError(
            f"no sharding of '{name}' was found with so little effort; give the solver more"
        )
    chosen = {
        v: next(n for n, literal in enumerate(own) if solver.boolean_value(literal))
        for v, own in values.items()
    }
    return chosen, round(solver.best_objective_bound + core.constant)
