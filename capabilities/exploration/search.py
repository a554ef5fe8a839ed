"""What workers do for a search: one operator on many designs, and whole models on one of them.

Schedules are searched for where a design is at its extremes (the target as it is, each varied
number at its least and its greatest); the best of each become a pool, and every design takes the
best of the pool that is legal there. Where little of the pool is legal, the search is done anew,
and what it finds joins the pool. Numbers that an operator's latency and features do not depend on
are found by changing them alone and together with the others; designs that differ in nothing else
share one judgement.

A design is confirmed when whole models are compiled for it with these schedules, and played. What
the search adds up operator by operator is what `simulate --fidelity analytical` adds up; the
timeline plays one program, in which kernels overlap and tensors stay on chip.

Plain data in and out, so that workers anywhere do it: a function of its arguments, one operator a
call, since designs of one operator share its lowered programs.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import ConfigError, TilesmithError, WorkloadError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import Judgement, judge
from tilesmith.simulator.dispatch import simulators

if TYPE_CHECKING:
    from tilesmith.compiler.graph.graph import Graph
    from tilesmith.simulator import SimulationResult


SAMPLED = 64
"""Schedules drawn where a search is done."""

BRED = 32
"""Schedules bred from the best of them."""

KEPT = 3
"""Schedules that each search's design leaves in the pool, out of all searches' finds."""

ENOUGH = 3
"""Legal schedules of the pool below which a design is searched anew."""


@dataclass(frozen=True)
class OperatorDesigns:
    """One operator on every design, in their order.

    Attributes:
        latency_us: NaN where no schedule fits.
        configs: the best schedule's JSON; "" where none fits.
        bounds: what limits it; the reason where none fits.
        matters: names of varied numbers that it depends on.
        searches: designs that were searched anew.
        judged: designs that were judged, the others share their judgement.
    """

    latency_us: list[float]
    configs: list[str]
    bounds: list[str]
    matters: list[str]
    searches: int
    judged: int


def explored(
    workload: str, target: str, points: Sequence[Sequence[tuple[str, str]]], seed: int
) -> dict[str, Any]:
    """An operator on every design: the fields of `OperatorDesigns`.

    Args:
        workload: its key.
        target: the base's JSON.
        points: of every design the numbers that are changed; the first is the base.
    """
    base = Target.from_json(target)
    simulator = simulators[base.family]
    own = dict(points[0])
    targets = [
        simulator.with_settings(base, {n: v for n, v in point if v != own[n]}) for point in points
    ]
    digest = hashlib.sha256(workload.encode()).digest()
    rng = np.random.default_rng([seed, int.from_bytes(digest[:8], "little")])
    search = _Search(Workload.parse(workload), targets, [dict(point) for point in points], rng)
    return vars(search.run())


def extremes(points: Sequence[Mapping[str, str]]) -> list[int]:
    """The base, and of each number the designs where it alone is least or greatest."""
    base = points[0]
    numbers = [0]
    for name in base:
        alone = [
            (float(point[name]), number)
            for number, point in enumerate(points)
            if all(point[other] == base[other] for other in base if other != name)
        ]
        numbers += [min(alone)[1], max(alone)[1]]
    return list(dict.fromkeys(numbers))


@dataclass
class _Search:
    workload: Workload
    targets: list[Target]
    points: list[dict[str, str]]
    rng: np.random.Generator
    pool: dict[Config, None] = field(default_factory=dict)
    searches: int = 0
    inside: dict[Target, dict[Config, bool]] = field(default_factory=dict)

    def run(self) -> OperatorDesigns:
        """Fill the pool at the extremes, then judge it on every design."""
        numbers = extremes(self.points)
        for number in numbers:
            self._search(number)
        self._trim(numbers)
        matters = self._matters()
        judged = OperatorDesigns([], [], [], matters, 0, 0)
        known: dict[tuple[str, ...], tuple[float, str, str]] = {}
        for number, point in enumerate(self.points):
            key = tuple(point[name] for name in matters)
            if key not in known:
                known[key] = self._best(number)
            latency, config, bound = known[key]
            judged.latency_us.append(latency)
            judged.configs.append(config)
            judged.bounds.append(bound)
        return OperatorDesigns(
            judged.latency_us, judged.configs, judged.bounds, matters, self.searches, len(known)
        )

    def _search(self, number: int) -> None:
        """Sample and breed on one design; what is found joins the pool, the best first."""
        target = self.targets[number]
        self.searches += 1
        try:
            space = space_of(self.workload, target)
            drawn = list(dict.fromkeys(space.sample(self.rng, SAMPLED)))
            drawn = [*self._defaults(target), *drawn]
            best = self._ranked(target, drawn)[: BRED // 2]
            children = space.breeder.mutate(space.breeder.encode([*best, *best]), self.rng)
            drawn = [*best, *space.breeder.decode(children)]
        except (ConfigError, WorkloadError):
            return
        for config in self._ranked(target, list(dict.fromkeys(drawn)))[: 2 * KEPT]:
            self.pool[config] = None

    def _defaults(self, target: Target) -> list[Config]:
        try:
            return [default_of(self.workload, target)]
        except (ConfigError, WorkloadError):
            return []

    def _ranked(self, target: Target, configs: list[Config]) -> list[Config]:
        """Those that can be simulated, fastest first."""
        latency = judge(self.workload, target, configs).latency
        order = np.argsort(latency, kind="stable")
        return [configs[i] for i in order.tolist() if np.isfinite(latency[i])]

    def _trim(self, numbers: Sequence[int]) -> None:
        """Keep what is among the best of some search's design."""
        kept: dict[Config, None] = {}
        for number in numbers:
            legal = self._legal(number)
            if legal:
                kept |= dict.fromkeys(self._ranked(self.targets[number], legal)[:KEPT])
        self.pool = kept

    def _legal(self, number: int) -> list[Config]:
        """Those of the pool that are in a design's space; remembered for all that are alike."""
        target = self.targets[number]
        target = simulators[target.family].alike(target)
        known = self.inside.setdefault(target, {})
        unknown = [config for config in self.pool if config not in known]
        try:
            space = space_of(self.workload, target) if unknown else None
        except (ConfigError, WorkloadError):
            return []
        if space is not None:
            known.update((config, config in space) for config in unknown)
        return [config for config in self.pool if known[config]]

    def _judged(self, number: int) -> tuple[list[Config], Judgement | None]:
        legal = self._legal(number)
        try:
            return legal, judge(self.workload, self.targets[number], legal) if legal else None
        except WorkloadError:
            return legal, None

    def _matters(self) -> list[str]:
        """Numbers without which the pool is judged otherwise: changed alone from the base, and
        from the design where all others are greatest."""
        base = self.points[0]
        greatest = {n: max((p[n] for p in self.points), key=float) for n in base}
        number_of = {tuple(point.values()): i for i, point in enumerate(self.points)}
        names = []
        for name in base:
            values = sorted({point[name] for point in self.points}, key=float)
            for others in (base, greatest):
                same = [number_of.get(tuple({**others, name: v}.values())) for v in values]
                if not self._alike([number for number in same if number is not None]):
                    names.append(name)
                    break
        return names

    def _alike(self, numbers: Sequence[int]) -> bool:
        if len(numbers) < 2:
            return True
        ends = [self._judged(number) for number in (numbers[0], numbers[-1])]
        (configs, one), (others, other) = ends
        if configs != others or one is None or other is None:
            return configs == others and one is other
        return (
            np.array_equal(one.latency, other.latency, equal_nan=True)
            and np.array_equal(one.features, other.features, equal_nan=True)
            and one.bound == other.bound
        )

    def _best(self, number: int) -> tuple[float, str, str]:
        """(latency in us, schedule, bound) on one design."""
        if len(self._legal(number)) < ENOUGH:
            self._search(number)
        configs, judged = self._judged(number)
        if judged is None or not np.isfinite(judged.latency).any():
            return float("nan"), "", self._reason(number)
        place = int(np.nanargmin(judged.latency))
        return float(judged.latency[place]) * 1e6, configs[place].key, judged.bound[place]

    def _reason(self, number: int) -> str:
        """Why no schedule fits a design."""
        try:
            default_of(self.workload, self.targets[number])
        except TilesmithError as error:
            return str(error)
        return f"no schedule of '{self.workload}' fits"


