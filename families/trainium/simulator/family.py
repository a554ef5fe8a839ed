"""The simulator of family "trainium": three fidelities behind one call.

- roofline: closed form, whatever the configuration;
- analytical: the symbolic program of the configuration's structure, evaluated for whole batches;
- timeline: the instruction stream of one configuration, played instruction by instruction.

Programs are lowered once for each skeleton (`search_space.scheduling.skeleton`), whose
configurations are judged together, and kept for the latest workloads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from tilesmith.codegen.programs.structures import default_of, first_that_works, space_of
from tilesmith.families.kit.programs.skeleton import marked, parted, settled
from tilesmith.families.kit.simulation.compulsory import compulsory_bytes
from tilesmith.families.kit.simulation.operator_lane import OperatorSpan
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Opcode
from tilesmith.families.trainium.codegen.selection.from_program import Plans, generate
from tilesmith.families.trainium.codegen.selection.staging import constants_of, stage
from tilesmith.families.trainium.simulator.estimation.analytical import Analysis
from tilesmith.families.trainium.simulator.estimation.estimate import (
    COLUMNS,
    RESOURCES,
    VERDICT,
    Array,
    StatementCosts,
    features,
)
from tilesmith.families.trainium.simulator.estimation.roofline import roofline
from tilesmith.families.trainium.simulator.hardware_cost import array_settings, hardware_cost
from tilesmith.families.trainium.simulator.timelines.drawing import draw, span_of
from tilesmith.families.trainium.simulator.timelines.timeline import (
    SYNCHRONISATION_SHARE,
    Timeline,
    timeline,
)
from tilesmith.search_space.hardware.target import FactValue, Target
from tilesmith.search_space.ir.program import Program
from tilesmith.search_space.ir.settings import Settings
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.results.judgement import Judgement
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.support.errors import (
    CodegenError,
    ConfigError,
    VerificationError,
    WorkloadError,
)
from tilesmith.search_space.workloads.scheduler import scheduler_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.designs.hardware_cost import HardwareCost
from tilesmith.simulator.dispatch import (
    FamilySimulator,
    Fidelity,
    OperatorCost,
    SimulationResult,
    simulators,
)

KEPT = 256
"""Skeletons kept lowered."""

LOWERED_KEPT = 1024
"""Skeletons whose programs are kept, for targets that differ in rates."""

SHAPE = (
    "cores_per_chip", "hbm.gib_chip", "psum.", "sbuf.",
    "tensor.cols", "tensor.fp8_k_max", "tensor.moving_free", "tensor.rows",
)  # fmt: skip
"""Facts, or beginnings of their names, that are sizes; all others are rates."""

STRUCTURES_KEPT = 8192
"""Structures whose skeleton is known."""


def _parted(
    workload: Workload, target: Target, space: SearchSpace, config: Config
) -> tuple[Analysis, Settings]:
    """A configuration's skeleton, ready to be evaluated, and its settings."""
    names = space.setting_knobs
    structure = space.structure(config)
    analysis, settings = _skeleton(workload, target, marked(structure, names))
    return analysis, settled(settings, structure, names)


@lru_cache(maxsize=STRUCTURES_KEPT)
def _skeleton(workload: Workload, target: Target, structure: Config) -> tuple[Analysis, Settings]:
    """The skeleton of a structure, knobs that are settings marked, and its settings."""
    skeleton, settings = _parts(workload, _alike(target), structure)
    return _analysis(workload, target, skeleton), settings


@lru_cache(maxsize=STRUCTURES_KEPT)
def _parts(workload: Workload, alike: Target, structure: Config) -> tuple[Schedule, Settings]:
    return parted(scheduler_of(workload, alike).schedule(workload, alike, structure))


@lru_cache(maxsize=KEPT)
def _alike(target: Target) -> Target:
    """The first target met that has the same sizes. Programs depend on nothing else (rates only
    order a space's parts), so targets that differ in rates, as many design points do, share them.
    """
    facts = tuple((name, fact.value) for name, fact in target.facts if name.startswith(SHAPE))
    return _first(target.name, facts).setdefault("met", target)


@lru_cache(maxsize=KEPT)
def _first(name: str, sizes: tuple[tuple[str, FactValue], ...]) -> dict[str, Target]:
    return {}


@lru_cache(maxsize=KEPT)
def _space(workload: Workload, target: Target) -> SearchSpace:
    _check_size(workload, target)
    return space_of(workload, _alike(target))


def _check_size(workload: Workload, target: Target) -> None:
    """Raise `WorkloadError` where a core's memory does not hold the operands."""
    core = Core.of(target)
    needed = compulsory_bytes(workload)
    if needed > core.hbm_bytes:
        raise WorkloadError(
            f"workload '{workload}' needs {needed / 2**30:.1f} GiB; a core of target "
            f"'{target.name}' has {core.hbm_bytes / 2**30:.1f} GiB (hbm.gib_chip)"
        )


