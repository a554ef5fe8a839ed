"""What if the machine were another: one subject simulated on a target with numbers changed.

    --set sbuf.mib=24,48,96 --set dma.engines=8:32       every combination, and the target as it is

The baseline is the target as it is described. Every point is what `simulate` says of that machine;
where its schedules come from is chosen:

- "chosen": as `simulate` chooses for one machine: the best that the database has for that very
  machine, else the nearest shape's, else the default;
- "kept": the baseline's, wherever they are legal on the point, so that nothing but the machine
  differs;
- "best": the faster of both, so that a machine that is better in everything is never slower;
- "searched": searched for anew on every point, the baseline too, by the simulator's judgement, as
  `explore` does.

Invariants: deterministic; numbers ascend, the last setting's fastest; a point that is no machine,
or on which the subject does not fit, has a reason and no latency.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Unpack

from tilesmith.codegen.structures import default_of, space_of
from tilesmith.exploration.request import Budget
from tilesmith.exploration.sweep_report import Point, Schedules, Sweep
from tilesmith.exploration.variation import Variation
from tilesmith.jobs.compiling import parts_of
from tilesmith.jobs.databases import BY_DEFAULT, Named, here
from tilesmith.jobs.request import Asked, Request, Resolved
from tilesmith.jobs.simulation import Part, best_configs, simulate_parts, simulated
from tilesmith.jobs.subjects import is_artifact, is_model
from tilesmith.jobs.targets import check_schedulable, resolve_target
from tilesmith.planning.fronts import front
from tilesmith.search_space.errors import InputError, TargetError, TilesmithError
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.target import Target
from tilesmith.search_space.workload import Workload
from tilesmith.simulator import SimulationResult, check_target, simulators
from tilesmith.simulator.hardware_cost import HardwareCost

if TYPE_CHECKING:
    from tilesmith.compiler.graph import Graph
    from tilesmith.jobs.subjects import Subject

Choices = Mapping[Workload, Config]

MOST = 1000
"""Points of a sweep; `explore` searches among more."""

Told = Callable[[int, int], None]


def varied(base: Target, settings: Sequence[tuple[str, str]]) -> list[tuple[str, tuple[str, ...]]]:
    """Settings with the values of each: `24,48`, `12:96` (doubling), `12:96:5`, or one.

    A comma or colon separates values only of numbers, and of facts with a list of choices; a
    setting that is named again has all its values.

    Raises:
        TargetError: no such target or number.
        InputError: values that are none.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, text in settings:
        fact = base.fact(name)
        if isinstance(fact.value, int | float) and not isinstance(fact.value, bool):
            values: tuple[str, ...] = (text,)
            if "," in text or ":" in text:
                parsed = Variation.parse(f"{name}={text}", base)
                values = tuple(parsed.text(value) for value in parsed.values)
        else:
            choices = fact.choices and "," in text
            values = tuple(part.strip() for part in text.split(",")) if choices else (text,)
        found[name] = tuple(dict.fromkeys((*found.get(name, ()), *values)))
    return list(found.items())


def sweep(
    subject: Subject,
    values: Mapping[str, str | float | Sequence[str | float]],
    target: str | Target,
    database: Named = BY_DEFAULT,
    *,
    fidelity: str | None = None,
    schedules: Schedules = "best",
    budget: Budget = "area",
    **asked: Unpack[Asked],
) -> Sweep:
    """What a model or an operator would cost on a target with other numbers, all combinations.

    Args:
        subject: as `simulate` takes it.
        values: by name of a number: one value, several, or a text such as "12:96" (doubling).
        schedules, budget: see this module's docstring, and `Sweep`.
        asked: `threads`, `precision`, `shapes`, as `tune`; settings belong to `values`.

    Raises:
        InputError: as `simulate`; or values that are none, or too many points.
    """
    request = Request(subject, target, here(database), **asked)
    texts = [
        (name, ",".join(map(str, v)) if isinstance(v, Sequence) and not isinstance(v, str)
         else str(v))
        for name, v in values.items()
    ]  # fmt: skip
    return swept(request, varied(base_of(request), texts), fidelity, schedules, budget)


