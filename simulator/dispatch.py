"""One call to judge or simulate, whatever the machine: the simulator is picked by target family.

The tuner asks `judge` (thousands of configurations at once, numbers only); the command line asks
`simulate` (one configuration, with reasons). Each family of targets has one `FamilySimulator`,
registered in `simulators` by the package that implements it: a new family is a new folder here and
no edit elsewhere. One may also have `check(target)` and, where it needs no schedules,
`covers(workload)`.

Invariants: deterministic (equal arguments, equal answers); a `Judgement` has one row per
configuration, in the order given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.errors import TargetError
from tilesmith.search_space.registry import Registry
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.target import Target
from tilesmith.search_space.workload import Workload

Fidelity = Literal["roofline", "analytical", "timeline"]

FIDELITIES: tuple[Fidelity, ...] = ("roofline", "analytical", "timeline")


@dataclass(frozen=True)
class Judgement:
    """A batch of configurations, judged.

    Attributes:
        latency: seconds, shape (n,), float64.
        features: what a cost model learns from, shape (n, f), float32.
        bound: what limits each configuration ("tensor", "dma", "l2", ...), n texts.
        verdict: numbers of the feature columns that tell the latency or its parts; what learns to
            predict this very latency must not see them.
    """

    latency: NDArray[np.float64]
    features: NDArray[np.float32]
    bound: list[str]
    verdict: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert self.latency.shape == (len(self.bound),), (self.latency.shape, len(self.bound))
        assert self.features.shape[:1] == self.latency.shape, self.features.shape


@dataclass(frozen=True)
class OperatorCost:
    """One operator's share of a simulated program or model."""

    workload: str
    latency_us: float
    bound: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "latency_us": self.latency_us,
            "bound": self.bound,
            **self.details,
        }


@dataclass(frozen=True)
class SimulationResult:
    """What a program costs on a described machine, and why.

    Attributes:
        target: name of the target.
        fidelity: how it was simulated.
        cycles: the whole program, in cycles of the machine's main clock.
        compute_cycles: those spent by the arithmetic units alone, memory ideal.
        latency_us: the whole program in microseconds.
        bound: the resource that limits it.
        engines: share of the time each engine or queue was busy, 0 to 1.
        ops: one entry per operator.
        details: further numbers by name (bytes moved, transposes, ...).
        notes: sentences for the reader (a trace was cut, an operator runs on the host).
    """

    target: str
    fidelity: str
    cycles: int
    compute_cycles: int
    latency_us: float
    bound: str
    engines: Mapping[str, float]
    ops: tuple[OperatorCost, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The object `tilesmith simulate --json` prints."""
        return {
            "target": self.target,
            "fidelity": self.fidelity,
            "cycles": self.cycles,
            "compute_cycles": self.compute_cycles,
            "latency_us": self.latency_us,
            "bound": self.bound,
            "engines": dict(self.engines),
            "ops": [op.to_json() for op in self.ops],
            **self.details,
            "notes": list(self.notes),
        }


class FamilySimulator(Protocol):
    """What a package that simulates one family of targets provides."""

    def judge(self, workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
        """Judge every configuration; raises `ConfigError` for one that is not in the space."""

    def simulate(
        self,
        workload: Workload,
        target: Target,
        config: Config | None,
        fidelity: Fidelity,
        trace: Path | None,
    ) -> SimulationResult:
        """Simulate one configuration (None: the default); write a trace if a path is given."""


simulators: Registry[FamilySimulator] = Registry(
    "family of simulated targets", "tilesmith.simulator", TargetError
)


def check_target(target: Target) -> None:
    """Check a target as a whole, before anything is asked of it.

    Raises:
        TargetError: no simulator for its family, or a fact that the family needs is missing or
            impossible.
    """
    check = getattr(simulators[target.family], "check", None)
    if check is not None:
        check(target)


def needs_schedule(workload: Workload, target: Target) -> bool:
    """Whether an operator needs a schedule to be simulated on a target."""
    covers = getattr(simulators[target.family], "covers", None)
    return covers is None or not covers(workload)


def judge(workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
    """Latency, features and bound of many configurations of one workload.

    Raises:
        TargetError: no simulator for the target's family.
        ConfigError: a configuration outside the workload's space.
    """
    return simulators[target.family].judge(workload, target, configs)


def measure(workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
    """As `judge`, by the most faithful means the family has: what a tuning trial records.

    A configuration that cannot be simulated has an infinite latency, and the reason as its bound.
    """
    simulator = simulators[target.family]
    found: Judgement = getattr(simulator, "measure", simulator.judge)(workload, target, configs)
    return found


def judges_as_measured(target: Target) -> bool:
    """Whether `judge` gives the very latencies of `measure`: what learns those must then not see
    them (`Judgement.verdict`); elsewhere they foretell them.
    """
    return not hasattr(simulators[target.family], "measure")


def simulate(
    workload: Workload,
    target: Target,
    config: Config | None = None,
    fidelity: Fidelity = "analytical",
    trace: Path | None = None,
) -> SimulationResult:
    """Simulate one workload in one configuration (the default one if None).

    Args:
        trace: where to write a Chrome/Perfetto trace, for families and fidelities that have one.

    Raises:
        TargetError: no simulator for the target's family, or a fidelity that is unknown.
        ConfigError: the configuration is outside the workload's space.
    """
    if fidelity not in FIDELITIES:
        raise TargetError(
            f"unknown fidelity '{fidelity}'; one of {', '.join(FIDELITIES)} is expected"
        )
    return simulators[target.family].simulate(workload, target, config, fidelity, trace)
