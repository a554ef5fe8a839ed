"""The timeline of collectives: every transfer over every link, in the order in which they come.

An independent check of the analytical cost, which adds up steps: here no step is common to all. A
core begins its next step when what it waits for has arrived and its own transfers are out. Each
transfer begins a hop later and goes in slices; a slice queues at each resource of its way (memory,
engines, links, memory), and flows on while it arrives. So contention, also between several
collectives at once, comes from the queues; what arrives to be added is read and written in memory
after it has arrived, while the next slice is on its way.
"""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tilesmith.search_space.meshes.mesh import CollectiveKind, Mesh
from tilesmith.search_space.support.errors import TargetError
from tilesmith.simulator.collectives.algorithms import Step
from tilesmith.simulator.collectives.cost import cheapest, passes_of, steps_of
from tilesmith.simulator.collectives.network import Network, Resource

Way = list[tuple[Resource, float]]
"""Resources in their order, each with its bytes a second."""

_MOST_SLICES = 200_000
"""Slices of transfers that are played: some seconds."""


@dataclass(frozen=True)
class CollectiveCall:
    """One collective: kind, bytes of the tensor and group as in `collective_cost`."""

    kind: CollectiveKind
    bytes: float
    group: tuple[int, ...]


def collective_timeline(mesh: Mesh, calls: Sequence[CollectiveCall]) -> list[float]:
    """Seconds after which each of several collectives that begin together is done.

    Each takes the algorithm that is the cheapest alone.

    Raises:
        TargetError: as `collective_cost`, or there are more transfers than can be played.
    """
    return _Simulation(Network(mesh), calls).run()


@dataclass
class _Slice:
    """Part of a transfer on its way.

    Args:
        stations: resources and for how long, in their order.
        waits: whether the last of them is begun only when all has arrived.
        arrived: when all of it is behind the last station so far.
    """

    play: int
    step: int
    source: int
    destination: int
    stations: list[tuple[Resource, float]]
    waits: bool
    arrived: float = 0.0


class _Simulation:
    """Slices and cores in the order of their events."""

    def __init__(self, network: Network, calls: Sequence[CollectiveCall]) -> None:
        self._network, self._mesh = network, network.mesh
        self._number = int(self._mesh.number("collective.slices"))
        self._plays = [_Play(call, _steps(self._mesh, call), network) for call in calls]
        self._hops = {level.name: level.hop_us * 1e-6 for level in self._mesh.levels}
        self._free: defaultdict[Resource, float] = defaultdict(float)
        self._events: list[tuple[float, int, _Slice | tuple[int, int, int], int]] = []
        self._count = 0

    def run(self) -> list[float]:
        start = self._mesh.number("collective.start_us") * 1e-6
        for number, play in enumerate(self._plays):
            for core in play.call.group if play.steps else ():
                self._push(start, (number, 0, core), 0)
        while self._events:
            time, _, what, station = heapq.heappop(self._events)
            if isinstance(what, _Slice):
                self._pass(time, what, station)
            else:
                self._begin(time, *what)
        return [play.end for play in self._plays]

    def _push(self, time: float, what: _Slice | tuple[int, int, int], station: int) -> None:
        self._count += 1  # equal times: first come, first served
        heapq.heappush(self._events, (time, self._count, what, station))

    def _begin(self, time: float, number: int, step_number: int, core: int) -> None:
        """A core begins a step."""
        play = self._plays[number]
        play.end = max(play.end, time)
        if step_number == len(play.steps):
            return
        step = play.steps[step_number]
        for _ in range(self._number):
            for destination, share, way in play.outgoing[step_number][core]:
                stations = self._stations(step, core, destination, way)
                size = share * play.call.bytes / self._number
                one = [(resource, seconds * size) for resource, seconds in stations]
                self._push(
                    time + self._hops[step.level],
                    _Slice(number, step_number, core, destination, one, step.reduces),
                    0,
                )
        self._arrived(number, step_number, core, time)

    def _stations(
        self, step: Step, source: int, destination: int, way: Way
    ) -> list[tuple[Resource, float]]:
        """What a byte occupies on its way, and for how many seconds."""
        network, passes = self._network, passes_of(self._mesh, step)
        rate = network.memory_rate
        return [
            (network.memory_of(source), step.at_source / rate),
            *((on, (passes if network.is_engine(on) else 1.0) / speed) for on, speed in way),
            (network.memory_of(destination), step.at_target / rate),
        ]

    def _pass(self, time: float, one: _Slice, station: int) -> None:
        """A slice reaches a station; it flows on to the next while it is served."""
        resource, length = one.stations[station]
        begin = max(time, self._free[resource])
        self._free[resource] = begin + length
        one.arrived = max(one.arrived, begin + length)
        if station + 1 == len(one.stations):
            self._arrived(one.play, one.step, one.destination, one.arrived)
            self._arrived(one.play, one.step, one.source, one.arrived)
        else:
            last = station + 2 == len(one.stations)
            self._push(one.arrived if one.waits and last else begin, one, station + 1)

    def _arrived(self, number: int, step: int, core: int, time: float) -> None:
        """One thing less that a core waits for before its next step."""
        play = self._plays[number]
        play.ready[step][core] = max(play.ready[step][core], time)
        play.missing[step][core] -= 1
        if play.missing[step][core] == 0:
            self._push(play.ready[step][core], (number, step + 1, core), 0)


class _Play:
    """One collective that is going on: what each core sends and waits for in each step."""

    def __init__(self, call: CollectiveCall, steps: list[Step], network: Network) -> None:
        self.call, self.steps, self.end = call, steps, 0.0
        self.outgoing: list[defaultdict[int, list[tuple[int, float, Way]]]] = []
        self.missing: list[dict[int, int]] = []
        self.ready: list[defaultdict[int, float]] = []
        slices = int(network.mesh.number("collective.slices"))
        ways = {id(step): network.routes(step.transfers.ways) for step in steps}
        for step in steps:
            outgoing: defaultdict[int, list[tuple[int, float, Way]]] = defaultdict(list)
            missing = dict.fromkeys(call.group, 1)  # its own beginning
            for (source, target, share), way in zip(step.transfers, ways[id(step)], strict=True):
                outgoing[source].append((target, share, way))
                missing[target] += slices
                missing[source] += slices
            self.outgoing.append(outgoing)
            self.missing.append(missing)
            self.ready.append(defaultdict(float))


def _steps(mesh: Mesh, call: CollectiveCall) -> list[Step]:
    """All steps of a collective, each as often as it is taken."""
    group = mesh.check_group(call.group)
    if len(group) == 1:
        return []
    lines = cheapest(mesh, call.kind, group, call.bytes)
    steps: list[Step] = []
    for step in steps_of(mesh, call.kind, group, lines):
        steps += [step] * step.times
    slices = sum(len(step.transfers) for step in steps) * int(mesh.number("collective.slices"))
    if slices > _MOST_SLICES:
        raise TargetError(
            f"{call.kind} over {len(group)} cores of mesh '{mesh.name}' moves {slices:,} slices, "
            f"more than the {_MOST_SLICES:,} that a timeline plays; leave the timeline out, or "
            "take fewer cores"
        )
    return steps