def swept(
    request: Request,
    values: Sequence[tuple[str, Sequence[str]]],
    fidelity: str | None = None,
    schedules: Schedules = "best",
    budget: Budget = "area",
    told: Told = lambda done, total: None,
) -> Sweep:
    """Simulate a request's subject on the product of settings (`varied`).

    Args:
        request: its own settings are not looked at.
        fidelity: as `simulated`.
        told: how many points are done, of how many.

    Raises:
        InputError: subject, target or database are wrong; too many points; schedules that cannot be
            chosen so.
        TilesmithError: whatever keeps the subject from running on the target as it is.
    """
    count = math.prod(len(several) for _, several in values)
    if count > MOST:
        raise InputError(
            f"these settings make {count:,} points, and a sweep has at most {MOST:,}; "
            "'tilesmith explore' searches among more"
        )
    request = replace(request, settings=None)
    base = base_of(request)
    names = tuple(name for name, _ in values)
    texts = [
        tuple(zip(names, combination, strict=True))
        for combination in itertools.product(*(several for _, several in values))
    ]
    own = tuple((name, _text(base, name)) for name in names)
    play = _player(request, base, fidelity, schedules, texts)
    costed = _cost(base)
    told(0, len(texts) + 1)
    baseline = Point(own, play(0, base), costed)
    points = []
    for number, text in enumerate(texts, 1):
        told(number, len(texts) + 1)
        same = text == own
        points.append(baseline if same else _point(base, dict(own), text, partial(play, number)))
    told(len(texts) + 1, len(texts) + 1)
    rows = [baseline, *points]
    best = front([(row.spent(budget), row.latency_us) for row in rows])
    rows = [
        replace(row, on_front=number in best or (row is baseline and 0 in best))
        for number, row in enumerate(rows)
    ]
    notes = [] if costed is not None else [
        f"nothing here knows area and power of family '{base.family}'; no front is shown"
    ]  # fmt: skip
    if (said := _unlike(rows, schedules)) is not None:
        notes.append(said)
    return Sweep(base.name, names, rows[0], tuple(rows[1:]), schedules, budget, tuple(notes))


def base_of(request: Request) -> Target:
    """The target of a request as it is; of an artifact, the one it was compiled for."""
    if is_artifact(request.subject):
        from tilesmith.compiler.varying.loading import load
        from tilesmith.jobs.compiling import at_one_size

        return at_one_size(load(str(request.subject)), request.shapes or {}).recipe.target
    return resolve_target(
        request.target, calibrate=True, database=None if request.database is None
        else str(request.database),
    )  # fmt: skip


def _text(target: Target, name: str) -> str:
    value = target.fact(name).value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return Variation(name, ()).text(value)


def _cost(target: Target) -> HardwareCost | None:
    try:
        return simulators[target.family].hardware_cost(target)
    except TargetError:
        return None


def _point(
    base: Target,
    own: Mapping[str, str],
    settings: tuple[tuple[str, str], ...],
    play: Callable[[Target], SimulationResult],
) -> Point:
    """What comes of one combination; numbers that keep their value are left to what goes with
    others."""
    changed = {name: value for name, value in settings if value != own[name]}
    try:
        found = simulators[base.family].with_settings(base, changed)
        check_target(found)
    except TargetError as error:
        return Point(settings, None, None, str(error))
    try:
        return Point(settings, play(found), _cost(found))
    except TilesmithError as error:
        return Point(settings, None, _cost(found), str(error))


def _unlike(rows: Sequence[Point], schedules: Schedules) -> str | None:
    """A warning where the baseline runs schedules of a search and the others do not."""
    if schedules not in ("best", "chosen"):
        return None
    tuned = [0 if row.result is None else _tuned(row.result) for row in rows]
    if not tuned[0] or all(tuned[1:]):
        return None
    return (
        f"the baseline runs {tuned[0]} tuned schedules, which other machines do not have; "
        "--schedules searched compares like with like"
    )


def _tuned(result: SimulationResult) -> int:
    told = result.details.get("tuned")
    alone = sum(bool(op.details.get("tuned")) for op in result.ops)
    return alone if told is None else int(told)


