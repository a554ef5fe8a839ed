"""The simulator of family "lpu": programs are placed, proved free of conflicts, and counted.

A schedule that the checker passes runs in exactly the cycles it says, so judging is measuring and
every fidelity but the roofline is the timeline.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from tilesmith.codegen.lpu.chip import Chip
from tilesmith.codegen.lpu.isa.bursts import Op, Schedule
from tilesmith.codegen.lpu.scheduling.rigid import UnfitError
from tilesmith.codegen.lpu.scheduling.scheduler import schedule
from tilesmith.codegen.lpu.selection.from_program import select
from tilesmith.codegen.lpu.verification.checker import check
from tilesmith.codegen.structures import lowered
from tilesmith.search_space.dtypes import size_of
from tilesmith.search_space.errors import CodegenError, VerificationError
from tilesmith.search_space.files import written
from tilesmith.search_space.measure import MeasureResult
from tilesmith.search_space.scheduler import scheduler_of
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.target import Target
from tilesmith.search_space.template import template_of
from tilesmith.search_space.workload import Workload
from tilesmith.simulator.dispatch import (
    FamilySimulator,
    Fidelity,
    Judgement,
    OperatorCost,
    SimulationResult,
    simulators,
)

ENGINES = {
    "mem": (Op.READ, Op.WRITE, Op.GATHER),
    "mxm": (Op.MOVE,),
    "vxm": (Op.ALU,),
    "sxm": (Op.SHUFFLE, Op.TRANSPOSE),
}
"""What is at work, by the instructions that keep it busy."""


@lru_cache(maxsize=64)
def placed(workload: Workload, target: Target, config: Config) -> Schedule:
    """A configuration's program, proved.

    Raises:
        CodegenError: a statement that no instruction computes, or a program that fits nowhere.
        VerificationError: a law is broken.
    """
    program = lowered(workload, target, config)
    selected = select(program, target, frozenset(workload.constants))
    found = schedule(selected.dataflow, Chip.of(target))
    check(found)
    return found


def busy(found: Schedule) -> dict[str, float]:
    """Share of the time that each kind of unit is at work, over all of its kind."""
    chip, table = found.chip, found.table
    there = {"mem": 2 * chip.slices, "mxm": 4, "vxm": chip.alus, "sxm": 2 * sum(chip.sxm)}
    shares = {}
    for name, ops in ENGINES.items():
        mine = np.isin(table["op"], [int(op) for op in ops])
        cycles = (table["count"][mine].astype(np.int64) * table["interval"][mine]).sum()
        shares[name] = min(1.0, float(cycles) / (there[name] * max(1, found.cycles)))
    return shares


def features(found: Schedule) -> list[float]:
    """log2 of instructions and vectors by kind; of the cycles, which tell the latency, last."""
    table = found.table
    rows = []
    for op in Op:
        mine = table["op"] == int(op)
        rows += [float(mine.sum()), float(table["count"][mine].astype(np.int64).sum())]
    rows += [float(len(found.chains)), float(found.cycles)]
    return [float(np.log2(1 + number)) for number in rows]


WIDTH = 2 * len(Op) + 2
"""Features of a configuration."""


class LpuSimulator(FamilySimulator):
    """See the module's docstring."""

    def check(self, target: Target) -> None:
        Chip.of(target)

    def judge(self, workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
        latency, bound = np.full(len(configs), np.nan), [""] * len(configs)
        rows = np.zeros((len(configs), WIDTH), np.float32)
        failures = {}
        scheduler_of(workload, target)  # says why there is none
        for number, config in enumerate(configs):
            try:
                found = placed(workload, target, config)
            except (CodegenError, VerificationError, UnfitError) as error:
                failures[number] = MeasureResult.failed(error, "simulator")
                continue
            shares = busy(found)
            latency[number] = found.seconds
            bound[number] = max(shares, key=lambda name: shares[name])
            rows[number] = features(found)
        return Judgement(latency, rows, bound, (WIDTH - 1,), failures)

    def simulate(
        self,
        workload: Workload,
        target: Target,
        config: Config | None,
        fidelity: Fidelity,
        trace: Path | None,
    ) -> SimulationResult:
        config = config or scheduler_of(workload, target).default(workload, target)
        if fidelity == "roofline":
            return roofline(workload, target)
        found = placed(workload, target, config)
        if trace is not None:
            write_trace(found, trace)
        shares = busy(found)
        bound, latency = max(shares, key=lambda name: shares[name]), found.seconds * 1e6
        details = {"config": config.key, "chains": len(found.chains)}
        return SimulationResult(
            target=target.name,
            fidelity=fidelity,
            cycles=found.cycles,
            compute_cycles=round(shares["mxm"] * found.cycles),
            latency_us=latency,
            bound=bound,
            engines=shares,
            ops=(OperatorCost(workload.key, latency, bound, details),),
        )


def roofline(workload: Workload, target: Target) -> SimulationResult:
    """No more than peak arithmetic, and every operand read or written once."""
    chip, template = Chip.of(target), template_of(workload.operator)
    operands = (*template.operands(workload), template.output(workload))
    moved = sum(int(np.prod(o.shape, dtype=np.int64)) * size_of(o.dtype) for o in operands)
    dtype = "int8" if workload.dtype == "uint8" else workload.dtype
    times = {
        "mxm": template.flops(workload) / chip.peak_flops(dtype),
        "mem": moved / chip.bytes_per_second,
    }
    bound = max(times, key=lambda name: times[name])
    latency = max(times.values())
    return SimulationResult(
        target=target.name,
        fidelity="roofline",
        cycles=round(latency * chip.ghz * 1e9),
        compute_cycles=round(times["mxm"] * chip.ghz * 1e9),
        latency_us=latency * 1e6,
        bound=bound,
        engines={name: time / latency if latency else 0.0 for name, time in times.items()},
        ops=(OperatorCost(workload.key, latency * 1e6, bound, {}),),
    )


def write_trace(found: Schedule, path: Path) -> None:
    """A Chrome trace: every burst on its queue, times in us."""
    chip = found.chip
    scale = 1 / (chip.ghz * 1e3)
    events = [
        {
            "name": f"{Op(row['op']).name.lower()} {found.chains[row['chain']]}",
            "ph": "X", "pid": 0, "tid": chip.queues[row["queue"]],
            "ts": row["cycle"] * scale, "dur": row["count"] * row["interval"] * scale,
        }
        for row in found
    ]  # fmt: skip
    with written(path) as file:
        file.write(json.dumps({"traceEvents": events}).encode())


simulators.register("lpu")(LpuSimulator())
