"""The analytical cost of a collective: for each algorithm a latency, and seconds a byte.

Every step costs its level's hop, and as long as its busiest resource is occupied: links, ports and
DMA engines move while memories are read and written, and where what arrives is added, the last of
the slices of a chunk is added after it has arrived. So an algorithm is a line in the number of
bytes (alpha-beta), and the cheapest for a size is taken, stage by stage. Lines are kept for each
mesh, kind and group; a look-up is a minimum over a few of them.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from tilesmith.search_space.meshes.mesh import COLLECTIVE_KINDS, CollectiveKind, Mesh
from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.support.suggestions import unknown
from tilesmith.simulator.collectives.algorithms import Step, Steps
from tilesmith.simulator.collectives.network import MEMORY, Network
from tilesmith.simulator.collectives.stages import CollectiveStage, plans_of
from tilesmith.simulator.collectives.transfers import Transfers


@dataclass(frozen=True)
class CollectiveCost:
    """What one collective costs.

    Args:
        algorithm: its name, or where levels differ those of all, as in `chip mesh, torus rdh`.
        latency_s: the part that does not depend on the size.
        engine_s: how long the DMA engines of a core are busy with it, and not with its loads.
        bound: what the largest stage waits for: "latency", "links", "engines" or "memory".
    """

    kind: CollectiveKind
    bytes: int
    members: int
    seconds: float
    algorithm: str
    latency_s: float
    engine_s: float
    bound: str

    @property
    def gbps(self) -> float:
        """Bytes of the tensor a second, in GB/s: `algbw` of nccl-tests; 0 of a core alone."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def bus_gbps(self) -> float:
        """`busbw` of nccl-tests: `gbps` times the share of all bytes that each link carries."""
        p = self.members
        factor = {"all_reduce": 2 * (p - 1) / p, "send": 1.0}.get(self.kind, (p - 1) / p)
        return self.gbps * factor


_MOST_MEMBERS = 2048
"""Costs are added up over the transfers of all pairs."""


@dataclass(frozen=True)
class _Line:
    """One algorithm of one stage: seconds = alpha + beta x bytes of the whole tensor.

    Args:
        engines: seconds that the busiest core's DMA engines take for each of these bytes.
        place: which plan and stage of `plans_of` it is an alternative of.
    """

    level: str
    algorithm: str
    alpha: float
    beta: float
    engines: float
    bound: str
    place: tuple[int, int]

    def seconds(self, size: float) -> float:
        return self.alpha + self.beta * size


def collective_cost(
    mesh: Mesh,
    kind: CollectiveKind,
    bytes: float,
    group: tuple[int, ...],
    together: tuple[tuple[int, ...], ...] = (),
) -> CollectiveCost:
    """The cost of a collective over some cores of a mesh, by the algorithm that is cheapest.

    Args:
        bytes: the whole tensor on one core: before the collective, or after an all_gather.
        group: core numbers; for `send` the one that sends and the one that receives.
        together: other groups that do the same at the same time, and load links that are shared.

    Raises:
        TargetError: an unknown kind, or a group that is no group of this mesh.
    """
    group = mesh.check_group(group)
    if len(group) > _MOST_MEMBERS:
        raise TargetError(
            f"a collective over {len(group)} cores of mesh '{mesh.name}' is too large to be "
            f"costed; groups of at most {_MOST_MEMBERS} are allowed"
        )
    together = tuple(mesh.check_group(one) for one in together if one != group)
    if kind not in COLLECTIVE_KINDS:
        raise unknown("collective", kind, COLLECTIVE_KINDS, TargetError)
    if kind == "send" and len(group) != 2:
        raise TargetError(
            f"a send has {len(group)} cores in its group; two are expected, from and to"
        )
    if len(group) == 1:
        return CollectiveCost(kind, int(bytes), 1, 0.0, "none", 0.0, 0.0, "latency")
    chosen = cheapest(mesh, kind, group, bytes, together)
    start = mesh.number("collective.start_us") * 1e-6
    latency = start + sum(line.alpha for line in chosen)
    seconds = start + sum(line.seconds(bytes) for line in chosen)
    widest = max(chosen, key=lambda line: line.beta)
    bound = "latency" if latency >= seconds / 2 else widest.bound
    engines = sum(line.engines for line in chosen) * bytes
    return CollectiveCost(
        kind, int(bytes), len(group), seconds, named(chosen), latency, engines, bound
    )


