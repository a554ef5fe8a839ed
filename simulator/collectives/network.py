"""Ways between cores of a mesh, and what every byte occupies on its way.

A resource is anything of a bandwidth of its own: a link in one direction, a port of a switch, the
DMA engines of a core, the memory of a chip. A transfer occupies, for each of its bytes: the engines
of the core that sends, all links of its way, the memories it is read from and written to.

Ways: outer levels first, and along a torus dimension by dimension, the shorter way around; of two
equally long ones that which the sender's position picks, so that opposite members share the load.
A level whose links belong to a whole member (an instance's network adapters) is left at its port.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tilesmith.search_space.mesh import Level, Mesh

Resource = tuple[str | int, ...]
"""Level's name and where it is; `("memory", chip)` is the memory of a chip."""

MEMORY = "memory"


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
    def _engines(self) -> Level:
        return self.mesh.levels[0]

    def memory_of(self, core: int) -> Resource:
        return (MEMORY, core // self.per_chip)

    def route(self, source: int, destination: int) -> tuple[tuple[Resource, float], ...]:
        """What a transfer occupies, and at how many bytes a second, memories left out."""
        found: list[tuple[Resource, float]] = []
        inner = self._engines
        if inner.shared and inner.topology == "switch" and inner.owner == 1:
            found.append(((inner.name, source, "out"), inner.gbps * 1e9))
        at = source
        for level in reversed(self.mesh.levels):
            if at // level.inside == destination // level.inside:
                continue
            if level is inner and found:
                at = destination
                continue
            rate = level.gbps * 1e9 * self.efficiency
            for link, share in self._links(level, at, destination):
                found.append((link, rate * share))
            if level.owner == level.inside:  # the links are the member's: one enters anywhere
                at = (
                    destination
                    if level.inside > self.per_chip
                    else self._moved(level, at, destination)
                )
            else:
                at = self._moved(level, at, destination)
        return tuple(found)

    @staticmethod
    def _moved(level: Level, at: int, destination: int) -> int:
        """The core like `at` in the member of `destination`."""
        step = level.member_of(destination) - level.member_of(at)
        cell = destination // level.cores - at // level.cores
        return at + step * level.inside + cell * level.cores

    def _links(self, level: Level, at: int, destination: int) -> Iterator[tuple[Resource, float]]:
        """Links of one level on the way, with each one's share of its owner's bandwidth."""
        lane = at % level.inside // level.owner
        cell = at // level.cores
        here, there = level.member_of(at), level.member_of(destination)
        if level.topology == "switch":
            yield (level.name, cell, lane, here, "out"), 1.0
            yield (level.name, cell, lane, there, "in"), 1.0
        elif level.topology == "all_to_all":
            yield (level.name, cell, lane, here, there), 1.0 / (level.members - 1)
        else:
            wide = sum(extent > 1 for extent in level.extents)
            for link in walk(level.extents, here, there):
                both = level.extents[link[1]] == 2  # two links to the same neighbour
                yield (level.name, cell, lane, *link), (1.0 if both else 0.5) / wide


def walk(extents: tuple[int, ...], here: int, there: int) -> Iterator[tuple[int, int, int]]:
    """The links (member, dimension, direction) of the shortest way around a torus."""
    at, goal = list(unravel(extents, here)), unravel(extents, there)
    parity = sum(at) % 2
    for axis, extent in enumerate(extents):
        ahead = (goal[axis] - at[axis]) % extent
        forward = ahead * 2 < extent or (ahead * 2 == extent and parity == 0)
        if extent == 2:
            forward = True
        for _ in range(ahead if forward else extent - ahead):
            yield ravel(extents, at), axis, 1 if forward else -1
            at[axis] = (at[axis] + (1 if forward else -1)) % extent


def unravel(extents: tuple[int, ...], member: int) -> tuple[int, ...]:
    """Position along every dimension, slowest first."""
    found = []
    for extent in reversed(extents):
        found.append(member % extent)
        member //= extent
    return tuple(reversed(found))


def ravel(extents: tuple[int, ...], at: list[int] | tuple[int, ...]) -> int:
    """The member at a position."""
    member = 0
    for extent, index in zip(extents, at, strict=True):
        member = member * extent + index
    return member
