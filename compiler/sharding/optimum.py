"""The best sharding, by integer programming: OR-tools' CP-SAT, with a bound on what is left.

One variable for each option of each item, one for each pair of specs between a writer and a reader
(its sums over one side are the other side's choice: on a chain the relaxation is then exact), one
for each move, which readers that want the same share. Memory of a core is a constraint for every
point in the order at which the most may be held. Deterministic: one worker, a fixed seed, and a
limit in the solver's own time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tilesmith.compiler.sharding.problem import Option, Problem, Version
from tilesmith.compiler.sharding.specs import Spec
from tilesmith.search_space.errors import DependencyError, InputError


@dataclass(frozen=True)
class Optimum:
    """What the solver found.

    Attributes:
        chosen: an option for each item.
        objective: its cost in ns.
        bound: no sharding of the problem costs less, in ns.
        proved: whether the two agree.
    """

    chosen: tuple[int, ...]
    objective: int
    bound: int
    proved: bool

    @property
    def gap(self) -> float:
        """How far the found one may be from the best, as a share of its cost."""
        return 0.0 if self.objective <= self.bound else 1 - self.bound / self.objective


_EFFORT = 60.0
"""Default limit of the solver, in its deterministic time (about seconds)."""


def optimum(
    problem: Problem, effort: float = _EFFORT, hint: Sequence[int] | None = None
) -> Optimum:
    """The cheapest choice of options.

    Args:
        effort: when to stop looking, in the solver's deterministic time.
        hint: a choice to begin with.

    Raises:
        DependencyError: OR-tools is not installed.
        InputError: no choice keeps the constraints.
    """
    if find_spec("ortools") is None:
        raise DependencyError(
            "ortools is not installed; install it with: pip install 'tilesmith[ortools]'"
        )
    from ortools.sat.python import cp_model

    model = _Model(problem, cp_model.CpModel())
    if hint is not None:
        model.hint(hint)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.linearization_level = 2
    solver.parameters.max_deterministic_time = effort
    status = solver.solve(model.model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise InputError(
            f"no sharding of '{problem.graph.name}' over {problem.mesh} keeps the given specs in "
            f"{(problem.limit or 0) / 2**30:.4g} GiB a core; give fewer specs or more cores"
        )
    chosen = tuple(
        next(number for number, variable in enumerate(own) if solver.boolean_value(variable))
        for own in model.chosen
    )
    objective = problem.cost(chosen)
    bound = min(objective, max(0, round(solver.best_objective_bound)))
    return Optimum(chosen, objective, bound, status == cp_model.OPTIMAL)


class _Model:
    """The problem as a CP-SAT model."""

    def __init__(self, problem: Problem, model: Any) -> None:
        self.problem, self.model = problem, model
        self.chosen: list[list[Any]] = []
        self.terms: list[Any] = []
        self.moved: dict[Version, dict[tuple[Spec, Spec], Any]] = {}
        for item in problem.items:
            own = [model.new_bool_var("") for _ in item.options]
            model.add_exactly_one(own)
            self.chosen.append(own)
            self.terms += [
                option.cost * variable
                for option, variable in zip(item.options, own, strict=True)
                if option.cost
            ]
        self._edges()
        if problem.limit is not None:
            self._memory(problem.limit)
        model.minimize(sum(self.terms))

    def hint(self, chosen: Sequence[int]) -> None:
        """A choice to begin with."""
        for own, choice in zip(self.chosen, chosen, strict=True):
            for number, variable in enumerate(own):
                self.model.add_hint(variable, number == choice)

    def _edges(self) -> None:
        writers = self.problem.writers()
        for number, item in enumerate(self.problem.items):
            for place, version in enumerate(item.reads):
                writer, output = writers[version]
                sources = _grouped(
                    self.problem.items[writer].options, self.chosen[writer], output, "writes"
                )
                wanted = _grouped(item.options, self.chosen[number], place, "reads")
                self._edge(version, sources, wanted)
        for version, moves in self.moved.items():
            for (source, want), variable in moves.items():
                cost = self.problem.move(version, source, want)
                if cost:
                    self.terms.append(cost * variable)

    def _edge(
        self, version: Version, sources: dict[Spec, list[Any]], wanted: dict[Spec, list[Any]]
    ) -> None:
        """Pairs of specs between a writer and a reader."""
        rows: dict[Spec, list[Any]] = defaultdict(list)
        columns: dict[Spec, list[Any]] = defaultdict(list)
        moves = self.moved.setdefault(version, {})
        for source in sources:
            for want in wanted:
                pair = self.model.new_bool_var("")
                rows[source].append(pair)
                columns[want].append(pair)
                if source != want:
                    if (source, want) not in moves:
                        moves[source, want] = self.model.new_bool_var("")
                    self.model.add_implication(pair, moves[source, want])
        for source, variables in sources.items():
            self.model.add(sum(rows[source]) == sum(variables))
        for want, variables in wanted.items():
            self.model.add(sum(columns[want]) == sum(variables))

    # -- memory -------------------------------------------------------------------------------
    def _memory(self, limit: int) -> None:
        """What is held at the same time fits, wherever the largest specs would not."""
        problem = self.problem
        weights = [
            (option.held, variable)
            for item, own in zip(problem.items, self.chosen, strict=True)
            for option, variable in zip(item.options, own, strict=True)
            if option.held
        ]
        most = sum(max(option.held for option in item.options) for item in problem.items)
        seen: set[frozenset[Version]] = set()
        for alive in _alive(problem):
            if alive in seen or any(alive < other for other in seen):
                continue
            seen.add(alive)
            terms, largest = list(weights), most
            for version in sorted(alive):
                sizes = self._sizes(version)
                largest += sum(size for size, _ in sizes)
                terms += sizes
            if largest > limit:
                self.model.add(sum(size * variable for size, variable in terms) <= limit)

    def _sizes(self, version: Version) -> list[tuple[int, Any]]:
        """Bytes of a tensor as it is written and under the specs it is moved to."""
        problem = self.problem
        writer, place = problem.writers()[version]
        item = problem.items[writer]
        weight = version[0] in problem.graph.constants
        found = [
            (0 if weight else problem.bytes_of(version, option.writes[place]), variable)
            for option, variable in zip(item.options, self.chosen[writer], strict=True)
        ]
        moved = self.moved.get(version, {})
        return found + [(problem.bytes_of(version, want), v) for (_, want), v in moved.items()]


def _grouped(
    options: Sequence[Option], variables: Sequence[Any], place: int, side: str
) -> dict[Spec, list[Any]]:
    """The variables of options by the spec they have at a place."""
    found: dict[Spec, list[Any]] = defaultdict(list)
    for option, variable in zip(options, variables, strict=True):
        specs = option.writes if side == "writes" else option.reads
        found[specs[place]].append(variable)
    return found


def _alive(problem: Problem) -> list[frozenset[Version]]:
    """The tensors that are there while each item runs, the largest sets first."""
    last: dict[Version, int] = {}
    for number, item in enumerate(problem.items):
        for version in (*item.reads, *item.writes):
            last[version] = number
    found: list[frozenset[Version]] = []
    held: set[Version] = set()
    for number, item in enumerate(problem.items):
        held.update(item.writes)
        found.append(frozenset(held))
        held = {version for version in held if last[version] > number}
    return sorted(found, key=len, reverse=True)