def cheapest(
    mesh: Mesh,
    kind: CollectiveKind,
    group: tuple[int, ...],
    size: float,
    together: tuple[tuple[int, ...], ...] = (),
) -> list[_Line]:
    """Return the cheapest plan for `size` bytes: the algorithm of each of its stages."""
    plans = [
        [min(stage, key=lambda line: line.seconds(size)) for stage in plan]
        for plan in lines_of(mesh, kind, group, together)
    ]
    return min(plans, key=lambda plan: sum(line.seconds(size) for line in plan))


def steps_of(mesh: Mesh, kind: CollectiveKind, group: tuple[int, ...], lines: list[_Line]) -> Steps:
    """The steps of chosen algorithms, one after the other. (Lines do not keep them: between a
    thousand cores a step has a million transfers.)"""
    plans = plans_of(mesh, kind, group)
    return tuple(
        step
        for line in lines
        for step in plans[line.place[0]][line.place[1]].alternatives[line.algorithm]
    )


def named(lines: list[_Line]) -> str:
    """`mesh`, or `chip mesh, torus rdh` from the inside out."""
    by_level: dict[str, list[str]] = {}
    for line in lines:
        names = by_level.setdefault(line.level, [])
        if line.algorithm not in names:
            names.append(line.algorithm)
    if len({tuple(names) for names in by_level.values()}) == 1:
        return " and ".join(next(iter(by_level.values())))
    return ", ".join(f"{level} {' and '.join(names)}" for level, names in by_level.items())


Plan = tuple[tuple[_Line, ...], ...]
"""For each stage the algorithms it may take."""


@lru_cache(maxsize=4096)
def lines_of(
    mesh: Mesh,
    kind: CollectiveKind,
    group: tuple[int, ...],
    together: tuple[tuple[int, ...], ...] = (),
) -> tuple[Plan, ...]:
    """Return a collective's plans, slowed by what the groups in `together` send meanwhile."""
    network = Network(mesh)
    hops = {level.name: level.hop_us * 1e-6 for level in mesh.levels}
    others = [plans_of(mesh, kind, one) for one in together]
    return tuple(
        tuple(
            tuple(
                _line(
                    network, hops, stage.level, name, (i, j), _beside(steps, others, (i, j, name))
                )
                for name, steps in stage.alternatives.items()
            )
            for j, stage in enumerate(plan)
        )
        for i, plan in enumerate(plans_of(mesh, kind, group))
    )


def _beside(
    steps: Steps, others: list[list[list[CollectiveStage]]], where: tuple[int, int, str]
) -> Steps:
    """Steps with the transfers of other groups' same steps, as far as they have them."""
    i, j, name = where
    same = [
        plans[i][j].alternatives.get(name, ())
        for plans in others
        if i < len(plans) and j < len(plans[i])
    ]
    return tuple(
        replace(
            step,
            transfers=Transfers.joined(
                [step.transfers, *(other[k].transfers for other in same if k < len(other))]
            ),
        )
        for k, step in enumerate(steps)
    )


def _line(
    network: Network,
    hops: dict[str, float],
    level: str,
    name: str,
    place: tuple[int, int],
    steps: Steps,
) -> _Line:
    alpha = sum(step.times * hops[step.level] for step in steps)
    rates = [(step.times, *step_rate(network, step)) for step in steps]
    beta = sum(times * rate for times, rate, _, _ in rates)
    engines = sum(times * engine for times, _, engine, _ in rates)
    bound = max(rates, key=lambda rate: rate[0] * rate[1])[3]
    return _Line(level, name, alpha, beta, engines, bound, place)


def step_rate(network: Network, step: Step) -> tuple[float, float, str]:
    """Seconds a byte of the tensor that a step takes, that DMA engines do, and what binds it."""
    engines, links, memory = network.busiest(step.transfers, step.at_source, step.at_target)
    engines *= passes_of(network.mesh, step)
    wire = max(engines, links)
    left = min(wire, memory) / network.mesh.number("collective.slices") if step.reduces else 0.0
    bound = MEMORY if memory > wire else "engines" if engines >= links else "links"
    return max(wire, memory) + left, engines, bound


def passes_of(mesh: Mesh, step: Step) -> float:
    """Bytes that DMA engines move for each that a step sends: adding two takes one or two."""
    return (
        step.passes * mesh.number("collective.reduce_passes") / 2 if step.reduces else step.passes
    )
