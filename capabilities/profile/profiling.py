"""Profile a model: measure its operators inside its runs, and set what was foretold beside them.

On a machine that is only described, the simulator's times of the same operators stand instead.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Unpack

from tilesmith.capabilities.profile.advice import advised
from tilesmith.capabilities.profile.notes import notes, shared_core
from tilesmith.capabilities.profile.report import Kind, OperatorTime, ProfileReport, parted
from tilesmith.codegen.programs.structures import space_of
from tilesmith.jobs.compilation.compiling import at_one_size, executable_of
from tilesmith.jobs.compilation.seeded_inputs import seeded_inputs
from tilesmith.jobs.databases import BY_DEFAULT, Named, here
from tilesmith.jobs.keywords import takes
from tilesmith.jobs.measures.timing import pinned
from tilesmith.jobs.requests.request import Asked, Request
from tilesmith.jobs.subjects.subject import is_model
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.scalar import is_product
from tilesmith.search_space.hardware.target import HOST, Target
from tilesmith.search_space.scheduling.compute import ComputeDefinition
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError, TilesmithError
from tilesmith.search_space.workloads.scheduler import scheduler_of
from tilesmith.search_space.workloads.template import compute_of, template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import SimulationResult, simulators
from tilesmith.tuner.measurement.timing import interruptions

if TYPE_CHECKING:
    from tilesmith.compiler.recipe.program import KernelStep, Recipe
    from tilesmith.compiler.runtime.executable import Executable
    from tilesmith.compiler.runtime.profiling import Event
    from tilesmith.compiler.runtime.step_times import StepTimes
    from tilesmith.jobs.subjects.subject import Compiled, Model

CONVERSION = "layout_transform"
"""The operator that brings a tensor into another layout."""

_BETWEEN = "the way into native code and out of it, Python between segments"
_LEAST_RUNS = 5
"""Fewer say nothing of what usually happens."""

_BETWEEN_SIMULATED = "what runs beside operators, or between them (linking, transfers)"


@dataclass(frozen=True)
class Profiled:
    """A report, and what happened in the first runs."""

    report: ProfileReport
    events: "tuple[Event, ...]" = ()


@takes(Asked)
def profile(
    model: "Model | Compiled",
    inputs: Mapping[str, Any] | None = None,
    target: str | Target = HOST,
    database: Named = BY_DEFAULT,
    *,
    time_limit: float = 2.0,
    runs: int | None = None,
    seconds: float | None = None,
    **asked: Unpack[Asked],
) -> ProfileReport:
    """Measure every operator inside a running model, beside what the simulator foretold of it.

    Args:
        model: as `compile`; or an executable, or the path of an artifact.
        inputs: arrays by name; seeded random ones if None.
        database: where tuned schedules are looked up, as `compile`.
        time_limit: seconds to look, runs that nobody looks at included.
        runs: how many runs to look at, whatever time it takes.
        seconds: what `time_limit` was called.
        asked: `threads`, `precision`, `shapes`, `settings`, as `tune`.

    Returns:
        operators with their times, bounds and origins, in the order they run, and what to try; on a
        machine that is only described, the simulator's times.

    Raises:
        InputError: model, inputs, target or database are wrong.
        JobError: a run failed.
    """
    request = Request(model, target, here(database), **asked)
    limit = time_limit if seconds is None else seconds
    return profiled(request, inputs, limit, runs).report


def profiled(
    request: Request,
    inputs: Any = None,
    seconds: float = 2.0,
    runs: int | None = None,
) -> Profiled:
    """Profile a request's model.

    Args:
        inputs: arrays by name; seeded random ones if None.
        seconds: how long to look, where `runs` does not say how many runs.

    Raises:
        InputError: the subject is no model, or the machine cannot run it; as `compile` and `run`.
        JobError: a run failed.
    """
    from tilesmith.compiler.backends.backend import backend_of, measures_models

    if not is_model(request.subject):
        raise InputError("a profile is of a model; 'tilesmith measure' times single operators")
    if runs is not None and runs < _LEAST_RUNS:
        raise InputError(f"--runs = {runs} is out of range; at least {_LEAST_RUNS}")
    executable = at_one_size(executable_of(request), request.shapes or {})
    recipe = executable.recipe
    if not measures_models(recipe.target, "hardware"):
        result = backend_of(recipe.target).simulate(recipe)
        report = _simulated(recipe, result)
        advice = advised(report, request, recipe.target, executable.source)
        return Profiled(replace(report, advice=advice))
    given = seeded_inputs(request, executable) if inputs is None else inputs
    profile, events = _measured(executable, given, seconds, runs)
    advice = advised(profile, request, recipe.target, executable.source)
    return Profiled(replace(profile, advice=advice), events)


def _measured(
    executable: "Executable", inputs: Any, seconds: float, runs: int | None
) -> "tuple[ProfileReport, tuple[Event, ...]]":
    from tilesmith.compiler.runtime.profiling import profiled as looked_at

    recipe = executable.recipe
    target = simulators[recipe.target.family].calibrated(recipe.target, True)
    with pinned(recipe.threads):
        wall, worked, taken = time.perf_counter(), time.process_time(), interruptions()
        profile = looked_at(executable, inputs, seconds, runs)
        wall = time.perf_counter() - wall
        had = (time.process_time() - worked) / wall
        breaks = (interruptions() - taken) * profile.total_us * 1e-6 / wall
        counts, why = _counted(executable, inputs)
    oracle = _Oracle(target)
    ops = [_operator(times, recipe, oracle) for times in profile.steps]
    ops = parted(replace(op, share=op.us / max(profile.total_us, 1e-9)) for op in ops)
    report = ProfileReport(
        recipe.title,
        recipe.target.name,
        recipe.threads,
        recipe.report.precision,
        "hardware",
        profile.total_us,
        tuple(ops),
        profile.plain_us,
        profile.timed_us,
        profile.call_us,
        profile.runs,
        profile.kept,
        _BETWEEN,
        counts,
        notes=(*notes(recipe, profile), *shared_core(had, breaks, profile.total_us), *why),
    )
    return report, profile.events


_COUNTED = 10
"""Runs that hardware counters are read over."""


def _counted(executable: "Executable", inputs: Any) -> tuple[dict[str, float], tuple[str, ...]]:
    """Hardware counters of a run by name; or a sentence that says why there are none."""
    from tilesmith.capabilities.profile.hardware_counters import Counters

    bound = executable.bind(inputs)
    bound.run()
    with Counters() as counters:
        for _ in range(_COUNTED):
            bound.run()
    counts = {name: count / _COUNTED for name, count in counters.counts.items()}
    if counters.why:
        return counts, (f"the kernel gives no hardware counters here: {counters.why}",)
    return counts, ()


# -- what was foretold --------------------------------------------------------------------------
@dataclass(frozen=True)
class _Foretold:
    """Of one call: microseconds, what bounds it, and the roofline's two sides.

    Attributes:
        compute_us: of what the algorithm of the schedule computes.
        arithmetic: that, as a share of the operator's own operations.
        least: the same of the algorithm that computes least.
    """

    us: float | None
    bound: str
    compute_us: float | None
    memory_us: float | None
    flops: int
    nbytes: int
    algorithm: str = ""
    arithmetic: float = 1.0
    least: float = 1.0

    @property
    def roofline_us(self) -> float | None:
        """What the machine allows, whatever the schedule."""
        if self.compute_us is None or self.memory_us is None:
            return None
        return max(self.compute_us * self.least / self.arithmetic, self.memory_us)


class _Oracle:
    """What the simulator says of a kernel, each asked once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._known: dict[tuple[str, str, int], _Foretold] = {}

    def of(self, step: "KernelStep", threads: int) -> _Foretold:
        key = step.workload, step.config, threads
        if key not in self._known:
            self._known[key] = self._asked(*key)
        return self._known[key]

    def _asked(self, key: str, config: str, threads: int) -> _Foretold:
        workload = Workload.parse(key)
        template = template_of(workload.operator)
        operands = (*template.operands(workload), template.output(workload))
        nbytes = sum(prod(o.shape) * size_of(o.dtype) for o in operands)
        flops = template.flops(workload)
        simulator = simulators[self.target.family].on_threads(threads)
        us, bound, compute, memory = None, "", None, None
        algorithm, arithmetic, least = "", 1.0, 1.0
        try:
            roof = simulator.simulate(workload, self.target, None, "roofline", None)
            compute, memory = (
                roof.latency_us * roof.engines.get(side, 0.0) for side in ("compute", "memory")
            )
            chosen = Config.from_json(config)
            algorithm = str(chosen.get("algorithm", ""))
            arithmetic = _arithmetic(workload, self.target, chosen)
            compute = compute * arithmetic
            least = min(arithmetic, _least_arithmetic(workload, self.target))
            simulated = simulator.simulate(workload, self.target, chosen, "analytical", None)
            us, bound = simulated.latency_us, simulated.bound
        except (TilesmithError, ArithmeticError):  # a schedule of other sizes, or of no model
            pass
        return _Foretold(us, bound, compute, memory, flops, nbytes, algorithm, arithmetic, least)


