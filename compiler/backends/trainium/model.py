"""What a compiled model costs on an accelerator: its programs on the timeline, its host steps.

    latency = programs (timeline, linked) + host steps (`host_costs`)

Beside the whole stand the parts: every kernel alone (timeline), its roofline, and how much of the
model's latency it *shows*: the time from the last result before it to its own, so that these sum to
the programs' latency. What lies between the latency and the sum of rooflines is the schedules'
distance from their rooflines, less what linking hides and residency saves. A program has a roofline
of its own, which nothing undercuts: the larger of all its products at the tensor engine's peak and
of its weights, inputs and outputs at the bandwidth of HBM, each moved once.

Not counted: the caller's inputs and outputs on their way to and from HBM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilesmith.codegen.trainium.isa.core import Core
from tilesmith.codegen.trainium.isa.instructions import Floats, InstructionStream
from tilesmith.codegen.trainium.timing.dependences import with_semaphores
from tilesmith.codegen.trainium.timing.ordering import in_grant_order
from tilesmith.compiler.backends.trainium.program import THOROUGH, Effort, Program, segments
from tilesmith.compiler.host.costs import compute_time, host_time, transfer_time
from tilesmith.compiler.program import HostStep, KernelStep, Recipe
from tilesmith.search_space.errors import InputError
from tilesmith.search_space.target import Target
from tilesmith.search_space.workload import Workload
from tilesmith.simulator import OperatorCost, SimulationResult
from tilesmith.simulator.trainium.picture import write_picture
from tilesmith.simulator.trainium.roofline import roofline
from tilesmith.simulator.trainium.timeline import Timeline, timeline
from tilesmith.simulator.trainium.trace import write_trace


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
    programs = [part for part in parts if isinstance(part, Program)]
    if trace is not None and len(programs) != 1:
        raise InputError(
            f"--trace shows one program and '{recipe.name}' is {len(programs)} of them, with steps "
            "on the host between; name an operator with --op"
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
        if trace is not None:
            notes += _write(played, trace)
    return _result(recipe, core, total, kernels, programs, notes)


def latency_of(recipe: Recipe, effort: Effort = THOROUGH) -> float:
    """ns of a compiled model, nothing else; with less `effort` it is known sooner."""
    core = Core.of(recipe.target)
    return sum(
        timeline(part.linked.stream, core).makespan
        if isinstance(part, Program)
        else host_time(part, core.target)
        for part in segments(recipe, effort)
    )


def program_roofline(program: Program, core: Core) -> float:
    """ns that no schedule of a program's kernels can undercut."""
    compute = sum(roofline(Workload.parse(step.workload), core).compute for step in program.steps)
    bandwidth = min(core.dma_engines * core.dma_bytes_per_ns, core.hbm_bytes_per_ns)
    return max(compute, program.compulsory / bandwidth) + 2 * core.dma_start_ns


def _write(played: Timeline, path: Path) -> list[str]:
    if path.suffix == ".html":
        write_picture(played, path)
        return []
    notice = write_trace(played, path)
    return [notice] if notice else []


def _add_program(total: _Total, played: Timeline) -> None:
    total.latency += played.makespan
    total.moved += played.costs.total_bytes
    total.instructions += len(played.stream)
    for name, share in played.engines.items():
        total.active[name] = total.active.get(name, 0.0) + share * played.makespan
    for name, time in played.occupied.items():
        total.occupied[name] = total.occupied.get(name, 0.0) + time
    total.bounds[played.bound] = total.bounds.get(played.bound, 0.0) + played.makespan


def _add_kernels(
    kernels: dict[tuple[str, str], _Kernel], program: Program, played: Timeline, core: Core
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


def shown_times(program: Program, played: Timeline) -> Floats:
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
    programs: list[Program],
    notes: list[str],
) -> SimulationResult:
    latency = total.latency + total.host
    bounds = {**total.bounds, "host": total.host}
    residents = [resident for program in programs for resident in program.linked.residents]
    roofs = sum(kernel.roofline * kernel.weight for kernel in kernels.values())
    alone = sum(kernel.alone.makespan * kernel.weight for kernel in kernels.values())
    details: dict[str, Any] = {
        "precision": recipe.report.precision,
        "roofline_us": roofs / 1e3,
        "kernels_alone_us": alone / 1e3,
        "model_roofline_us": total.roofline / 1e3,
        "between_us": (latency - roofs) / 1e3,
        "host_us": total.host / 1e3,
        "bytes_moved": total.moved,
        "bytes_saved": sum(resident.saved for resident in residents),
        "resident": [resident.name for resident in residents],
        "instructions": total.instructions,
        "tuned": recipe.report.tuned,
        "stale": recipe.report.stale,
        "nearest": recipe.report.fallback,
        "default": recipe.report.default,
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
        remarks=_remarks(latency, details),
        gist=f"{len(residents)} tensors stay in SBUF, which saves "
        f"{details['bytes_saved'] / 1e6:.1f} MB of HBM traffic",
    )


def _remarks(latency: float, found: Mapping[str, Any]) -> tuple[str, ...]:
    """What lies between a latency in ns and the rooflines, and what stays on chip."""
    roofs, alone, host = (found[f"{name}_us"] for name in ("roofline", "kernels_alone", "host"))
    linking = latency / 1e3 - host - alone
    return (
        f"{found['precision']}; {found['tuned']} tuned, {found['stale']} tuned by another version, "
        f"{found['nearest']} by nearest shape, {found['default']} by default, {found['host']} on "
        f"the host ({host:.1f} us, transfers included)",
        f"operators' rooflines add up to {roofs:.1f} us; {found['between_us']:+.1f} us lie between "
        f"them and the model: {alone - roofs:+.1f} us of operators alone, {linking:+.1f} us by "
        f"linking them, {host:+.1f} us of the host",
        f"roofline of the linked model: {found['model_roofline_us']:.1f} us",
        f"{len(found['resident'])} tensors stay in SBUF: {found['bytes_saved'] / 1e6:.1f} MB of "
        f"HBM traffic saved, {found['bytes_moved'] / 1e6:.1f} MB left",
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
