"""One machine of a sweep: the subject simulated there, with the schedules that are asked for.

`sweeping` says where schedules come from. A `Player` is plain data, so that other processes play
points as well; they begin before this process has played the baseline, and what needs the
baseline's schedules follows. Invariant: a point is the same whoever plays it, and after whichever
others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tilesmith.capabilities.exploration.sweeps.sweep_report import MachinePoint, Schedules
from tilesmith.capabilities.exploration.variation import Variation
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.jobs.compilation.compiling import build_fixed, parts_of
from tilesmith.jobs.evaluation.simulation import (
    SimulatedOperator,
    best_configs,
    simulate_parts,
    simulated,
)
from tilesmith.jobs.requests.request import Request, Resolved
from tilesmith.jobs.subjects.subject import is_artifact, is_model
from tilesmith.jobs.subjects.targets import check_schedulable
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError, TargetError, TilesmithError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import SimulationResult, check_target, simulators
from tilesmith.simulator.designs.hardware_cost import HardwareCost

if TYPE_CHECKING:
    from tilesmith.compiler.graph.graph import Graph
    from tilesmith.compiler.recipe.program import Recipe
    from tilesmith.tuner.pretrained.model_corpus import Mapped

Choices = Mapping[Workload, Config]
Settings = tuple[tuple[str, str], ...]


def own_text(target: Target, name: str) -> str:
    """A number of a target as a setting spells it."""
    value = target.fact(name).value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return Variation(name, ()).text(value)


def cost_of(target: Target) -> HardwareCost | None:
    """Area and power of a target; None where nobody models them."""
    try:
        return simulators[target.family].hardware_cost(target)
    except TargetError:
        return None


@dataclass(frozen=True)
class Player:
    """What simulates the subject on targets.

    Attributes:
        request: without settings.
        base: the target as it is; own: the numbers that are varied, as they are there.
        schedules: as `sweeping` has them.
        known: the baseline's, where they are to be kept.
        result_there: of the baseline, where finding `known` has shown it.
    """

    request: Request
    base: Target
    own: Settings
    fidelity: str | None
    schedules: Schedules
    known: Choices = field(default_factory=dict)
    result_there: SimulationResult | None = None

    def result(self, target: Target, choices: Choices) -> SimulationResult:
        """The subject on a target.

        Args:
            choices: schedules searched for there.
        """
        if target == self.base and self.result_there is not None:
            return self.result_there
        if is_artifact(self.request.subject):
            return simulated(_settled(self.request, self.base, target), self.fidelity, None)
        asked = replace(self.request, target=target).resolved(calibrate=True)
        match self.schedules:
            case "chosen":
                return self.chosen(asked)[0]
            case "searched":
                return _played(asked, self.fidelity, choices)
            case "kept":
                return _played(asked, self.fidelity, self.known)
        return self.better(asked, *self.chosen(asked))

    def better(
        self, asked: Resolved, first: SimulationResult, used: Choices | None
    ) -> SimulationResult:
        """The faster of schedules that were chosen, and of the baseline's."""
        if used is not None and all(self.known.get(w) == config for w, config in used.items()):
            return first
        other = _played(asked, self.fidelity, self.known)
        return other if other.latency_us < first.latency_us else first

    def chosen(self, asked: Resolved) -> tuple[SimulationResult, Choices | None]:
        """As for one machine, and the schedules of its program where it is one."""
        if _whole(asked, self.fidelity):
            recipe = build_fixed(asked).recipe
            return _simulated(recipe), _schedules(recipe)
        return simulated(replace(self.request, target=asked.target), self.fidelity, None), None

    def searched(self, points: Sequence[Settings], mapped: "Mapped") -> list[Choices]:
        """Schedules of the baseline and of every point, found by sampling and breeding on the
        simulator's judgement."""
        from tilesmith.capabilities.exploration.search import explored

        asked = replace(self.request, target=self.base).resolved(calibrate=True)
        text = asked.target.to_json()
        workloads = [item.workload for item in parts_of(asked).workloads]
        check_schedulable(workloads, asked.target)
        places = [list(point) for point in (self.own, *points)]
        answers = mapped(explored, [(w.key, text, places, 0) for w in workloads])
        configs = [answer["configs"] for answer in answers]
        return [
            {w: Config.from_json(c[n]) for w, c in zip(workloads, configs, strict=True) if c[n]}
            for n in range(len(places))
        ]