# -- how a point is played ----------------------------------------------------------------------
def _player(
    request: Request,
    base: Target,
    fidelity: str | None,
    schedules: Schedules,
    texts: Sequence[tuple[tuple[str, str], ...]],
) -> Callable[[int, Target], SimulationResult]:
    """What simulates the subject on a target, the number of whose point is given first (0:
    the baseline)."""
    if is_artifact(request.subject):
        if schedules == "searched":
            raise InputError("a compiled model keeps its schedules; sweep the model it came from")
        return lambda _, target: simulated(_settled(request, base, target), fidelity, None)

    def chosen(_: int, target: Target) -> SimulationResult:
        return simulated(replace(request, target=target), fidelity, None)

    if schedules == "chosen":
        return chosen
    asked = replace(request, target=base).resolved(calibrate=True)
    if schedules == "searched":
        own = tuple((name, _text(base, name)) for name, _ in texts[0])
        found = _searched(asked, [own, *texts])
        return lambda n, target: _played(replace(asked, target=target), fidelity, found(n))
    known = _kept(asked, fidelity)

    def kept(_: int, target: Target) -> SimulationResult:
        return _played(replace(asked, target=target), fidelity, known)

    if schedules == "kept":
        return kept

    def better(number: int, target: Target) -> SimulationResult:
        first = chosen(number, target)
        other = kept(number, target) if number else first
        return other if other.latency_us < first.latency_us else first

    return better


def _settled(request: Request, base: Target, target: Target) -> Request:
    """An artifact's request, with what differs in a target from its own."""
    own = dict(base.facts)
    changed = {name: fact.value for name, fact in target.facts if fact.value != own[name].value}
    return replace(request, settings=changed)


def _whole(asked: Resolved, fidelity: str | None) -> bool:
    """Whether the subject is played as one program."""
    from tilesmith.compiler.backend import measures_models

    whole_too = fidelity in (None, "timeline")
    return is_model(asked.subject) and whole_too and measures_models(asked.target, "simulator")


def _kept(asked: Resolved, fidelity: str | None) -> Choices:
    """The baseline's schedules."""
    from tilesmith.compiler.program import kernels_of
    from tilesmith.jobs.compiling import build_fixed

    if _whole(asked, fidelity):
        steps = kernels_of(build_fixed(asked).recipe.steps)
        return {Workload.parse(s.workload): Config.from_json(s.config) for s in steps}
    workloads = [item.workload for item in parts_of(asked).workloads]
    check_schedulable(workloads, asked.target, simulated=True)
    best = best_configs(workloads, asked)
    return {w: best.get(w.key) or default_of(w, asked.target) for w in workloads}


def _searched(
    asked: Resolved, points: Sequence[tuple[tuple[str, str], ...]]
) -> Callable[[int], Choices]:
    """Schedules of every point, found by sampling and breeding on the simulator's judgement."""
    from tilesmith.exploration.search import explored

    text = asked.target.to_json()
    workloads = [item.workload for item in parts_of(asked).workloads]
    check_schedulable(workloads, asked.target)
    configs = {
        w: explored(w.key, text, [list(point) for point in points], 0)["configs"] for w in workloads
    }

    def of(number: int) -> Choices:
        return {w: Config.from_json(c[number]) for w, c in configs.items() if c[number]}

    return of


def _played(asked: Resolved, fidelity: str | None, known: Choices) -> SimulationResult:
    """The subject with these schedules where they are legal, elsewhere with defaults."""
    if _whole(asked, fidelity):
        return _program(asked, known)
    whole = parts_of(asked)
    check_schedulable([item.workload for item in whole.workloads], asked.target, simulated=True)
    legal = _legal(known, [item.workload for item in whole.workloads], asked.target)
    parts = [Part(i.workload, i.weight, legal.get(i.workload)) for i in whole.workloads]
    return simulate_parts(parts, asked.target, fidelity or "analytical", None, whole.notes)  # type: ignore[arg-type]


def _program(asked: Resolved, known: Choices) -> SimulationResult:
    from tilesmith.compiler.backend import backend_of
    from tilesmith.compiler.build import BuildOptions, recipe_of
    from tilesmith.jobs.graphs import graph_of, updates_of

    def pins(kernels: Graph) -> Choices:
        workloads = [node.workload for node in kernels.nodes if node.workload is not None]
        return _legal(known, workloads, asked.target)

    updates = {**updates_of(asked.model), **asked.updates}
    options = BuildOptions(asked.threads, asked.precision, updates=updates)
    recipe = recipe_of(graph_of(asked.model, asked.shapes), asked.target, None, options, pins)
    return backend_of(asked.target).simulate(recipe)


def _legal(known: Choices, workloads: Sequence[Workload], target: Target) -> Choices:
    return {w: known[w] for w in workloads if w in known and known[w] in space_of(w, target)}
