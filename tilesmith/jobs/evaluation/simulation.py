"""Simulate operators and whole models: one `SimulationResult`, whatever was asked for.

A model on an accelerator is its compiled program, played on the timeline. Elsewhere, and at the
other fidelities, a model's cost is the sum of its operators' costs, one after the other; host
operators (those without a template) are not in it and are named in the notes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tilesmith.codegen.programs.structures import space_of
from tilesmith.jobs.compilation.compiling import at_one_size, build_fixed, parts_of
from tilesmith.jobs.requests.request import Request, Resolved
from tilesmith.jobs.subjects.subject import is_artifact, is_compiled, is_model
from tilesmith.jobs.subjects.targets import check_schedulable
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.files import check_output
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import Fidelity, OperatorCost, SimulationResult, simulate
from tilesmith.simulator.dispatch import simulators
from tilesmith.simulator.telling import tell


@dataclass(frozen=True)
class SimulatedOperator:
    """An operator to simulate: how often it runs, in which configuration (None: the default)."""

    workload: Workload
    weight: float
    config: Config | None


def simulated(request: Request, fidelity: str | None, trace: Path | None) -> SimulationResult:
    """What a request's subject costs.

    Args:
        fidelity: None: the timeline for a model on an accelerator, else analytical.

    Raises:
        InputError: subject, target, database or fidelity are wrong.
    """
    from tilesmith.compiler.backends.backend import backend_of, measures_models

    if trace is not None:
        named = (request.subject, request.database)
        check_output(trace, *(path for path in named if isinstance(path, str | Path)))
    if is_artifact(request.subject):
        return simulate_artifact(request, fidelity, trace)
    asked = request.resolved(calibrate=True)
    whole_too = fidelity in (None, "timeline") and is_model(asked.subject)
    if asked.chips > 1:
        backend_of(asked.target).check_chips(asked.target, asked.chips)
        if not whole_too:
            return _over_chips(asked, fidelity, trace)
    if whole_too and measures_models(asked.target, "simulator"):
        tell("compiling the model")
        recipe = build_fixed(asked).recipe
        tell("playing the model's program")
        return backend_of(asked.target).simulate(recipe, trace=trace)
    whole = parts_of(asked)
    workloads = [item.workload for item in whole.workloads]
    check_schedulable(workloads, asked.target, simulated=True)
    tell(f"judging {len(workloads)} operators")
    best = best_configs(workloads, asked)
    parts = [
        SimulatedOperator(item.workload, item.weight, best.get(item.workload.key))
        for item in whole.workloads
    ]
    return simulate_parts(parts, asked.target, fidelity or "analytical", trace, whole.notes)  # type: ignore[arg-type]


def _over_chips(asked: Resolved, fidelity: str | None, trace: Path | None) -> SimulationResult:
    """One operator over several chips.

    Raises:
        InputError: a model, several operators, another fidelity than the timeline, or a trace.
    """
    items = [] if is_model(asked.subject) else parts_of(asked).workloads
    if len(items) != 1 or fidelity not in (None, "timeline") or trace is not None:
        raise InputError(
            "--chips is of a whole model or a single operator, on the timeline and without a "
            "trace; leave it out"
        )
    return simulators[asked.target.family].over_chips(items[0].workload, asked.target, asked.chips)


def best_configs(workloads: Sequence[Workload], asked: Resolved) -> dict[str, Config]:
    """The fastest configuration on record of each workload that has one, by its key."""
    if asked.database is None:
        return {}
    from tilesmith.records.database import Database

    with Database.open(asked.database, create=False) as opened:
        bests = opened.bests(workloads, asked.target, asked.threads)
    return {key: best.record.config for key, best in bests.items()}


def simulate_artifact(
    request: Request, fidelity: str | None, trace: Path | None
) -> SimulationResult:
    """A compiled model on its own target, some of whose numbers may be changed by `settings`.

    Raises:
        ModelError: the artifact cannot be read.
        TargetError: an unknown setting, or a value out of range.
    """
    from tilesmith.compiler.backends.backend import backend_of, measures_models
    from tilesmith.compiler.recipe.program import HostStep, KernelStep
    from tilesmith.compiler.varying.executable import load

    given = request.subject
    loaded = given if is_compiled(given) else load(str(given))
    recipe = at_one_size(loaded, request.shapes or {}).recipe
    if request.chips not in (1, recipe.chips):
        raise InputError(
            f"'{request.subject}' was compiled for {recipe.chips} chips, not {request.chips}; "
            "compile the model again"
        )
    target = recipe.target.with_settings(request.settings) if request.settings else recipe.target
    if fidelity in (None, "timeline") and measures_models(target, "simulator"):
        return backend_of(target).simulate(recipe, target, trace)
    counts = Counter(
        (step.workload, step.config) for step in recipe.steps if isinstance(step, KernelStep)
    )
    parts = [_part(*names, count, target) for names, count in counts.items()]
    hosts = [step.name for step in recipe.steps if isinstance(step, HostStep)]
    notes = tuple(f"{name} on the host, not counted" for name in hosts)
    return simulate_parts(parts, target, fidelity or "analytical", trace, notes)  # type: ignore[arg-type]


def _part(workload: str, config: str, count: int, target: Target) -> SimulatedOperator:
    """A kernel of an artifact. Where sizes vary, its configuration may be one of other sizes; then
    the default stands for it."""
    parsed, chosen = Workload.parse(workload), Config.from_json(config)
    legal = chosen in space_of(parsed, target)
    return SimulatedOperator(parsed, float(count), chosen if legal else None)


def simulate_parts(
    parts: Sequence[SimulatedOperator],
    target: Target,
    fidelity: Fidelity,
    trace: Path | None = None,
    notes: tuple[str, ...] = (),
) -> SimulationResult:
    """The cost of all parts, run one after the other.

    Raises:
        InputError: a trace is asked for of more than one operator.
    """
    if trace is not None and len(parts) != 1:
        raise InputError(
            f"--trace shows a single operator and this is {len(parts)} of them; name one with --op"
        )
    results = [simulate(part.workload, target, part.config, fidelity, trace) for part in parts]
    if len(parts) == 1 and parts[0].weight == 1:
        return replace(results[0], notes=(*results[0].notes, *notes))
    return _sum(parts, results, notes)


def _sum(
    parts: Sequence[SimulatedOperator], results: Sequence[SimulationResult], notes: tuple[str, ...]
) -> SimulationResult:
    weights = [part.weight for part in parts]
    latency = sum(w * r.latency_us for w, r in zip(weights, results, strict=True))
    shares = [w * r.latency_us / latency for w, r in zip(weights, results, strict=True)]
    engines: dict[str, float] = {}
    bounds: dict[str, float] = {}
    for share, result in zip(shares, results, strict=True):
        bounds[result.bound] = bounds.get(result.bound, 0.0) + share
        for name, busy in result.engines.items():
            engines[name] = engines.get(name, 0.0) + share * busy
    cycles = sum(w * r.cycles for w, r in zip(weights, results, strict=True))
    compute = sum(w * r.compute_cycles for w, r in zip(weights, results, strict=True))
    texts = dict.fromkeys(note for result in results for note in result.notes)
    return SimulationResult(
        target=results[0].target,
        fidelity=results[0].fidelity,
        cycles=round(cycles),
        compute_cycles=round(compute),
        latency_us=latency,
        bound=max(bounds, key=lambda bound: bounds[bound]),
        engines=engines,
        ops=tuple(_operator(p, r) for p, r in zip(parts, results, strict=True)),
        notes=(*texts, *notes),
    )


def _operator(part: SimulatedOperator, result: SimulationResult) -> OperatorCost:
    """One line of the table: `latency_us` is of one run, `weight` says how many there are."""
    details = {
        "weight": part.weight,
        "cycles": result.cycles,
        "compute_cycles": result.compute_cycles,
        "engines": dict(result.engines),
        "tuned": part.config is not None,
    }
    return OperatorCost(str(part.workload), result.latency_us, result.bound, details)
