"""The simulator of family "cpu", registered for `simulator.judge` and `simulator.simulate`.

Two fidelities: `roofline` (peak arithmetic and memory bandwidth, whatever the schedule) and
`analytical` (the model of this package). A CPU has no timeline of instructions to show.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.programs.structures import default_of
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.hardware.matrix_registers import tile_product, tiles_of
from tilesmith.search_space.hardware.target import FactValue, Target
from tilesmith.search_space.results.judgement import Judgement
from tilesmith.search_space.results.judging import judges
from tilesmith.search_space.schedules.cpu.vectorisation.dot_products import group_of
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.cpu.batches import Batch, batches, skeleton
from tilesmith.simulator.cpu.facts import Facts, Floats, evaluate
from tilesmith.simulator.cpu.features import NAMES, VERDICT, features
from tilesmith.simulator.cpu.machine import RATES, CpuCore, contradictions
from tilesmith.simulator.cpu.model import TERMS, ProgramCost, program_cost
from tilesmith.simulator.cpu.skeleton import Skeleton
from tilesmith.simulator.dispatch import (
    FamilySimulator,
    Fidelity,
    OperatorCost,
    SimulationResult,
    judge,
    simulators,
)

PRODUCTS = ("matmul", "conv2d")
"""Operators that instructions for dot products are used in."""
CHUNK = 2048
"""Configurations evaluated at a time, so that the arrays stay in cache."""


@dataclass(frozen=True)
class CpuSimulator(FamilySimulator):
    """Judges CPU schedules.

    Attributes:
        threads: threads that share the parallel loops.
        weights: "cold" (in memory at the start, as inside a model) or "warm".
    """

    threads: int = 1
    weights: Literal["cold", "warm"] = "cold"

    def on_threads(self, threads: int) -> "CpuSimulator":
        return replace(self, threads=threads)

    def calibrated(self, target: Target, measure: bool) -> Target:
        from tilesmith.simulator.cpu.microbenchmarks.calibration import calibrated

        return calibrated(target, measure)

    def with_settings(self, target: Target, settings: Mapping[str, str | FactValue]) -> Target:
        """Another instruction set (`isa.name`) brings its vectors and features along; a stated
        number takes the place of what was measured in its stead."""
        from tilesmith.codegen.host.machine import narrowed

        others = dict(settings)
        if "isa.name" in target and "isa.name" in others:
            target = narrowed(target, str(others.pop("isa.name")))
        measured = {RATES[name] for name in others if name in RATES}
        facts = {name: fact for name, fact in target.facts if name not in measured}
        target = Target.of(target.name, target.family, facts, target.doc)
        return target.with_settings(others)

    def contradictions(self, target: Target) -> list[str]:
        from tilesmith.simulator.cpu.microbenchmarks.calibration import doubts

        return doubts(target) + contradictions(target)

    def judge(self, workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
        """Latency, features and bound of every configuration (see `simulator.judge`)."""
        latency = np.zeros(len(configs))
        rows = np.zeros((len(configs), len(NAMES)), dtype=np.float32)
        bound = [""] * len(configs)
        machine = machine_of(target, self.threads)
        for base, facts, places in _joined(workload, target, batches(workload, target, configs)):
            for start in range(0, len(places), CHUNK):
                part = facts.take(start, start + CHUNK)
                here = places[start : start + CHUNK]
                cost = program_cost(base, part, machine, self.weights == "cold")
                latency[here] = cost.cycles / (machine.ghz * 1e9)
                rows[here] = features(base, part, cost)
                for place, name in zip(here, _bounds(cost), strict=True):
                    bound[place] = name
        return Judgement(latency, rows, bound, VERDICT)

    def simulate(
        self,
        workload: Workload,
        target: Target,
        config: Config | None,
        fidelity: Fidelity,
        trace: Path | None,
    ) -> SimulationResult:
        """One configuration with its reasons (see `simulator.simulate`).

        Raises:
            TargetError: a timeline or a trace is asked for.
        """
        if fidelity == "timeline" or trace is not None:
            raise TargetError(
                f"target '{target.name}' is a CPU, which has no timeline to simulate or trace; "
                "use --fidelity analytical or roofline"
            )
        if fidelity == "roofline":
            return self._roofline(workload, target)
        if config is None:
            config = default_of(workload, target)
        return self._analytical(workload, target, config)

    def _analytical(self, workload: Workload, target: Target, config: Config) -> SimulationResult:
        machine = machine_of(target, self.threads)
        (batch,) = batches(workload, target, [config])
        base = skeleton(workload, target, batch.structure)
        facts = evaluate(base, batch.tiles, 1)
        cost = program_cost(base, facts, machine, self.weights == "cold")
        cycles = float(cost.cycles[0])
        terms = _terms(cost)[:, 0]
        bound = _bounds(cost)[0]
        phases = [_phase_table(base, cost, number) for number in range(len(cost.phases))]
        microseconds = cycles / (machine.ghz * 1e3)
        details = {"config": dict(config), "nests": phases}
        return SimulationResult(
            target.name,
            "analytical",
            round(cycles),
            round(float(terms[TERMS.index("compute")])),
            microseconds,
            bound,
            {name: float(min(1.0, term / cycles)) for name, term in zip(TERMS, terms, strict=True)},
            (OperatorCost(workload.key, microseconds, bound, details),),
        )

    def _roofline(self, workload: Workload, target: Target) -> SimulationResult:
        """The larger of arithmetic at peak and all operands at memory bandwidth."""
        machine = machine_of(target, self.threads)
        template = template_of(workload.operator)
        operands = (*template.operands(workload), template.output(workload))
        moved = sum(int(np.prod(o.shape, dtype=np.int64)) * size_of(o.dtype) for o in operands)
        peak = machine.lanes * machine.threads * _multiply_adds(workload, target, machine)
        compute = template.flops(workload) / (2.0 * peak)
        memory = moved / (machine.bandwidth[2] * min(machine.threads, machine.shared[1]))
        cycles = max(compute, memory)
        bound = "compute" if compute >= memory else "memory"
        microseconds = cycles / (machine.ghz * 1e3)
        return SimulationResult(
            target.name,
            "roofline",
            round(cycles),
            round(compute),
            microseconds,
            bound,
            {"compute": compute / cycles, "memory": memory / cycles},
            (OperatorCost(workload.key, microseconds, bound, {"bytes": moved}),),
        )


def _multiply_adds(workload: Workload, target: Target, machine: CpuCore) -> float:
    """Of each lane in a cycle, by the fastest instruction for the operands' element types."""
    dtypes = [o.dtype for o in template_of(workload.operator).inputs(workload)[:2]]
    if len(dtypes) < 2 or workload.operator not in PRODUCTS:
        return machine.fma_ports
    tiles, product = tiles_of(target), tile_product(target, dtypes[0], dtypes[1])
    if tiles is not None and product is not None:
        return machine.ports("tiles") * tiles.rows * product.products
    products = group_of(target, dtypes[0], dtypes[1])
    unit = f"dot.{dtypes[0]}" if products > 1 else ""
    return machine.ports(unit) * products