def _arithmetic(workload: Workload, target: Target, config: Config) -> float:
    """What a schedule multiplies and adds, as a share of what the operator is: Winograd's is less,
    that of padded tiles more."""
    direct = _multiply_adds(compute_of(workload))
    structure = space_of(workload, target).structure(config)
    schedule = scheduler_of(workload, target).schedule(workload, target, structure)
    chosen = _multiply_adds(schedule.compute)
    return chosen / direct if direct and chosen else 1.0


def _multiply_adds(compute: ComputeDefinition) -> int:
    """How often it multiplies and adds at run time: sums of products, of sizes that are known.
    Matrices folded into the code, most of them 0 and 1, are none."""
    total = 0
    literals = {tensor.name for tensor in compute.inputs if tensor.values is not None}
    for stage in compute.stages:
        product = is_product(stage.value) and not stage.reads & literals
        if stage.reducer == "sum" and product and not compute.is_constant(stage.name):
            extents = (a.extent.constant for a in (*stage.axes, *stage.reduce_axes))
            total += prod(0 if extent is None else extent for extent in extents)
    return total


def _least_arithmetic(workload: Workload, target: Target) -> float:
    """The same of the algorithm that multiplies and adds least, of those that need no tuning."""
    scheduler = scheduler_of(workload, target)
    configs = (scheduler.default(workload, target), *scheduler.alternatives(workload, target))
    return min(_arithmetic(workload, target, config) for config in configs)


