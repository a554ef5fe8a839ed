"""Every point of a grid estimated; the Pareto fronts among them; what could not be, and why.

Fronts: time per output token against tokens a second a chip, time to first token against the
same, and time per output token against dollars for a million tokens, where machines have a
price. Models that make no tokens have the latency of a pass in place of a token's time, and count
passes. A chip's price is its share of an instance that is used whole.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilesmith.capabilities.planning.architecture import Architecture
from tilesmith.capabilities.planning.deployment import Deployment, DeploymentLoad
from tilesmith.capabilities.planning.estimates.estimate import Estimate, estimate
from tilesmith.capabilities.planning.estimates.limits import check_possible
from tilesmith.capabilities.planning.estimates.memory import check_fits, memory_of
from tilesmith.capabilities.planning.sweeps.fleet import InstanceFleet
from tilesmith.capabilities.planning.sweeps.grid import Grid
from tilesmith.capabilities.planning.sweeps.prices import Price, usd_per_million
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.json_object import JsonObject
from tilesmith.simulator.designs.fronts import front

Estimator = Callable[[Architecture, Deployment, DeploymentLoad], Estimate]
Counted = Callable[[int, int], None]
"""A callback that gets the number of points done, and of all points."""

COLUMNS = (
    "mesh", "tp", "pp", "ep", "dp", "weights", "cache", "batch", "input", "output", "ttft_ms",
    "tpot_ms", "latency_ms", "tokens_per_s", "tokens_per_s_per_chip", "chips",
    "usd_per_million_tokens", "memory_gib", "bound", "fronts",
)  # fmt: skip
"""Of the table, the CSV file and each point in JSON."""

FRONTS = {
    "tpot": ("tpot_ms", "-tokens_per_s_per_chip"),
    "ttft": ("ttft_ms", "-tokens_per_s_per_chip"),
    "cost": ("tpot_ms", "usd_per_million_tokens"),
}
"""What each front trades; a minus: better large."""


@dataclass(frozen=True)
class DeploymentPoint:
    """One deployment under one load."""

    deployment: Deployment
    load: DeploymentLoad
    estimate: Estimate
    chips: int
    usd_per_hour: float | None
    fronts: tuple[str, ...] = ()

    @property
    def tokens_per_s_per_chip(self) -> float:
        return self.estimate.tokens_per_s / self.chips

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Of answers; none without a price."""
        if self.usd_per_hour is None:
            return None
        return usd_per_million(self.usd_per_hour, self.estimate.tokens_per_s)

    def row(self) -> Mapping[str, Any]:
        """Values by the names of `COLUMNS`."""
        where, estimate, load = self.deployment, self.estimate, self.load
        values = (
            where.mesh.name, where.tensor, where.pipeline, where.expert, where.data,
            where.weights, where.cache, load.batch, load.input_tokens, load.output_tokens,
            estimate.ttft_ms, estimate.tpot_ms, estimate.latency_ms, estimate.tokens_per_s,
            self.tokens_per_s_per_chip, self.chips, self.usd_per_million_tokens,
            estimate.memory.total, estimate.bound, " ".join(self.fronts),
        )  # fmt: skip
        return dict(zip(COLUMNS, values, strict=True))


@dataclass(frozen=True)
class Refusal:
    """Points that are refused for one reason; the sentence is that of one of them."""

    count: int
    example: str


@dataclass(frozen=True)
class DeploymentSweep(JsonObject, keys="points:_rows refused:_refused refusals"):
    """The result of a sweep."""

    points: Sequence[DeploymentPoint]
    refusals: Sequence[Refusal]

    def on(self, name: str) -> list[DeploymentPoint]:
        """The points of a front, from the fastest on."""
        by = FRONTS[name][0]
        return sorted((p for p in self.points if name in p.fronts), key=lambda p: p.row()[by])

    @property
    def _rows(self) -> list[Mapping[str, Any]]:
        return [point.row() for point in self.points]

    @property
    def _refused(self) -> int:
        return sum(refusal.count for refusal in self.refusals)


def sweep(
    architecture: Architecture,
    grid: Grid,
    prices: Mapping[str, Price],
    counted: Counted = lambda done, total: None,
    estimator: Estimator = estimate,
) -> DeploymentSweep:
    """Estimate every point of a grid.

    Raises:
        InputError: none of the points can be; the sentence is of the one that is nearest.
    """
    pairs = [(where, load) for where in grid.deployments() for load in grid.loads()]
    points: list[DeploymentPoint] = []
    refused: dict[str, list[InputError]] = {}
    full: list[tuple[float, Deployment, DeploymentLoad]] = []
    for done, (where, load) in enumerate(pairs):
        counted(done, len(pairs))
        try:
            check_possible(architecture, where, load)
            memory = memory_of(architecture, where, load)
            if memory.chip > memory.available:  # what would do is looked for once, not for each
                full.append((memory.chip - memory.available, where, load))
                continue
            points.append(_point(where, load, estimator(architecture, where, load), prices))
        except InputError as error:
            refused.setdefault(_kind(error), []).append(error)
    counted(len(pairs), len(pairs))
    refusals = [Refusal(len(errors), str(errors[0])) for errors in refused.values()]
    if full:
        refusals.append(Refusal(len(full), _why_full(architecture, full)))
    if not points:
        raise InputError(refusals[-1].example)
    return DeploymentSweep(_with_fronts(points), tuple(refusals))


def _why_full(
    architecture: Architecture, full: Sequence[tuple[float, Deployment, DeploymentLoad]]
) -> str:
    """How much memory the nearest point lacks, and which mesh would have it."""
    _, where, load = min(full, key=lambda one: one[0])
    try:
        check_fits(architecture, where, load, memory_of(architecture, where, load))
    except InputError as error:
        return str(error)
    raise AssertionError("it has not fitted before")


def fleet_of(where: Deployment, prices: Mapping[str, Price]) -> InstanceFleet:
    """The instances that replicas of a deployment fill; the data degree does not count."""
    mesh = where.mesh
    cores = where.tensor * where.pipeline * where.cores_each
    return InstanceFleet(mesh.name, mesh.chips, mesh.cores_per_chip, cores, prices.get(mesh.name))


def _point(
    where: Deployment, load: DeploymentLoad, estimate: Estimate, prices: Mapping[str, Price]
) -> DeploymentPoint:
    fleet = fleet_of(where, prices)
    chips = fleet.chips(where.data)
    each = fleet.usd_per_chip_hour()
    return DeploymentPoint(where, load, estimate, chips, None if each is None else each * chips)


def _kind(error: InputError) -> str:
    """Sentences that differ in numbers alone are of one kind."""
    return (
        "".join("#" if c.isdigit() else c for c in str(error)).replace("#.", "#").replace("##", "#")
    )


def _with_fronts(points: Sequence[DeploymentPoint]) -> tuple[DeploymentPoint, ...]:
    rows = [point.row() for point in points]
    names: list[list[str]] = [[] for _ in points]
    for name, axes in FRONTS.items():
        for number in front([[_value(row, axis) for axis in axes] for row in rows]):
            names[number].append(name)
    return tuple(
        DeploymentPoint(p.deployment, p.load, p.estimate, p.chips, p.usd_per_hour, tuple(fronts))
        for p, fronts in zip(points, names, strict=True)
    )


def _value(row: Mapping[str, Any], axis: str) -> float:
    """A value to minimise; a value that is not known is never on a front."""
    value = row[axis.lstrip("-")]
    if axis == "tpot_ms" and not value:
        value = row["latency_ms"]
    if not value:
        return float("inf")
    return -float(value) if axis.startswith("-") else float(value)
