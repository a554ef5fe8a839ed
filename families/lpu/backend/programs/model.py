"""What a compiled model costs on an LPU-like chip: its programs' cycles, its host steps.

    latency = programs (as scheduled: exact) + host steps (estimated)

Beside the whole stands every kernel: its own roofline, and how much of the latency it *shows*: the
time from the last result before it to its own, so that these sum to the programs' latency.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilesmith.compiler.recipe.program import HostStep, KernelStep, Recipe
from tilesmith.families.kit.simulation.accounting import IDLE, Share, exclusive, lines, origins_line
from tilesmith.families.kit.simulation.host_costs import compute_time, host_time, transfer_time
from tilesmith.families.kit.simulation.operator_lane import OperatorSpan
from tilesmith.families.lpu.backend.programs.program import ChipProgram, segments
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.isa.bursts import BurstOp, BurstSchedule, latency
from tilesmith.families.lpu.simulator.drawing import draw, ends, span_of
from tilesmith.families.lpu.simulator.roofline import Roofline, roofline
from tilesmith.families.lpu.simulator.shares import shares
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.dispatch import OperatorCost, SimulationResult


@dataclass
class _Kernel:
    """A workload in one configuration, wherever the model runs it. Times in us."""

    step: KernelStep
    roofline: Roofline
    weight: int = 0
    shown: float = 0.0


@dataclass
class _Total:
    """Sums over the model's programs; times in us."""

    latency: float = 0.0
    host: float = 0.0
    cycles: int = 0
    bursts: int = 0
    engines: dict[str, float] = field(default_factory=dict)
    doing: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def simulate_model(
    recipe: Recipe, target: Target | None = None, trace: Path | None = None
) -> SimulationResult:
    """Schedule a compiled model and count its cycles.

    Args:
        target: another chip to place the same chains on (a what-if); the recipe's if None.
        trace: where to write a trace.

    Raises:
        InputError: a trace of a model that the host cuts into several programs, or of none.
        TargetError: host steps, and a target that does not say what they cost.
    """
    target = target or recipe.target
    total, kernels = _Total(), dict[tuple[str, str], _Kernel]()
    parts = segments(recipe, target)
    programs = [part for part in parts if isinstance(part, ChipProgram)]
    if trace is not None and len(programs) != 1:
        raise InputError(
            f"--trace shows one program and '{recipe.title}' is {len(programs)} of them, with "
            "steps on the host between; name an operator with --op"
        )
    for part in parts:
        if isinstance(part, HostStep):
            _add_host(total, part, target)
            continue
        _add_program(total, part)
        _add_kernels(kernels, part, target)
        if trace is not None:
            total.notes += draw(replace(part.schedule, name=recipe.title), trace, spans(part))
    return _result(recipe, target, total, kernels)


def latency_of(recipe: Recipe) -> float:
    """Seconds of a compiled model, nothing else."""
    return sum(
        part.schedule.seconds
        if isinstance(part, ChipProgram)
        else host_time(part, recipe.target) * 1e-9
        for part in segments(recipe)
    )


def engine_times(programs: Sequence[ChipProgram]) -> dict[str, float]:
    """us that each kind of unit is busy in programs that run one after another."""
    total = _Total()
    for program in programs:
        _add_program(total, program)
    return total.engines


def operator_costs(programs: Sequence[ChipProgram], target: Target) -> tuple[OperatorCost, ...]:
    """What the kernels of several programs cost and show."""
    kernels = dict[tuple[str, str], _Kernel]()
    for program in programs:
        _add_kernels(kernels, program, target)
    return tuple(_operator(kernel) for kernel in kernels.values())


def spans(program: ChipProgram) -> list[OperatorSpan]:
    """When each kernel is worked on."""
    table = program.schedule.table
    owners = np.array(program.joined.owners, np.int64)
    mine = table["chain"] < len(owners)
    owner = np.where(mine, owners[np.minimum(table["chain"], len(owners) - 1)], -1)
    spans = []
    for number, step in enumerate(program.steps):
        arguments = {"workload": step.workload, "config": step.config, "kernel": step.name,
                "nodes": list(step.sources)}  # fmt: skip
        name = ", ".join(step.sources) or step.name
        spans.append(span_of(program.schedule, owner == number, name, arguments))
    return [span for span in spans if span is not None]


def _add_host(total: _Total, step: HostStep, target: Target) -> None:
    moving, computing = transfer_time(step, target) / 1e3, compute_time(step, target) / 1e3
    total.host += moving + computing
    total.notes.append(
        f"{step.name} runs on the host: {moving:.1f} us of transfers, {computing:.1f} us of "
        "computing (estimated)"
    )


def _add_program(total: _Total, program: ChipProgram) -> None:
    schedule = program.schedule
    for step, _ in (*program.before, *program.after):
        total.notes.append(f"{step.name}: by the host as it hands tensors over, not counted")
    total.latency += schedule.seconds * 1e6
    total.cycles += schedule.cycles
    total.bursts += len(schedule.table)
    for name, share in shares(schedule).items():
        total.engines[name] = total.engines.get(name, 0.0) + share * schedule.seconds * 1e6
    for name, cycles in _doing(schedule).items():
        total.doing[name] = total.doing.get(name, 0.0) + cycles / (schedule.chip.ghz * 1e3)