def player_of(
    request: Request, base: Target, own: Settings, fidelity: str | None, schedules: Schedules
) -> Player:
    """What simulates a request's subject.

    Raises:
        InputError: schedules that cannot be chosen so; or as `simulated`.
    """
    player = Player(request, base, own, fidelity, schedules)
    if is_artifact(request.subject):
        if schedules == "searched":
            raise InputError("a compiled model keeps its schedules; sweep the model it came from")
        return player
    if schedules in ("chosen", "searched"):
        return player
    asked = replace(request, target=base).resolved(calibrate=True)
    if _whole(asked, fidelity):
        recipe = build_fixed(asked).recipe
        return replace(player, known=_schedules(recipe), result_there=_simulated(recipe))
    workloads = [item.workload for item in parts_of(asked).workloads]
    check_schedulable(workloads, asked.target, simulated=True)
    best = best_configs(workloads, asked)
    known = {w: best.get(w.key) or default_of(w, asked.target) for w in workloads}
    return replace(player, known=known)


def played(player: Player, settings: Settings, choices: Choices) -> MachinePoint:
    """What comes of one combination; numbers that keep their value are left to what goes with
    others."""
    return _point(player, settings, lambda target: player.result(target, choices))


def played_first(player: Player, settings: Settings) -> tuple[MachinePoint, Choices | None]:
    """One combination with schedules chosen for it, and these: before the baseline's are known."""
    used: list[Choices | None] = [None]

    def result(target: Target) -> SimulationResult:
        asked = replace(player.request, target=target).resolved(calibrate=True)
        first, used[0] = player.chosen(asked)
        return first

    return _point(player, settings, result), used[0]


def played_then(player: Player, first: MachinePoint, used: Choices | None) -> MachinePoint:
    """What comes of it now that the baseline's schedules are known."""
    if first.result is None:
        return first
    chosen = first.result

    def result(target: Target) -> SimulationResult:
        asked = replace(player.request, target=target).resolved(calibrate=True)
        return player.better(asked, chosen, used)

    return _point(player, first.settings, result)


def _point(
    player: Player, settings: Settings, result: Callable[[Target], SimulationResult]
) -> MachinePoint:
    own, base = dict(player.own), player.base
    changed = {name: value for name, value in settings if value != own[name]}
    try:
        target = simulators[base.family].with_settings(base, changed)
        check_target(target)
    except TargetError as error:
        return MachinePoint(settings, None, None, str(error))
    try:
        return MachinePoint(settings, result(target), cost_of(target))
    except TilesmithError as error:
        return MachinePoint(settings, None, cost_of(target), str(error))


def _simulated(recipe: "Recipe") -> SimulationResult:
    from tilesmith.compiler.backends.backend import backend_of

    return backend_of(recipe.target).simulate(recipe)


def _schedules(recipe: "Recipe") -> Choices:
    from tilesmith.compiler.recipe.program import kernels_of

    return {
        Workload.parse(step.workload): Config.from_json(step.config)
        for step in kernels_of(recipe.steps)
    }


def _settled(request: Request, base: Target, target: Target) -> Request:
    """An artifact's request, with what differs in a target from its own."""
    own = dict(base.facts)
    changed = {name: fact.value for name, fact in target.facts if fact.value != own[name].value}
    return replace(request, settings=changed)


def _whole(asked: Resolved, fidelity: str | None) -> bool:
    """Whether the subject is played as one program."""
    from tilesmith.compiler.backends.backend import measures_models

    whole_too = fidelity in (None, "timeline")
    return is_model(asked.subject) and whole_too and measures_models(asked.target, "simulator")


def _played(asked: Resolved, fidelity: str | None, known: Choices) -> SimulationResult:
    """The subject with these schedules where they are legal, elsewhere with defaults."""
    if _whole(asked, fidelity):
        return _simulated(_program(asked, known))
    whole = parts_of(asked)
    check_schedulable([item.workload for item in whole.workloads], asked.target, simulated=True)
    legal = _legal(known, [item.workload for item in whole.workloads], asked.target)
    parts = [
        SimulatedOperator(i.workload, i.weight, legal.get(i.workload)) for i in whole.workloads
    ]
    return simulate_parts(parts, asked.target, fidelity or "analytical", None, whole.notes)  # type: ignore[arg-type]


def _program(asked: Resolved, known: Choices) -> "Recipe":
    from tilesmith.compiler.driver.build import BuildOptions, recipe_of
    from tilesmith.jobs.requests.graphs import graph_of, updates_of

    def pins(kernels: "Graph") -> Choices:
        workloads = [node.workload for node in kernels.nodes if node.workload is not None]
        return _legal(known, workloads, asked.target)

    updates = {**updates_of(asked.model), **asked.updates}
    options = BuildOptions(asked.threads, asked.precision, updates=updates)
    graph = graph_of(asked.model, asked.shapes)
    return recipe_of(graph, asked.target, None, options, pins)


def _legal(known: Choices, workloads: Sequence[Workload], target: Target) -> Choices:
    return {w: known[w] for w in workloads if w in known and known[w] in space_of(w, target)}
