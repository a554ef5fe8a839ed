"""The simulator of family "trainium": three fidelities behind one call.

- roofline: closed form, whatever the configuration;
- analytical: the symbolic program of the configuration's structure, evaluated for whole batches;
- timeline: the instruction stream of one configuration, played instruction by instruction.

What configurations share is lowered once (`skeletons`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tilesmith.codegen.programs.structures import first_that_works
from tilesmith.families.kit.simulation.operator_lane import OperatorSpan
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import Opcode
from tilesmith.families.trainium.simulator import skeletons
from tilesmith.families.trainium.simulator.estimation.estimate import (
    COLUMNS,
    RESOURCES,
    VERDICT,
    features,
)
from tilesmith.families.trainium.simulator.estimation.roofline import roofline
from tilesmith.families.trainium.simulator.hardware_cost import array_settings, hardware_cost
from tilesmith.families.trainium.simulator.skeletons import (
    check_size,
    default_config,
    estimates,
    simulated_space,
    staged_stream,
)
from tilesmith.families.trainium.simulator.timelines.drawing import draw, span_of
from tilesmith.families.trainium.simulator.timelines.timeline import (
    SYNCHRONISATION_SHARE,
    Timeline,
    timeline,
)
from tilesmith.search_space.hardware.target import FactValue, Target
from tilesmith.search_space.results.judgement import Judgement
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import CodegenError, VerificationError
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
        return skeletons.alike(target)

    def hardware_cost(self, target: Target) -> HardwareCost:
        return hardware_cost(target)

    def judge(self, workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
        """Analytical estimates of many configurations (which must be of the workload's space)."""
        core = Core.of(target)
        floor = roofline(workload, core).latency
        if not configs:
            return Judgement(np.zeros(0), np.zeros((0, len(COLUMNS)), dtype=np.float32), [])
        whole, memory, place = estimates(workload, target, configs)
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
            simulated_space(workload, target).validate(config)
        if alone:  # asks nothing of the space, which may take longer than all else
            scheduler_of(workload, target)
            check_size(workload, target)
            return _roofline_result(workload, core)
        if fidelity == "analytical" and trace is None:
            return _analytical_result(
                workload, target, config or default_config(workload, target), core
            )
        build = partial(staged_stream, workload, target)
        if config is not None:
            stream = build(config)
        else:
            config, stream = first_that_works(
                workload, target, default_config(workload, target), build
            )
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
    whole, _, _ = estimates(workload, target, [config])
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