def _doing(schedule: BurstSchedule) -> dict[str, float]:
    """Cycles by what the chip was doing: MXM first, then what it does not hide."""
    op, start, end = (
        schedule.table["op"],
        schedule.table["cycle"].astype(np.float64),
        ends(schedule).astype(np.float64),
    )
    classes = {
        "mxm": (BurstOp.MOVE,),
        "vxm": (BurstOp.ALU, BurstOp.ACCUMULATE),
        "sxm": (BurstOp.SHUFFLE, BurstOp.TRANSPOSE),
        "mem": (
            BurstOp.READ,
            BurstOp.WRITE,
            BurstOp.GATHER,
            BurstOp.LOAD,
            BurstOp.INSTALL,
            BurstOp.SEND,
            BurstOp.RECEIVE,
        ),
    }
    rows = {name: np.isin(op, ops) for name, ops in classes.items()}
    return exclusive({n: (start[mine], end[mine]) for n, mine in rows.items()}, schedule.cycles)


def _add_kernels(
    kernels: dict[tuple[str, str], _Kernel], program: ChipProgram, target: Target
) -> None:
    for step, time in zip(program.steps, shown_times(program), strict=True):
        key = (step.workload, step.config)
        if key not in kernels:
            kernels[key] = _Kernel(step, roofline(Workload.parse(step.workload), target))
        kernels[key].weight += 1
        kernels[key].shown += float(time)


def shown_times(program: ChipProgram) -> np.ndarray[Any, np.dtype[np.float64]]:
    """us from the last result before each step to its own, shape (steps,)."""
    schedule, ends = program.schedule, np.zeros(len(program.steps))
    table, chip = schedule.table, schedule.chip
    last = table["cycle"] + (table["count"].astype(np.int64) - 1) * table["interval"]
    delays = np.zeros(max(BurstOp) + 1, np.int64)
    for op in BurstOp:
        delays[op] = latency(chip, op)
    done = last + delays[table["op"]] + chip.tiles
    owners = np.array(program.joined.owners, np.int64)
    mine = table["chain"] < len(owners)  # the scheduler's copies are part of what reads them
    np.maximum.at(ends, owners[table["chain"][mine]], done[mine])
    return np.diff(np.maximum.accumulate(ends), prepend=0.0) / (chip.ghz * 1e3)


def _result(
    recipe: Recipe,
    target: Target,
    total: _Total,
    kernels: Mapping[tuple[str, str], _Kernel],
) -> SimulationResult:
    whole, chip = total.latency + total.host, Chip.of(target)
    share = 1 / max(whole, 1e-9)  # a model of nothing takes no time
    engines = {name: time * share for name, time in total.engines.items()}
    roofs = sum(kernel.roofline.latency * 1e6 * kernel.weight for kernel in kernels.values())
    bounds = {**engines, "host": total.host * share}
    report = recipe.report
    products = sum(k.roofline.compute * 1e6 * k.weight for k in kernels.values())
    chain, doing = _chain(total, products, roofs), _time(total, products)
    details: dict[str, Any] = {
        "precision": report.precision,
        "roofline_us": roofs,
        "model_roofline_us": products,
        "chain": [share.to_json() for share in chain],
        "time": [share.to_json() for share in doing],
        "between_us": whole - roofs,
        "host_us": total.host,
        "instructions": total.bursts,
        **report.counts,
        "host": report.host,
    }
    return SimulationResult(
        target=target.name,
        fidelity="timeline",
        cycles=round(whole * chip.ghz * 1e3),
        compute_cycles=round(engines.get("mxm", 0.0) * total.cycles),
        latency_us=whole,
        bound=max(bounds, key=lambda name: bounds[name]),
        engines=engines,
        ops=tuple(_operator(kernel) for kernel in kernels.values()),
        details=details,
        notes=tuple(dict.fromkeys(total.notes)),
        remarks=_remarks(whole, details, chain, doing),
    )


def _chain(total: _Total, products: float, roofs: float) -> list[Share]:
    """From the roofline of the whole to its latency (us); these add up."""
    return [
        Share("the model's roofline", products, "all products at MXM's peak; all else overlaps"),
        Share("operators one by one", roofs - products, "each at its own roofline, MEM included"),
        Share("the schedule", total.latency - roofs, "beyond operators' rooflines, less what runs "
              "side by side"),
        Share("the host", total.host, "transfers and computing"),
    ]  # fmt: skip


def _time(total: _Total, products: float) -> list[Share]:
    """What was done when (us); these add up to the latency."""
    doing = {name: total.doing.get(name, 0.0) for name in ("mxm", "vxm", "sxm", "mem", IDLE)}
    peak = min(products, doing["mxm"])
    return [
        Share("products at MXM's peak", peak, "all planes full"),
        Share("MXM below its peak", doing["mxm"] - peak, "planes, rows or columns left out"),
        Share("VXM and sums that no product hides", doing["vxm"]),
        Share("SXM that neither hides", doing["sxm"]),
        Share("MEM and links alone", doing["mem"], "weights installed, rows on their way"),
        Share("nothing at work", doing[IDLE], "latencies of streams and slices"),
        Share("the host", total.host),
    ]


def _remarks(
    latency: float, facts: Mapping[str, Any], chain: list[Share], doing: list[Share]
) -> tuple[str, ...]:
    whole = Share("the model", latency, "its schedule; 'us shown' adds up to it")
    if facts["host_us"]:
        whole = Share("the model", latency, "schedule and host")
    return (
        origins_line(facts),
        *lines("from the roofline to the schedule", chain, whole, subtotals=True),
        *lines("where the time goes", doing, whole),
    )


def _operator(kernel: _Kernel) -> OperatorCost:
    roof = kernel.roofline
    details = {
        "weight": kernel.weight,
        "roofline_us": roof.latency * 1e6,
        "shown_us": kernel.shown,
        "engines": {"mxm": roof.compute * 1e6 / max(kernel.shown / kernel.weight, 1e-9)},
        "config": kernel.step.config,
        "origin": kernel.step.origin,
    }
    return OperatorCost(kernel.step.workload, kernel.shown / kernel.weight, roof.bound, details)