def confirmed(
    model: str,
    precision: str,
    shapes: Mapping[str, Sequence[int]],
    target: str,
    schedules: Mapping[str, str],
) -> dict[str, Any]:
    """A model, or an operator if its text is one, on a design, most faithfully.

    Args:
        model: path of a model; or the key of a workload.
        target: of the design, as JSON.
        schedules: by workload's key.

    Returns:
        `latency_us`, `bound` and `engines` (the share each is busy); or `reason` where the model
        cannot be compiled for the design.
    """
    from tilesmith.jobs.requests.graphs import graph_of
    from tilesmith.simulator import simulate

    described = Target.from_json(target)
    chosen = {Workload.parse(key): Config.from_json(text) for key, text in schedules.items()}
    try:
        if model in schedules:
            workload = Workload.parse(model)
            result = simulate(workload, described, chosen[workload], "timeline")
        else:
            fixed = {name: tuple(shape) for name, shape in shapes.items()}
            result = _played(graph_of(model, fixed), precision, described, chosen)
    except TilesmithError as error:
        return {"reason": str(error)}
    engines = {name: float(busy) for name, busy in result.engines.items()}
    return {"latency_us": result.latency_us, "bound": result.bound, "engines": engines}


def _played(
    graph: "Graph", precision: str, target: Target, chosen: Mapping[Workload, Config]
) -> "SimulationResult":
    from tilesmith.compiler.backends.backend import backend_of
    from tilesmith.compiler.driver.build import BuildOptions, build

    def pins(kernels: "Graph") -> Mapping[Workload, Config]:
        workloads = {node.workload for node in kernels.nodes}
        return {workload: config for workload, config in chosen.items() if workload in workloads}

    options = BuildOptions(precision=precision)
    executable = build(graph, target, None, options, pins)
    return backend_of(target).simulate(executable.recipe)
