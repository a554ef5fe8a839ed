"""What a compiled model costs on an accelerator: its programs on the timeline, its host steps.

    latency = programs (timeline, linked) + host steps (`host_costs`)

Beside the whole stand the parts: every kernel alone (timeline), its roofline, and how much of the
model's latency it *shows*: the time from the last result before it to its own, so that these sum to
the programs' latency. A program has a roofline of its own, which nothing undercuts: the larger of
all its products at the tensor engine's peak and of its weights, inputs and outputs at the bandwidth
of HBM, each moved once. Two accounts add up to the latency: a chain from that roofline over those
of the operators and over operators alone, and what the core was doing when.

Not counted: the caller's inputs and outputs on their way to and from HBM.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilesmith.compiler.recipe.program import HostStep, KernelStep, Recipe
from tilesmith.families.kit.simulation.accounting import IDLE, Share, exclusive, lines, origins_line
from tilesmith.families.kit.simulation.host_costs import compute_time, host_time, transfer_time
from tilesmith.families.kit.simulation.operator_lane import OperatorSpan
from tilesmith.families.trainium.backend.program import THOROUGH, Effort, LinkedProgram, segments
from tilesmith.families.trainium.codegen.isa.core import FIRST_DMA_QUEUE, Core
from tilesmith.families.trainium.codegen.isa.instructions import Floats, InstructionStream
from tilesmith.families.trainium.codegen.timing.dependences import with_semaphores
from tilesmith.families.trainium.codegen.timing.ordering import in_grant_order
from tilesmith.families.trainium.simulator.estimation.roofline import roofline
from tilesmith.families.trainium.simulator.timelines.drawing import draw, span_of
from tilesmith.families.trainium.simulator.timelines.timeline import Timeline, timeline
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import OperatorCost, SimulationResult


@dataclass
class _Kernel:
    """A workload in one configuration, wherever the model runs it. Times in ns."""

    step: KernelStep
    alone: Timeline
    roofline: float
    weight: int = 0
    shown: float = 0.0


@dataclass
class _Total:
    """Sums over the model's segments. Times in ns."""

    latency: float = 0.0
    host: float = 0.0
    active: dict[str, float] = field(default_factory=dict)
    occupied: dict[str, float] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)
    moved: int = 0
    instructions: int = 0
    roofline: float = 0.0
    products: float = 0.0
    doing: dict[str, float] = field(default_factory=dict)


def simulate_model(
    recipe: Recipe, target: Target | None = None, trace: Path | None = None
) -> SimulationResult:
    """Play a compiled model.

    Args:
        target: another machine to play the same instructions on (a what-if); the recipe's if None.
        trace: where to write a trace: HTML where the name says so, else Chrome/Perfetto JSON.

    Raises:
        InputError: a trace of a model that the host cuts into several programs, or of none.
        TargetError: host steps, and a target that does not say what they cost.
    """
    target = target or recipe.target
    core = Core.of(target)
    total, kernels, notes = _Total(), dict[tuple[str, str], _Kernel](), list[str]()
    parts = segments(recipe)
    programs = [part for part in parts if isinstance(part, LinkedProgram)]
    if trace is not None and len(programs) != 1:
        raise InputError(
            f"--trace shows one program and '{recipe.title}' is {len(programs)} of them, with "
            "steps on the host between; name an operator with --op"
        )
    for part in parts:
        if isinstance(part, HostStep):
            moving, computing = transfer_time(part, target), compute_time(part, target)
            total.host += moving + computing
            notes.append(
                f"{part.name} runs on the host: {moving / 1e3:.1f} us of transfers, "
                f"{computing / 1e3:.1f} us of computing (estimated)"
            )
            continue
        played = timeline(part.linked.stream, core)
        _add_program(total, played)
        _add_kernels(kernels, part, played, core)
        total.roofline += program_roofline(part, core)
        total.products += _products(part, core)
        if trace is not None:
            shown = replace(played, stream=replace(played.stream, name=recipe.title))
            notes += draw(shown, trace, spans(part, played))
    return _result(recipe, core, total, kernels, programs, notes)