def _default(workload: Workload, target: Target) -> Config:
    """The default configuration.

    Raises:
        WorkloadError: not even the smallest tiles fit; which limit they break is said.
    """
    try:
        return default_of(workload, target)
    except ConfigError as error:
        raise WorkloadError(
            f"no schedule of workload '{workload}' fits target '{target.name}': {error}"
        ) from error


@lru_cache(maxsize=KEPT)
def _analysis(workload: Workload, target: Target, skeleton: Schedule) -> Analysis:
    return _lowered(workload, _alike(target), skeleton).on(Core.of(target))


@dataclass(eq=False)
class _Lowered:
    """A skeleton, lowered and verified once, and its first analysis."""

    workload: Workload
    program: Program
    known: Analysis | None = None

    def on(self, core: Core) -> Analysis:
        """The analysis on a core of the same sizes."""
        if self.known is None:
            self.known = Analysis(self.program, core, constants_of(self.program, self.workload))
        return self.known.on(core)


@lru_cache(maxsize=LOWERED_KEPT)
def _lowered(workload: Workload, alike: Target, skeleton: Schedule) -> _Lowered:
    program = lower(skeleton)
    verify(program, alike)
    return _Lowered(workload, program)


@lru_cache(maxsize=KEPT)
def _plans(analysis: Analysis, tiles: tuple[tuple[str, int], ...]) -> Plans:
    """A skeleton with these tile sizes, ready for code generation."""
    return Plans(analysis.program.bind(dict(tiles)), analysis.core.target)


def instruction_stream(workload: Workload, target: Target, config: Config) -> InstructionStream:
    """The instruction stream of one configuration.

    Raises:
        ConfigError: the configuration is outside the workload's space.
        CodegenError: the operator has a part that no instruction does.
    """
    space = _space(workload, target)
    space.validate(config)
    analysis, settings = _parted(workload, target, space, config)
    plans = _plans(analysis, tuple(space.tiles(config).items()))
    return generate(plans, Core.of(target), settings)


def staged_stream(workload: Workload, target: Target, config: Config) -> InstructionStream:
    """The same with constants laid out as they are loaded, as a model has them: what is timed."""
    stream = instruction_stream(workload, target, config)
    analysis, _ = _parted(workload, target, _space(workload, target), config)
    return stage(stream, analysis.constants).stream


@dataclass
class _Group:
    """Configurations of one skeleton: their places in a batch, settings and tile sizes."""

    analysis: Analysis
    members: list[int] = field(default_factory=list)
    settings: list[Settings] = field(default_factory=list)
    tiles: list[dict[str, int]] = field(default_factory=list)

    def evaluate(self) -> tuple[StatementCosts, Array]:
        """Estimates, and memory taken."""
        columns = {name: np.array([t[name] for t in self.tiles]) for name in self.tiles[0]}
        settings = [column[0] if len(set(column)) == 1 else np.array(column)
                    for column in zip(*self.settings, strict=True)]  # fmt: skip
        return self.analysis.evaluate(columns, len(self.members), settings)


def _estimates(
    workload: Workload, target: Target, configs: Sequence[Config]
) -> tuple[StatementCosts, Array, list[int]]:
    """Estimates of all configurations, what memory they take, and the place of each in them."""
    space = _space(workload, target)
    groups: dict[int, _Group] = {}
    for index, config in enumerate(configs):
        analysis, settings = _parted(workload, target, space, config)
        group = groups.setdefault(id(analysis), _Group(analysis))
        group.members.append(index)
        group.settings.append(settings)
        group.tiles.append(space.tiles(config))
    parts: list[StatementCosts] = []
    memory: list[Array] = []
    order: list[int] = []
    for group in groups.values():
        estimate, taken = group.evaluate()
        parts.append(estimate)
        memory.append(taken)
        order += group.members
    whole = StatementCosts(
        np.concatenate([p.data for p in parts], axis=1), np.concatenate([p.span for p in parts])
    )
    place = [0] * len(order)
    for position, index in enumerate(order):
        place[index] = position
    return whole, np.concatenate(memory, axis=1), place


