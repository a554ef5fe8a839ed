"""The simulator of family "loom": what instructions compute, and the cycle each of them begins in.

One instruction runs after another, so the timeline is a running sum, judging is measuring, and no
fidelity is coarser than another.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.judgement import Judgement
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import CodegenError, VerificationError
from tilesmith.search_space.support.files import written
from tilesmith.search_space.workloads.scheduler import scheduler_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.dispatch import (
    FamilySimulator,
    Fidelity,
    OperatorCost,
    SimulationResult,
    simulators,
)

from .generation import stream_of
from .instructions import ROW, Op, Stream, cycles
from .machine import FAMILY, LOOM

Words = NDArray[np.float32]

OPERATIONS = {
    Op.ADD: np.add,
    Op.SUBTRACT: np.subtract,
    Op.MULTIPLY: np.multiply,
    Op.MAXIMUM: np.maximum,
    Op.MINIMUM: np.minimum,
}


def execute(stream: Stream, memory: Sequence[Words], words: int) -> None:
    """Run a kernel on its operands, `memory` in the stream's order, with a pad of so many words.

    A word of the pad that nothing has written is NaN.
    """
    pad = np.full(words, np.nan, np.float32)
    for op, count, out, a, b, value, tensor in stream.table.tolist():
        row = slice(out, out + count)
        match op:
            case Op.LOAD:
                pad[row] = memory[tensor][a : a + count]
            case Op.STORE:
                memory[tensor][row] = pad[a : a + count]
            case Op.FILL:
                pad[row] = value
            case Op.MACC:
                pad[row] += pad[a] * pad[b : b + count]
            case _:
                second = pad[b : b + count] if b >= 0 else np.float32(value)
                pad[row] = OPERATIONS[op](pad[a : a + count], second)


def busy(stream: Stream, target: Target) -> dict[str, int]:
    """Cycles by what is at work: "memory" or "rows"."""
    taken, moves = cycles(stream.table, target), stream.table["op"] <= Op.STORE
    return {"memory": int(taken[moves].sum()), "rows": int(taken[~moves].sum())}


def features(stream: Stream, target: Target) -> list[float]:
    """log2 of instructions and words by operation; the cycles, which tell the latency, last."""
    table, found = stream.table, [float(sum(busy(stream, target).values()))]
    for op in reversed(Op):
        mine = table["count"][table["op"] == op]
        found += [float(mine.sum()), float(len(mine))]
    return [float(np.log2(1 + number)) for number in reversed(found)]


class LoomSimulator(FamilySimulator):
    """See the module's docstring."""

    def check(self, target: Target) -> None:
        _ = LOOM.memories(target), LOOM.limits(target), target.number("clock.ghz")
        cycles(np.zeros(0, ROW), target)

    def judge(self, workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
        latency, bound = np.full(len(configs), np.nan), [""] * len(configs)
        rows = np.zeros((len(configs), 2 * len(Op) + 1), np.float32)
        failures = {}
        scheduler_of(workload, target)  # says why there is none
        for number, config in enumerate(configs):
            try:
                stream = stream_of(workload, target, config)
            except (CodegenError, VerificationError) as error:
                failures[number] = MeasureResult.failed(error, "simulator")
                continue
            shares = busy(stream, target)
            latency[number] = sum(shares.values()) / (target.number("clock.ghz") * 1e9)
            bound[number] = max(shares, key=lambda name: shares[name])
            rows[number] = features(stream, target)
        return Judgement(latency, rows, bound, (rows.shape[1] - 1,), failures)

    def simulate(
        self,
        workload: Workload,
        target: Target,
        config: Config | None,
        fidelity: Fidelity,
        trace: Path | None,
    ) -> SimulationResult:
        """Every fidelity is the timeline."""
        config = config or scheduler_of(workload, target).default(workload, target)
        stream = stream_of(workload, target, config)
        if trace is not None:
            write_trace(stream, target, trace)
        return result(target, fidelity, {(workload.key, config.key): (stream, 1)})


def result(
    target: Target,
    fidelity: str,
    kernels: dict[tuple[str, str], tuple[Stream, int]],
    host_us: float = 0.0,
    details: dict[str, Any] | None = None,
) -> SimulationResult:
    """What kernels, each run so many times, cost one after the other."""
    megahertz = target.number("clock.ghz") * 1e3
    total = {"memory": 0, "rows": 0}
    ops = []
    for (workload, config), (stream, weight) in kernels.items():
        shares = busy(stream, target)
        for name, taken in shares.items():
            total[name] += weight * taken
        latency, bound = sum(shares.values()) / megahertz, max(shares, key=lambda n: shares[n])
        numbers = {"weight": weight, "config": config, "instructions": len(stream.table)}
        ops.append(OperatorCost(workload, latency, bound, numbers))
    latency = sum(total.values()) / megahertz + host_us
    times = {**{name: taken / megahertz for name, taken in total.items()}, "host": host_us}
    return SimulationResult(
        target=target.name,
        fidelity=fidelity,
        cycles=round(latency * megahertz),
        compute_cycles=total["rows"],
        latency_us=latency,
        bound=max(times, key=lambda name: times[name]),
        engines={name: taken / megahertz / latency for name, taken in total.items()},
        ops=tuple(ops),
        details=details or {},
    )


def write_trace(stream: Stream, target: Target, path: Path) -> None:
    """A Chrome trace: every instruction, times in us."""
    taken = cycles(stream.table, target) / (target.number("clock.ghz") * 1e3)
    starts = np.cumsum(taken) - taken
    events = [
        {"name": Op(op).name, "ph": "X", "pid": 0, "tid": 0, "ts": start, "dur": duration}
        for op, start, duration in zip(
            stream.table["op"].tolist(), starts.tolist(), taken.tolist(), strict=True
        )
    ]
    with written(path) as file:
        file.write(json.dumps({"traceEvents": events}).encode())


simulators.register(FAMILY)(LoomSimulator())
