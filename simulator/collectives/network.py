"""Ways between cores of a mesh, and what every byte occupies on its way.

A resource is anything of a bandwidth of its own: a link in one direction, a port of a switch, the
DMA engines of a core, the memory of a chip. A transfer occupies, for each of its bytes: the engines
of the core that sends, all links of its way, the memories it is read from and written to.

Ways: outer levels first, and along a torus dimension by dimension, the shorter way around; of two
equally long ones that which the sender's position picks, so that opposite members share the load.
A level whose links belong to a whole member (an instance's network adapters) is left at its port.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.meshes.mesh import Level, Mesh
from tilesmith.simulator.collectives.transfers import Cores, Shares, Transfers, Ways

Resource = int
"""The engines of core c are c, the memory of chip m is -1 - m, and links follow on the engines."""

MEMORY = "memory"

_DENSE = 2**20
"""Resources of a level that loads are added up for in one array; beyond, only those that occur."""


@dataclass(frozen=True, eq=False)
class Hop:
    """A kind of resource that some transfers pass.

    Attributes:
        rows: these transfers' rows in the array of all transfers.
        resources: the number of the resource that each of them passes.
        rate: bytes a second of one resource.
    """

    rows: NDArray[np.int64]
    resources: NDArray[np.int64]
    rate: float


@dataclass(frozen=True, eq=False)
class Loads:
    """Seconds a byte of the tensor: of the busiest engines and link, and of each chip's memory."""

    engines: float
    links: float
    read: Shares
    written: Shares