class TrainiumSimulator(FamilySimulator):
    """See the module's docstring."""

    judges_as_measured = False

    def check(self, target: Target) -> None:
        """Raise `TargetError` unless the target has all that is read of it."""
        Core.of(target)

    def with_settings(self, target: Target, settings: Mapping[str, str | FactValue]) -> Target:
        """The target with facts changed; an array's sides, and what they stand on, go together."""
        return target.with_settings(array_settings(target, settings))

    def alike(self, target: Target) -> Target:
        return _alike(target)

    def hardware_cost(self, target: Target) -> HardwareCost:
        return hardware_cost(target)

    def judge(self, workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
        """Analytical estimates of many configurations (which must be of the workload's space)."""
        core = Core.of(target)
        floor = roofline(workload, core).latency
        if not configs:
            return Judgement(np.zeros(0), np.zeros((0, len(COLUMNS)), dtype=np.float32), [])
        whole, memory, place = _estimates(workload, target, configs)
        latency = np.maximum(whole.latency, floor)
        busiest = whole.occupied.argmax(axis=0)
        waiting = whole.step < SYNCHRONISATION_SHARE * latency
        bound = ["synchronisation" if waiting[p] else RESOURCES[busiest[p]] for p in place]
        rows = features(whole, memory, floor)[place]
        return Judgement(latency[place] * 1e-9, rows, bound, VERDICT)

    def measure(self, workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
        """Every configuration on the timeline; features are the analytical ones."""
        judged = self.judge(workload, target, configs)
        latency, bound = np.full(len(configs), np.nan), [""] * len(configs)
        failures = {}
        for index, config in enumerate(configs):
            try:
                played = timeline(staged_stream(workload, target, config))
            except (CodegenError, VerificationError) as error:
                failures[index] = MeasureResult.failed(error, "simulator")
            else:
                latency[index], bound[index] = played.makespan * 1e-9, played.bound
        return Judgement(latency, judged.features, bound, judged.verdict, failures)

    def simulate(
        self,
        workload: Workload,
        target: Target,
        config: Config | None,
        fidelity: Fidelity,
        trace: Path | None,
    ) -> SimulationResult:
        """One configuration, or the default one. A trace is always of the timeline."""
        core, alone = Core.of(target), fidelity == "roofline" and trace is None
        if config is not None:
            _space(workload, target).validate(config)
        if alone:  # asks nothing of the space, which may take longer than all else
            scheduler_of(workload, target)
            _check_size(workload, target)
            return _roofline_result(workload, core)
        if fidelity == "analytical" and trace is None:
            return _analytical_result(workload, target, config or _default(workload, target), core)
        build = partial(staged_stream, workload, target)
        if config is not None:
            stream = build(config)
        else:
            config, stream = first_that_works(workload, target, _default(workload, target), build)
        played = timeline(stream)
        notes = draw(played, trace, _spans(played, workload, config)) if trace else ()
        if fidelity != "timeline":
            notes += (f"a trace is of the timeline: these figures are, too, not {fidelity} ones",)
        return _timeline_result(workload, config, played, notes)


TRAINIUM = simulators.register("trainium")(TrainiumSimulator())


def _spans(played: Timeline, workload: Workload, config: Config) -> list[OperatorSpan]:
    """The one operator at work."""
    every = np.ones(len(played.stream), np.bool_)
    arguments = {"workload": workload.key, "config": config.key}
    span = span_of(played, every, workload.operator, arguments)
    return [] if span is None else [span]


def _result(
    workload: Workload,
    core: Core,
    fidelity: Fidelity,
    latency: float,
    compute: float,
    bound: str,
    engines: dict[str, float],
    details: dict[str, Any],
) -> SimulationResult:
    """A result from times in ns; cycles are the tensor engine's."""
    least = roofline(workload, core).latency
    details = {**details, "roofline_us": least / 1e3}
    return SimulationResult(
        target=core.target.name,
        fidelity=fidelity,
        cycles=round(latency * core.clocks[0]),
        compute_cycles=round(compute * core.clocks[0]),
        latency_us=latency / 1e3,
        bound=bound,
        engines=engines,
        ops=(OperatorCost(workload.key, latency / 1e3, bound, details),),
        details=details,
    )


def _roofline_result(workload: Workload, core: Core) -> SimulationResult:
    bounds = roofline(workload, core)
    shares = {"tensor": bounds.compute / bounds.latency, "dma": bounds.memory / bounds.latency}
    times = bounds.latency, bounds.compute
    return _result(workload, core, "roofline", *times, bounds.bound, shares, {})


def _analytical_result(
    workload: Workload, target: Target, config: Config, core: Core
) -> SimulationResult:
    judged = TRAINIUM.judge(workload, target, [config])
    whole, _, _ = _estimates(workload, target, [config])
    latency = float(judged.latency[0]) * 1e9
    shares = {name: float(whole.occupied[i, 0]) / latency for i, name in enumerate(RESOURCES)}
    details = {
        "config": config.key,
        "bytes_moved": int(whole.moved[0]),
        "transposes": int(whole.transposes[0]),
        "instructions": int(whole.count[0]),
    }
    compute = float(whole.occupied[0, 0])
    return _result(workload, core, "analytical", latency, compute, judged.bound[0], shares, details)


def _timeline_result(
    workload: Workload, config: Config, played: Timeline, notes: tuple[str, ...]
) -> SimulationResult:
    ops = played.stream.rows["op"]
    peak = played.core.peak_flops_per_ns * played.makespan
    details = {
        "config": config.key,
        "bytes_moved": played.costs.total_bytes,
        "transposes": int((ops == Opcode.TRANSPOSE).sum()),
        "instructions": len(played.stream),
        "tensor_peak_share": float(played.costs.flops.sum()) / peak,
    }
    result = _result(
        workload, played.core, "timeline", played.makespan, played.occupied["tensor"],
        played.bound, played.engines, details,
    )  # fmt: skip
    return replace(result, notes=notes)