def latency_of(recipe: Recipe, effort: Effort = THOROUGH) -> float:
    """ns of a compiled model, nothing else; with less `effort` it is known sooner."""
    core = Core.of(recipe.target)
    return sum(
        timeline(part.linked.stream, core).makespan
        if isinstance(part, LinkedProgram)
        else host_time(part, core.target)
        for part in segments(recipe, effort)
    )


def program_roofline(program: LinkedProgram, core: Core) -> float:
    """ns that no schedule of a program's kernels can undercut."""
    compute = _products(program, core)
    bandwidth = min(core.dma_engines * core.dma_bytes_per_ns, core.hbm_bytes_per_ns)
    return max(compute, program.compulsory / bandwidth) + 2 * core.dma_start_ns


def _products(program: LinkedProgram, core: Core) -> float:
    """ns of all products at the tensor engine's peak."""
    return sum(roofline(Workload.parse(step.workload), core).compute for step in program.steps)


def spans(program: LinkedProgram, played: Timeline) -> list[OperatorSpan]:
    """When each kernel is worked on."""
    spans = []
    for number, step in enumerate(program.steps):
        arguments = {"workload": step.workload, "config": step.config, "kernel": step.name,
                "nodes": list(step.sources)}  # fmt: skip
        name = ", ".join(step.sources) or step.name
        spans.append(span_of(played, program.linked.owners == number, name, arguments))
    return [span for span in spans if span is not None]


def _add_program(total: _Total, played: Timeline) -> None:
    total.latency += played.makespan
    total.moved += played.costs.total_bytes
    total.instructions += len(played.stream)
    for name, share in played.engines.items():
        total.active[name] = total.active.get(name, 0.0) + share * played.makespan
    for name, time in played.occupied.items():
        total.occupied[name] = total.occupied.get(name, 0.0) + time
    total.bounds[played.bound] = total.bounds.get(played.bound, 0.0) + played.makespan
    for name, time in _doing(played).items():
        total.doing[name] = total.doing.get(name, 0.0) + time


def _doing(played: Timeline) -> dict[str, float]:
    """ns by what the core was doing: the tensor engine first, then what it does not hide."""
    queue, issued = played.stream.rows["queue"], played.start + played.costs.issue
    tensor, engines = queue == 0, (queue > 0) & (queue < FIRST_DMA_QUEUE)
    moving = queue >= FIRST_DMA_QUEUE
    return exclusive(
        {
            "tensor": (played.start[tensor], issued[tensor]),
            "dma": (played.start[moving], played.end[moving]),
            "engines": (played.start[engines], issued[engines]),
        },
        played.makespan,
    )


def _add_kernels(
    kernels: dict[tuple[str, str], _Kernel], program: LinkedProgram, played: Timeline, core: Core
) -> None:
    """Kernels of a program alone, and what each of them shows in it."""
    shown = shown_times(program, played)
    for step, stream, time in zip(program.steps, program.streams, shown, strict=True):
        key = (step.workload, step.config)
        if key not in kernels:
            workload = Workload.parse(step.workload)
            kernels[key] = _Kernel(step, _alone(stream, core), roofline(workload, core).latency)
        kernels[key].weight += 1
        kernels[key].shown += float(time)


def shown_times(program: LinkedProgram, played: Timeline) -> Floats:
    """ns from the last result before each step to its own, shape (steps,)."""
    ends = np.zeros(len(program.steps))
    np.maximum.at(ends, program.linked.owners, played.end)
    return np.diff(np.maximum.accumulate(ends), prepend=0.0)


def _alone(stream: InstructionStream, core: Core) -> Timeline:
    return timeline(in_grant_order(with_semaphores(stream)), core)