@dataclass(frozen=True)
class Network:
    """Ways and bandwidths of one mesh."""

    mesh: Mesh

    @cached_property
    def efficiency(self) -> float:
        return self.mesh.number("collective.link_efficiency")

    @cached_property
    def memory_rate(self) -> float:
        """Bytes a second of a chip's memory, reads and writes together."""
        return self.mesh.chip_gbps * 1e9

    @cached_property
    def per_chip(self) -> int:
        return self.mesh.cores_per_chip

    @cached_property
    def _first(self) -> dict[str, int]:
        """The first link of each level."""
        cores = self.mesh.cores
        sizes = [cores // level.owner * _ports(level) for level in self.mesh.levels]
        starts = accumulate(sizes, initial=cores)
        return dict(zip((level.name for level in self.mesh.levels), starts, strict=False))

    @cached_property
    def _engines(self) -> bool:
        """Whether the innermost level is the engines of its cores."""
        inner = self.mesh.levels[0]
        return inner.shared and inner.topology == "switch" and inner.owner == 1

    def is_engine(self, resource: Resource) -> bool:
        """Whether it is what a core itself sends with, rather than a link."""
        return 0 <= resource < self.mesh.cores

    def memory_of(self, core: int) -> Resource:
        return -1 - core // self.per_chip

    def busiest(
        self, transfers: Transfers, at_source: float, at_target: float
    ) -> tuple[float, float, float]:
        """Seconds for which the busiest engines, link and memory work, a byte of the tensor.

        Args:
            at_source, at_target: accesses of memory for each byte, at either chip.
        """
        if isinstance(transfers.share, float):
            if transfers.ways not in self._known:
                self._known[transfers.ways] = self._loads(Transfers(transfers.ways, 1.0))
            loads, share = self._known[transfers.ways], transfers.share
        else:
            loads, share = self._loads(transfers), 1.0
        memory = share * (at_source * loads.read + at_target * loads.written).max()
        return share * loads.engines, share * loads.links, float(memory)

    @cached_property
    def _known(self) -> dict[Ways, Loads]:
        """Of what moves a whole tensor each way."""
        return {}

    def _loads(self, transfers: Transfers) -> Loads:
        engines, links, ways = 0.0, 0.0, transfers.ways
        for hops in self._by_level(ways):
            most = _most(hops, transfers)
            if self.is_engine(int(hops[0].resources[0])):
                engines = max(engines, most)
            else:
                links = max(links, most)
        readers, writers = ways.sources // self.per_chip, ways.targets // self.per_chip
        low = min(readers.min(), writers.min())
        size = max(readers.max(), writers.max()) + 1 - low
        seconds = transfers.shares / self.memory_rate
        read = np.bincount(readers - low, seconds, size).astype(np.float64)
        written = np.bincount(writers - low, seconds, size).astype(np.float64)
        return Loads(engines, links, read, written)

    def routes(self, ways: Ways) -> list[list[tuple[Resource, float]]]:
        """What each way occupies, and at how many bytes a second, memories left out."""
        resources: list[list[tuple[Resource, float]]] = [[] for _ in range(len(ways))]
        for hops in self._by_level(ways):
            for hop in hops:
                for row, resource in zip(hop.rows.tolist(), hop.resources.tolist(), strict=True):
                    resources[row].append((resource, hop.rate))
        return resources

    def _by_level(self, ways: Ways) -> Iterator[list[Hop]]:
        """Hops in the order of the way: engines, then level by level from the outside in."""
        inner, sources, targets = self.mesh.levels[0], ways.sources, ways.targets
        at = sources
        if self._engines:
            yield [Hop(np.arange(len(sources)), sources, inner.gbps * 1e9)]
        levels = self.mesh.levels[1:] if self._engines else self.mesh.levels
        for level in reversed(levels):
            rows = np.flatnonzero(at // level.inside != targets // level.inside)
            if not len(rows):
                continue
            here, there = at[rows], targets[rows]
            yield self._hops(level, rows, here, there)
            at = at.copy()
            if level.owner == level.inside > self.per_chip:
                at[rows] = there  # the links are the member's: one enters anywhere
            else:  # the core like this one in the member where it goes
                at[rows] = here + (there // level.inside - here // level.inside) * level.inside

    def _hops(self, level: Level, rows: Cores, at: Cores, targets: Cores) -> list[Hop]:
        """The links of one level, with each one's share of its owner's bandwidth."""
        rate = level.gbps * 1e9 * self.efficiency
        lanes = level.inside // level.owner
        (member, within), goal = np.divmod(at, level.inside), targets // level.inside
        outer, here = np.divmod(member, level.members)
        there = here + (goal - member)
        cell = outer.astype(np.int64) * lanes + within // level.owner
        base = self._first[level.name] + cell * (level.members * _ports(level))
        if level.topology == "switch":
            return [Hop(rows, base + 2 * here, rate), Hop(rows, base + 2 * there + 1, rate)]
        if level.topology == "all_to_all":
            links = base + here * level.members + there
            return [Hop(rows, links, rate / (level.members - 1))]
        wide = sum(extent > 1 for extent in level.extents)
        return [
            # of two members there are two links between them, one way around each
            Hop(rows[on], base[on] + links, rate * (1 if level.extents[axis] == 2 else 0.5) / wide)
            for on, axis, links in walk(level.extents, here, there)
        ]


def _ports(level: Level) -> int:
    """Links that begin at one member, by number."""
    if level.topology == "all_to_all":
        return level.members
    return 2 if level.topology == "switch" else 2 * len(level.extents)


def _most(hops: list[Hop], transfers: Transfers) -> float:
    """Seconds for which the busiest of some resources is occupied, for a byte of the tensor."""
    which = np.concatenate([hop.resources for hop in hops])
    which -= which.min()
    if which.max() >= max(_DENSE, 4 * len(which)):
        which = np.unique(which, return_inverse=True)[1]
    share, rate = transfers.share, hops[0].rate
    if isinstance(share, float) and all(hop.rate == rate for hop in hops):
        return float(np.bincount(which).max()) * (share / rate)
    shares = transfers.shares
    load = np.concatenate([shares[hop.rows] / hop.rate for hop in hops])
    return float(np.bincount(which, load).max())


def walk(
    extents: tuple[int, ...], here: Cores, there: Cores
) -> Iterator[tuple[NDArray[np.int64], int, Cores]]:
    """The links of the shortest ways around a torus, step by step.

    Yields:
        which of the ways take a step, along which dimension, and the number of its link:
        `(member x dimensions + dimension) x 2`, and 1 more backwards.
    """
    at = np.stack(np.unravel_index(here, extents))
    goal = np.stack(np.unravel_index(there, extents))
    parity = at.sum(axis=0) % 2
    for axis, extent in enumerate(extents):
        ahead = (goal[axis] - at[axis]) % extent
        forward = (ahead * 2 < extent) | ((ahead * 2 == extent) & (parity == 0)) | (extent == 2)
        left = np.where(forward, ahead, extent - ahead)
        for taken in range(int(left.max(initial=0))):
            on = np.flatnonzero(left > taken)
            member = np.ravel_multi_index(tuple(at[:, on]), extents)
            yield on, axis, 2 * (member * len(extents) + axis) + ~forward[on]
            at[axis, on] = (at[axis, on] + np.where(forward[on], 1, -1)) % extent