def _operator(times: "StepTimes", recipe: "Recipe", oracle: _Oracle) -> OperatorTime:
    from tilesmith.compiler.recipe.program import HostStep, KernelStep, MoveStep

    step = times.step
    common: dict[str, Any] = {
        "us": times.us, "calls": times.calls, "wait_us": times.wait_us, "inside": times.inside,
    }  # fmt: skip
    if isinstance(step, MoveStep):
        nbytes = round(2 * step.nbytes * times.calls)
        return OperatorTime(step.name or "move", "move", kind="move", bytes=nbytes, **common)
    common["sources"] = step.sources
    if isinstance(step, HostStep):
        return OperatorTime(_named(step), step.operator, kind="host", **common)
    if not isinstance(step, KernelStep):
        trips = "loop" if hasattr(step, "trips") else "branch"
        return OperatorTime(_named(step), trips, kind="loop", **common)
    threads = min(step.threads or recipe.threads, recipe.threads)
    foretold, calls = oracle.of(step, threads), times.calls
    kind: Kind = "conversion" if step.workload.startswith(f"{CONVERSION} ") else "kernel"
    return OperatorTime(
        _named(step),
        step.workload.partition(" ")[0],
        predicted_us=None if foretold.us is None else foretold.us * calls,
        bound=foretold.bound,
        share_of_peak=_share(foretold.compute_us, times.us, calls) if foretold.flops else 0.0,
        origin=step.origin,
        kind=kind,
        algorithm=foretold.algorithm,
        arithmetic=foretold.arithmetic,
        workload=step.workload,
        config=step.config,
        flops=round(foretold.flops * calls),
        bytes=round(foretold.nbytes * calls),
        share_of_bandwidth=_share(foretold.memory_us, times.us, calls),
        roofline_us=None if foretold.roofline_us is None else foretold.roofline_us * calls,
        threads=threads,
        **common,
    )


def _share(least: float | None, us: float, calls: float) -> float | None:
    return None if least is None or us <= 0 else least * calls / us


def _named(step: Any) -> str:
    """The name of the model's node, or what the step is called."""
    return str(step.sources[0] if step.sources else step.name)


# -- machines that are described ----------------------------------------------------------------
def _simulated(recipe: "Recipe", result: SimulationResult) -> ProfileReport:
    """The simulator's times of the same operators."""
    from tilesmith.compiler.recipe.program import kernels_of

    steps: dict[tuple[str, str], list[KernelStep]] = defaultdict(list)
    for step in kernels_of(recipe.steps):
        steps[step.workload, step.config].append(step)
    ops = [
        op
        for cost in result.ops
        for op in _of_cost(cost, steps.get((cost.workload, cost.details.get("config", "")), ()))
    ]
    total = result.latency_us
    return ProfileReport(
        recipe.title,
        result.target,
        recipe.threads,
        recipe.report.precision,
        "simulator",
        total,
        tuple(parted(replace(op, share=op.us / max(total, 1e-9)) for op in ops)),
        between=_BETWEEN_SIMULATED,
        notes=result.notes,
    )


def _of_cost(cost: Any, steps: "Sequence[KernelStep]") -> list[OperatorTime]:
    """The operators that one line of the simulator's table is of, each with its equal part."""
    workload = Workload.parse(cost.workload)
    weight = float(cost.details.get("weight", 1))
    whole = float(cost.details.get("shown_us", cost.latency_us * weight))
    roof = cost.details.get("roofline_us")
    engines = cost.details.get("engines", {})
    peak = max(engines.values(), default=None)
    each = max(1, len(steps))
    kind: Kind = "conversion" if workload.operator == CONVERSION else "kernel"
    template = template_of(workload.operator)
    return [
        OperatorTime(
            _named(step) if step else cost.workload,
            workload.operator,
            whole / each,
            cost.latency_us * weight / each,
            cost.bound,
            peak,
            cost.details.get("origin", ""),
            kind,
            calls=weight / each,
            sources=step.sources if step else (),
            workload=cost.workload,
            config=cost.details.get("config", ""),
            flops=round(template.flops(workload) * weight / each),
            bytes=int(cost.details.get("bytes_moved", 0)),
            roofline_us=None if roof is None else roof * weight / each,
        )
        for step in (steps or (None,))
    ]