@lru_cache(maxsize=64)
def machine_of(target: Target, threads: int) -> CpuCore:
    """The machine of a target, kept."""
    return CpuCore.of(target, threads)


def _joined(
    workload: Workload, target: Target, batches: Sequence[Batch]
) -> list[tuple[Skeleton, Facts, list[int]]]:
    """Batches of one signature together: (a skeleton, facts of all, places)."""
    groups: dict[str, tuple[Skeleton, list[Facts], list[int]]] = {}
    for batch in batches:
        base = skeleton(workload, target, batch.structure)
        facts = evaluate(base, batch.tiles, len(batch.places))
        group = groups.setdefault(base.signature, (base, [], []))
        group[1].append(facts)
        group[2].extend(batch.places)
    return [(base, Facts.join(parts), places) for base, parts, places in groups.values()]


def _terms(cost: ProgramCost) -> Floats:
    """Cycles of each of `TERMS` over all phases, (terms, n)."""
    return np.asarray(np.sum([phase.terms for phase in cost.phases], axis=0))


def _bounds(cost: ProgramCost) -> list[str]:
    """What limits each configuration: the largest term."""
    return [TERMS[i] for i in np.argmax(_terms(cost), axis=0)]


def _phase_table(base: Skeleton, cost: ProgramCost, number: int) -> dict[str, Any]:
    """One nest for people: its stages, cycles, terms and what its inner tile looks like."""
    phase = cost.phases[number]
    stages = dict.fromkeys(base.blocks[block].stage for block in phase.blocks)
    main = max(phase.costs, key=lambda costs: float(costs.cycles[0]))
    return {
        "stages": list(stages),
        "cycles": round(float(phase.cycles[0])),
        "bound": TERMS[int(np.argmax(phase.terms[:, 0]))],
        "terms": {t: round(float(v)) for t, v in zip(TERMS, phase.terms[:, 0], strict=True)},
        "registers": round(float(main.registers[0])),
        "executions": round(float(main.executions[0])),
        "operations": round(float(main.operations[0]), 1),
    }


simulators.register("cpu")(CpuSimulator())


@judges.register("cpu")
def estimated_seconds(
    workload: Workload, target: Target, configs: Sequence[Config]
) -> NDArray[np.float64]:
    """What one thread takes, weights cold (`search_space.results.judging`)."""
    return judge(workload, target, configs).latency


__all__ = ["CpuSimulator", "machine_of"]
