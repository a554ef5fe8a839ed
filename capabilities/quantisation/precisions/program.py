"""Precisions of least cost within a budget, by integer programming (OR-tools' CP-SAT).

    minimise    sum of costs of the choices, and of conversions between neighbours
    subject to  sum of squared errors of the choices <= budget squared

Errors of layers add up about as squares do: roundings of different layers are not correlated. Where
they are, whoever measures the whole model tightens the budget. Deterministic: one worker, a fixed
seed, a limit in the solver's own time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilesmith.search_space.support.errors import JobError

EFFORT = 10.0
"""Limit of the solver, in its deterministic time (about seconds)."""

_ERRORS = 10**9
"""The budget in whole numbers: squared errors are rounded up to such parts of it."""

_COSTS = 10**9
"""The largest sum of costs in whole numbers."""


@dataclass(frozen=True)
class PrecisionOption:
    """A precision of a layer.

    Attributes:
        cost: in any unit that all share, 0 or more.
        error: of the model's outputs where this layer alone has this precision.
    """

    precision: str
    cost: float
    error: float


@dataclass(frozen=True)
class Edge:
    """A tensor between two layers.

    Attributes:
        maker, reader: numbers of layers; no maker: it is float32 whatever is chosen.
        costs: of its conversion, by the maker's precision and the reader's; others are free.
    """

    maker: int | None
    reader: int
    costs: Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class PrecisionProblem:
    """What is to be chosen.

    Attributes:
        layers: of each layer its choices, at least one.
        edges: conversions that are paid where neighbours differ.
        fixed: the cost of everything else.
    """

    layers: Sequence[Sequence[PrecisionOption]]
    edges: Sequence[Edge] = ()
    fixed: float = 0.0
    base: str = field(default="fp32")

    def cost(self, chosen: Sequence[int]) -> float:
        """Of a choice for each layer."""
        names = [own[n].precision for own, n in zip(self.layers, chosen, strict=True)]
        cost = self.fixed + sum(own[n].cost for own, n in zip(self.layers, chosen, strict=True))
        for edge in self.edges:
            maker = self.base if edge.maker is None else names[edge.maker]
            cost += edge.costs.get((maker, names[edge.reader]), 0.0)
        return cost

    def error(self, chosen: Sequence[int]) -> float:
        """The square root of the sum of squared errors."""
        squares = (own[n].error ** 2 for own, n in zip(self.layers, chosen, strict=True))
        return float(sum(squares) ** 0.5)


@dataclass(frozen=True)
class PrecisionSolution:
    """A choice for each layer.

    Attributes:
        chosen: numbers of choices.
        cost: theirs, as `PrecisionProblem.cost`.
        bound: no choice within the budget costs less.
    """

    chosen: tuple[int, ...]
    cost: float
    bound: float

    @property
    def gap(self) -> float:
        """How much less the best may cost, as a share of this one's cost."""
        return max(0.0, 1 - self.bound / self.cost) if self.cost > 0 else 0.0


def solved(problem: PrecisionProblem, budget: float, effort: float = EFFORT) -> PrecisionSolution:
    """The cheapest choice within a budget; OR-tools is there.

    Args:
        budget: the greatest `PrecisionProblem.error`.
        effort: when to stop looking, in the solver's deterministic time.

    Raises:
        JobError: nothing was found with so little effort, or nothing is within the budget.
    """
    from ortools.sat.python import cp_model

    model: Any = cp_model.CpModel()
    variables = [[model.new_bool_var("") for _ in own] for own in problem.layers]
    terms: list[tuple[float, Any]] = []
    errors: list[Any] = []
    for own, literals in zip(problem.layers, variables, strict=True):
        model.add_exactly_one(literals)
        for choice, literal in zip(own, literals, strict=True):
            parts = _parts(choice.error, budget)
            if parts > _ERRORS:
                model.add(literal == 0)
            elif parts:
                errors.append(parts * literal)
            terms.append((choice.cost, literal))
    model.add(sum(errors) <= _ERRORS)
    for edge in problem.edges:
        terms += _conversions(model, problem, variables, edge)
    largest = sum(cost for cost, _ in terms) or 1.0
    unit = largest / _COSTS
    model.minimize(sum(round(cost / unit) * literal for cost, literal in terms))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.linearization_level = 2
    solver.parameters.max_deterministic_time = effort
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise JobError(f"no precisions are within an error of {budget:g}")
    chosen = tuple(
        next(n for n, literal in enumerate(own) if solver.boolean_value(literal))
        for own in variables
    )
    cost = problem.cost(chosen)
    bound = problem.fixed + solver.best_objective_bound * unit
    proved = status == cp_model.OPTIMAL
    return PrecisionSolution(chosen, cost, cost if proved else min(bound, cost))


def _parts(error: float, budget: float) -> int:
    """A squared error in parts of the budget's, rounded up; more than all where it exceeds it."""
    if error <= 0:
        return 0
    if error > budget:
        return _ERRORS + 1
    return -int(-((error / budget) ** 2) * _ERRORS // 1)


def _conversions(
    model: Any, problem: PrecisionProblem, variables: Sequence[Sequence[Any]], edge: Edge
) -> list[tuple[float, Any]]:
    """A variable for each conversion of an edge that costs anything: true where it happens."""
    terms = []
    readers = {c.precision: v for c, v in _named(problem, variables, edge.reader)}
    makers = {problem.base: None}
    if edge.maker is not None:
        makers = {c.precision: v for c, v in _named(problem, variables, edge.maker)}
    for (before, after), cost in edge.costs.items():
        if cost <= 0 or before not in makers or after not in readers:
            continue
        maker = makers[before]
        if maker is None:
            terms.append((cost, readers[after]))
            continue
        both = model.new_bool_var("")
        model.add(both >= maker + readers[after] - 1)
        terms.append((cost, both))
    return terms


def _named(
    problem: PrecisionProblem, variables: Sequence[Sequence[Any]], layer: int
) -> list[tuple[PrecisionOption, Any]]:
    return list(zip(problem.layers[layer], variables[layer], strict=True))
