"""The simulator of family "lpu": three fidelities behind one call.

- roofline: closed form, whatever the configuration;
- analytical: the chains of a configuration, added up;
- timeline: the schedule itself, proved free of conflicts: its cycles are exact by construction.

A target that is known as a roofline only is answered with nothing else.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tilesmith.codegen.programs.structures import default_of, first_that_works, space_of
from tilesmith.families.kit.simulation.operator_lane import OperatorSpan
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.isa.bursts import BurstSchedule
from tilesmith.families.lpu.schedules.building_blocks.machine import check_slices, has_slices
from tilesmith.families.lpu.simulator.analytical import (
    COLUMNS,
    RESOURCES,
    VERDICT,
    CycleEstimate,
    estimate,
)
from tilesmith.families.lpu.simulator.drawing import draw, span_of
from tilesmith.families.lpu.simulator.execution.several import scheduled_s
from tilesmith.families.lpu.simulator.hardware_cost import hardware_cost
from tilesmith.families.lpu.simulator.roofline import check_roofline, roofline
from tilesmith.families.lpu.simulator.selected import scheduled, selected
from tilesmith.families.lpu.simulator.shares import issues, shares
from tilesmith.families.lpu.simulator.tensor_parallel import best_split
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.meshes.mesh import CollectiveKind, Mesh
from tilesmith.search_space.results.judgement import Judgement
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import (
    CodegenError,
    ConfigError,
    VerificationError,
    WorkloadError,
)
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.designs.hardware_cost import HardwareCost
from tilesmith.simulator.dispatch import (
    FamilySimulator,
    Fidelity,
    OperatorCost,
    SimulationResult,
    simulators,
)


class LpuSimulator(FamilySimulator):
    """See the module's docstring."""

    judges_as_measured = False

    def check(self, target: Target) -> None:
        """Raise `TargetError` unless the target has all that is read of it."""
        if has_slices(target):
            Chip.of(target)
        else:
            check_roofline(target)

    def hardware_cost(self, target: Target) -> HardwareCost:
        return hardware_cost(target)

    def over_chips(self, workload: Workload, target: Target, chips: int) -> SimulationResult:
        """A product over chips that are linked each to each other, cut as is fastest."""
        check_slices(target)
        config = _default(workload, target)
        alone = scheduled(workload, target, config).cycles
        schedule, notes = best_split(workload, target, chips, alone)
        result = _timeline_result(workload, config, schedule, notes)
        details = {**result.details, "chips": chips, "cycles_of_one_chip": alone}
        details["peak_share"] = result.details["peak_share"] / chips
        operator = replace(result.ops[0], details=details)
        return replace(result, details=details, ops=(operator,))

    def collective_s(
        self, mesh: Mesh, kind: CollectiveKind, size: int, group: tuple[int, ...]
    ) -> float | None:
        """Of chips that are linked each to each other, as far as their MEM holds it."""
        return scheduled_s(mesh, kind, size, group)

    def judge(self, workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
        """Analytical estimates."""
        check_slices(target)
        chip = Chip.of(target)
        latency, bound = np.full(len(configs), np.nan), [""] * len(configs)
        rows = np.zeros((len(configs), len(COLUMNS)), np.float32)
        failures = {}
        for number, config in enumerate(configs):
            space_of(workload, target).validate(config)
            try:
                costs = estimate(selected(workload, target, config).dataflow, chip)
            except (CodegenError, VerificationError) as error:
                failures[number] = MeasureResult.failed(error, "simulator")
                continue
            latency[number] = costs.cycles / (chip.ghz * 1e9)
            rows[number], bound[number] = costs.features(), costs.bound
        return Judgement(latency, rows, bound, VERDICT, failures)

    def measure(self, workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
        """Every configuration scheduled; features are the analytical ones."""
        judged = self.judge(workload, target, configs)
        latency, bound = np.full(len(configs), np.nan), list(judged.bound)
        failures = dict(judged.failures)
        for number, config in enumerate(configs):
            if number in failures:
                continue
            try:
                latency[number] = scheduled(workload, target, config).seconds
            except (CodegenError, VerificationError) as error:
                failures[number] = MeasureResult.failed(error, "simulator")
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
        if fidelity == "roofline" and trace is None:
            return _roofline_result(workload, target)
        check_slices(target)
        if config is None:
            builder = partial(selected, workload, target)
            config, _ = first_that_works(workload, target, _default(workload, target), builder)
        if fidelity == "analytical" and trace is None:
            costs = estimate(selected(workload, target, config).dataflow, Chip.of(target))
            return _analytical_result(workload, target, config, costs)
        placed = scheduled(workload, target, config)
        notes = draw(placed, trace, _spans(placed, workload, config)) if trace else ()
        if fidelity != "timeline":
            notes += (f"a trace is of the timeline: these figures are, too, not {fidelity} ones",)
        return _timeline_result(workload, config, placed, notes)


def _default(workload: Workload, target: Target) -> Config:
    try:
        return default_of(workload, target)
    except ConfigError as error:
        raise WorkloadError(
            f"no schedule of workload '{workload}' fits target '{target.name}': {error}"
        ) from error


def _spans(placed: BurstSchedule, workload: Workload, config: Config) -> list[OperatorSpan]:
    """The one operator at work."""
    every = np.ones(len(placed.table), np.bool_)
    arguments = {"workload": workload.key, "config": config.key}
    span = span_of(placed, every, workload.operator, arguments)
    return [] if span is None else [span]


def _result(
    workload: Workload,
    target: Target,
    fidelity: Fidelity,
    times: tuple[float, int, int],
    bound: str,
    engines: dict[str, float],
    details: dict[str, Any],
    notes: tuple[str, ...] = (),
) -> SimulationResult:
    """A result; `times`: seconds, cycles, cycles of MXM alone."""
    seconds, cycles, compute = times
    details = {**details, "roofline_us": roofline(workload, target).latency * 1e6}
    return SimulationResult(
        target=target.name,
        fidelity=fidelity,
        cycles=cycles,
        compute_cycles=compute,
        latency_us=seconds * 1e6,
        bound=bound,
        engines=engines,
        ops=(OperatorCost(workload.key, seconds * 1e6, bound, details),),
        details=details,
        notes=notes,
    )


def _roofline_result(workload: Workload, target: Target) -> SimulationResult:
    bounds = roofline(workload, target)
    longest = max(bounds.latency, 1e-12)
    engines = {"mxm": bounds.compute / longest, "mem": bounds.memory / longest}
    times = (bounds.latency, bounds.cycles(bounds.latency), bounds.cycles(bounds.compute))
    return _result(workload, target, "roofline", times, bounds.bound, engines, {})


def _peak_share(workload: Workload, chip: Chip, seconds: float) -> float:
    """Of MXM's peak, by the operations of the workload itself."""
    flops = template_of(workload.operator).flops(workload)
    return flops / chip.peak_flops(workload.dtype) / max(seconds, 1e-12)


def _analytical_result(
    workload: Workload, target: Target, config: Config, costs: CycleEstimate
) -> SimulationResult:
    chip = Chip.of(target)
    seconds = costs.cycles / (chip.ghz * 1e9)
    engines = {n: busy / costs.cycles for n, busy in zip(RESOURCES, costs.busy, strict=True)}
    details = {"config": config.key, "peak_share": _peak_share(workload, chip, seconds)}
    times = (seconds, costs.cycles, round(costs.busy[0]))
    return _result(workload, target, "analytical", times, costs.bound, engines, details)


def _timeline_result(
    workload: Workload, config: Config, placed: BurstSchedule, notes: tuple[str, ...]
) -> SimulationResult:
    engines = shares(placed)
    details = {
        "config": config.key,
        "chains": len(placed.chains),
        "bursts": len(placed.table),
        "instructions": int(placed.table["count"].sum()),
        "peak_share": _peak_share(workload, placed.chip, placed.seconds),
    }
    bound = max(engines, key=lambda name: engines[name])
    times = (placed.seconds, placed.cycles, issues(placed)["mxm"] // 4)
    return _result(workload, placed.chip.target, "timeline", times, bound, engines, details, notes)


simulators.register("lpu")(LpuSimulator())
