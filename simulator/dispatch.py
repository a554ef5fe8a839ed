"""One call to judge or simulate, whatever the machine: the simulator is picked by target family.

The tuner asks `judge` (thousands of configurations at once, numbers only); the command line asks
`simulate` (one configuration, with reasons). Each family of targets has one `FamilySimulator`,
registered in `simulators` by the package that implements it: a new family is a new folder here and
no edit elsewhere.

Invariants: deterministic (equal arguments, equal answers); a `Judgement` has one row per
configuration, in the order given; one that cannot be simulated has a failure in its row, with its
kind and its reason, and no latency.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from tilesmith.search_space.hardware.target import FactValue, Target
from tilesmith.search_space.meshes.mesh import CollectiveKind, Mesh
from tilesmith.search_space.results.judgement import Judgement
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.support.json_object import JsonObject
from tilesmith.search_space.support.registry import Registry
from tilesmith.search_space.support.suggestions import unknown
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.designs.hardware_cost import HardwareCost

Fidelity = Literal["roofline", "analytical", "timeline"]

FIDELITIES: tuple[Fidelity, ...] = ("roofline", "analytical", "timeline")


@dataclass(frozen=True)
class OperatorCost(JsonObject, keys="workload latency_us bound *details"):
    """One operator's share of a simulated program or model."""

    workload: str
    latency_us: float
    bound: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SimulationResult(
    JsonObject,
    keys="target fidelity cycles compute_cycles latency_us bound engines ops *details notes",
):
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
        remarks: lines that explain the latency, for people; `gist`: their point, as a clause.
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
    remarks: tuple[str, ...] = ()
    gist: str = ""

    def __repr__(self) -> str:
        return (
            f"<SimulationResult on {self.target}: {self.latency_us:.4g} us ({self.fidelity}), "
            f"bound by {self.bound}, {len(self.ops)} operators>"
        )


class FamilySimulator(ABC):
    """What simulates one family of targets: deterministic, equal arguments give equal answers."""

    judges_as_measured: ClassVar[bool] = True
    """Whether `judge` gives the very latencies of `measure`, which the cost model then learns and
    must not see (`Judgement.verdict`); elsewhere the former foretell the latter."""

    def check(self, target: Target) -> None:  # noqa: B027 (a family may do with what is there)
        """Raise `TargetError` unless the target has all that is read of it."""

    def calibrated(self, target: Target, measure: bool) -> Target:
        """The machine we sit on, with what was measured of it besides.

        Args:
            measure: measure now what has not been kept yet, which may take a second.
        """
        return target

    def with_settings(self, target: Target, settings: Mapping[str, str | FactValue]) -> Target:
        """Return the target with facts changed, and the facts that depend on them.

        Raises:
            TargetError: an unknown fact, or a value out of range.
        """
        return target.with_settings(settings)

    def contradictions(self, target: Target) -> list[str]:
        """Sentences about what was measured of a target to be otherwise than it is described."""
        return []

    def alike(self, target: Target) -> Target:
        """A target that has the same configurations for every workload (in another order, maybe):
        one for many that differ only in how fast they are."""
        return target

    def hardware_cost(self, target: Target) -> HardwareCost:
        """Area and power of a target, by a documented model.

        Raises:
            TargetError: the family has no such model.
        """
        raise TargetError(
            f"target '{target.name}' is of family '{target.family}', of which no model of area and "
            "power is known"
        )

    def on_threads(self, threads: int) -> "FamilySimulator":
        """Return the simulator for kernels on `threads` threads; by default itself."""
        return self

    def covers(self, workload: Workload) -> bool:
        """Whether an operator is simulated whether or not the family has a schedule of it."""
        return False

    def over_chips(self, workload: Workload, target: Target, chips: int) -> SimulationResult:
        """An operator over several of a target, as its timeline has it.

        Raises:
            TargetError: the family does not know how.
            WorkloadError, CodegenError: this operator is not cut over so many.
        """
        raise TargetError(
            f"operators are not cut over several chips of target '{target.name}' by --chips; leave "
            "it out, or name a model and a mesh ('tilesmith shard')"
        )

    def collective_s(
        self, mesh: Mesh, kind: CollectiveKind, size: int, group: tuple[int, ...]
    ) -> float | None:
        """Exact seconds of a collective over cores of a mesh, by the schedule of its sends and
        receives; None where no schedule says so, but queues do (`simulator.collectives`)."""
        return None

    @abstractmethod
    def judge(self, workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
        """Judge thousands of configurations at once; raises `ConfigError` for one that is not in
        the space."""

    def measure(self, workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
        """As `judge`, by the most faithful means there is: what a tuning trial records."""
        return self.judge(workload, target, configs)

    @abstractmethod
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
    "family of simulated targets", "tilesmith.simulator", TargetError, room="simulator"
)


def check_target(target: Target) -> None:
    """Check a target as a whole, before anything is asked of it.

    Raises:
        TargetError: no simulator for its family, or a fact that the family needs is missing or
            impossible.
    """
    simulators[target.family].check(target)


def needs_schedule(workload: Workload, target: Target) -> bool:
    """Whether an operator needs a schedule to be simulated on a target."""
    return not simulators[target.family].covers(workload)


def judge(workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
    """Latency, features and bound of many configurations of one workload.

    Raises:
        TargetError: no simulator for the target's family.
        ConfigError: a configuration outside the workload's space.
    """
    return simulators[target.family].judge(workload, target, configs)


def measure(workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
    """As `judge`, by the most faithful means the family has: what a tuning trial records."""
    return simulators[target.family].measure(workload, target, configs)


def judges_as_measured(target: Target) -> bool:
    """Whether `judge` gives the very latencies of `measure` (`FamilySimulator`)."""
    return simulators[target.family].judges_as_measured


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
        raise unknown("fidelity", fidelity, FIDELITIES, TargetError)
    return simulators[target.family].simulate(workload, target, config, fidelity, trace)
