"""Simulate operators and whole models: one `SimulationResult`, whatever was asked for.

A model's cost is the sum of its operators' costs, one after the other; host operators (those
without a template) are not in it and are named in the notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from search_space.config import Config
from search_space.errors import InputError
from search_space.target import Target
from search_space.workload import Workload
from simulator import Fidelity, OperatorCost, SimulationResult, simulate


@dataclass(frozen=True)
class Part:
    """An operator to simulate: how often it runs, in which configuration (None: the default)."""

    workload: Workload
    weight: float
    config: Config | None


def simulate_parts(
    parts: Sequence[Part],
    target: Target,
    fidelity: Fidelity,
    trace: Path | None = None,
    notes: tuple[str, ...] = (),
) -> SimulationResult:
    """The cost of all parts, run one after the other.

    Raises:
        InputError: a trace is asked for of more than one operator.
    """
    if trace is not None and len(parts) != 1:
        raise InputError(
            f"--trace shows a single operator and this is {len(parts)} of them; name one with --op"
        )
    results = [simulate(part.workload, target, part.config, fidelity, trace) for part in parts]
    if len(parts) == 1 and parts[0].weight == 1:
        return replace(results[0], notes=(*results[0].notes, *notes))
    return _sum(parts, results, notes)


def _sum(
    parts: Sequence[Part], results: Sequence[SimulationResult], notes: tuple[str, ...]
) -> SimulationResult:
    weights = [part.weight for part in parts]
    latency = sum(w * r.latency_us for w, r in zip(weights, results, strict=True))
    shares = [w * r.latency_us / latency for w, r in zip(weights, results, strict=True)]
    engines: dict[str, float] = {}
    bounds: dict[str, float] = {}
    for share, result in zip(shares, results, strict=True):
        bounds[result.bound] = bounds.get(result.bound, 0.0) + share
        for name, busy in result.engines.items():
            engines[name] = engines.get(name, 0.0) + share * busy
    cycles = sum(w * r.cycles for w, r in zip(weights, results, strict=True))
    compute = sum(w * r.compute_cycles for w, r in zip(weights, results, strict=True))
    texts = dict.fromkeys(note for result in results for note in result.notes)
    return SimulationResult(
        target=results[0].target,
        fidelity=results[0].fidelity,
        cycles=round(cycles),
        compute_cycles=round(compute),
        latency_us=latency,
        bound=max(bounds, key=lambda bound: bounds[bound]),
        engines=engines,
        ops=tuple(_operator(p, r) for p, r in zip(parts, results, strict=True)),
        notes=(*texts, *notes),
    )


def _operator(part: Part, result: SimulationResult) -> OperatorCost:
    """One line of the table: `latency_us` is of one run, `weight` says how many there are."""
    details = {
        "weight": part.weight,
        "cycles": result.cycles,
        "compute_cycles": result.compute_cycles,
        "engines": dict(result.engines),
        "tuned": part.config is not None,
    }
    return OperatorCost(str(part.workload), result.latency_us, result.bound, details)
