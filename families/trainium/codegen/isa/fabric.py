"""`CoreFabric`: what code generation needs to know of the mesh a core belongs to."""

from collections.abc import Callable
from dataclasses import dataclass

from tilesmith.search_space.meshes.mesh import CollectiveKind, Mesh

Cost = Callable[[Mesh, CollectiveKind, int, tuple[int, ...]], tuple[float, float]]


@dataclass(frozen=True)
class CoreFabric:
    """A core's place in a mesh, and what collectives cost there.

    Args:
        core: its number in the mesh.
        cost: seconds of a collective, and those for which it takes the core's DMA engines, by mesh,
            kind, bytes and group; what a simulator of the mesh offers
            (`tilesmith.families.trainium.simulator.many_cores.fabric`).
    """

    mesh: Mesh
    core: int
    cost: Cost

    def nanoseconds(
        self, kind: CollectiveKind, size: int, group: tuple[int, ...]
    ) -> tuple[float, float]:
        """ns of a collective of `size` bytes, and ns of the core's DMA engines."""
        seconds, engines = self.cost(self.mesh, kind, size, group)
        return seconds * 1e9, engines * 1e9