def _result(
    recipe: Recipe,
    core: Core,
    total: _Total,
    kernels: Mapping[tuple[str, str], _Kernel],
    programs: list[LinkedProgram],
    notes: list[str],
) -> SimulationResult:
    latency = total.latency + total.host
    bounds = {**total.bounds, "host": total.host}
    residents = [resident for program in programs for resident in program.linked.residents]
    roofs = sum(kernel.roofline * kernel.weight for kernel in kernels.values())
    alone = sum(kernel.alone.makespan * kernel.weight for kernel in kernels.values())
    chain, doing = _chain(latency, total, roofs, alone), _time(total)
    details: dict[str, Any] = {
        "precision": recipe.report.precision,
        "roofline_us": roofs / 1e3,
        "kernels_alone_us": alone / 1e3,
        "model_roofline_us": total.roofline / 1e3,
        "between_us": (latency - roofs) / 1e3,
        "chain": [share.to_json() for share in chain],
        "time": [share.to_json() for share in doing],
        "host_us": total.host / 1e3,
        "bytes_moved": total.moved,
        "bytes_saved": sum(resident.saved for resident in residents),
        "resident": [resident.name for resident in residents],
        "instructions": total.instructions,
        **recipe.report.counts,
        "host": recipe.report.host,
    }
    return SimulationResult(
        target=core.target.name,
        fidelity="timeline",
        cycles=round(latency * core.clocks[0]),
        compute_cycles=round(total.occupied.get("tensor", 0.0) * core.clocks[0]),
        latency_us=latency / 1e3,
        bound=max(bounds, key=lambda name: bounds[name]),
        engines={name: time / latency for name, time in total.active.items()},
        ops=tuple(_operator(kernel) for kernel in kernels.values()),
        details=details,
        notes=tuple(dict.fromkeys(notes)),
        remarks=_remarks(latency, details, chain, doing),
        gist=f"{len(residents)} tensors stay in SBUF, which saves "
        f"{details['bytes_saved'] / 1e6:.1f} MB of HBM traffic",
    )


def _chain(latency: float, total: _Total, roofs: float, alone: float) -> list[Share]:
    """From the roofline of the whole to its latency (ns); these add up."""
    steps = (
        ("the model's roofline", total.roofline,
         "products at peak, or weights, inputs and outputs moved once; all overlaps"),
        ("operators one by one", roofs - total.roofline,
         "sum of their own rooflines: operands and results moved for each"),
        ("schedules", alone - roofs, "operators alone on the timeline, beyond their rooflines"),
        ("linking", latency - total.host - alone,
         "they overlap, tensors stay on chip, weights come ahead"),
        ("the host", total.host, "transfers and computing"),
    )  # fmt: skip
    return [Share(name, ns / 1e3, what) for name, ns, what in steps]


def _time(total: _Total) -> list[Share]:
    """What was done when (ns); these add up to the latency."""
    doing = {name: total.doing.get(name, 0.0) for name in ("tensor", "dma", "engines", IDLE)}
    peak = min(total.products, doing["tensor"])
    steps = (
        ("products at the tensor engine's peak", peak, "what the operations need"),
        ("tensor engine below its peak", doing["tensor"] - peak,
         "array not full, short passes, turning"),
        ("DMA that no product hides", doing["dma"], "bandwidth"),
        ("vector, scalar and gpsimd alone", doing["engines"], "neither products nor transfers"),
        ("nothing at work", doing[IDLE], "starts of transfers, latencies, semaphores"),
        ("the host", total.host, ""),
    )  # fmt: skip
    return [Share(name, ns / 1e3, what) for name, ns, what in steps]


def _remarks(
    latency: float, facts: Mapping[str, Any], chain: list[Share], doing: list[Share]
) -> tuple[str, ...]:
    """How the latency (ns) comes about, in parts that add up, and what stays on chip."""
    whole = Share("the model", latency / 1e3, "on the timeline; 'us shown' adds up to it")
    if facts["host_us"]:
        whole = Share("the model", latency / 1e3, "timeline and host")
    return (
        origins_line(facts),
        *lines("from the roofline to the timeline", chain, whole, subtotals=True),
        *lines("where the time goes", doing, whole),
        f"{len(facts['resident'])} tensors stay in SBUF: {facts['bytes_saved'] / 1e6:.1f} MB of "
        f"HBM traffic saved, {facts['bytes_moved'] / 1e6:.1f} MB left",
    )


def _operator(kernel: _Kernel) -> OperatorCost:
    """One line of the table: `latency_us` is of one run alone, `shown_us` of all in the model."""
    played = kernel.alone
    details = {
        "weight": kernel.weight,
        "roofline_us": kernel.roofline / 1e3,
        "shown_us": kernel.shown / 1e3,
        "engines": dict(played.engines),
        "bytes_moved": played.costs.total_bytes,
        "config": kernel.step.config,
        "origin": kernel.step.origin,
    }
    return OperatorCost(kernel.step.workload, played.makespan / 1e3, played.bound, details)
