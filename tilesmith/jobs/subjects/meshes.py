"""Which mesh a user means, and what collectives over its cores cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilesmith.search_space.hardware.target import HOST, FactValue, target_names
from tilesmith.search_space.meshes.mesh import CollectiveKind, Mesh, load_mesh, mesh_names
from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.support.suggestions import did_you_mean
from tilesmith.simulator.collectives import (
    CollectiveCall,
    CollectiveCost,
    collective_cost,
    collective_timeline,
)
from tilesmith.simulator.dispatch import simulators


def resolve_mesh(name: str, settings: Mapping[str, str | FactValue] | None = None) -> Mesh:
    """A mesh by name or file, with facts changed.

    Raises:
        TargetError: unknown name, bad file, unknown setting, or a value out of range.
    """
    mesh = load_mesh(name)
    return mesh.with_settings(settings) if settings else mesh


def is_mesh(name: str) -> bool:
    """Whether a name or file means a mesh, rather than a target.

    Raises:
        TargetError: it is neither's name.
    """
    if name.endswith(".toml"):
        path = Path(name)
        return path.is_file() and any(
            line.replace(" ", "").startswith("levels=")
            for line in path.read_text(errors="replace").splitlines()
        )
    if name in mesh_names():
        return True
    if name in target_names() or name.partition(":")[0] == HOST:
        return False
    meant = did_you_mean(name, (HOST, *target_names(), *mesh_names()))
    raise TargetError(
        f"unknown target '{name}'; one of {HOST}, {', '.join(target_names())}, a mesh "
        f"({', '.join(mesh_names())}) or a .toml file is expected{meant}"
    )


def all_meshes() -> list[Mesh]:
    """Every shipped mesh."""
    return [load_mesh(name) for name in mesh_names()]


@dataclass(frozen=True)
class CollectiveRow:
    """A collective of one size: its analytical cost, and seconds on the timeline if played."""

    cost: CollectiveCost
    timeline: float | None


def collective_table(
    mesh: Mesh,
    kind: CollectiveKind,
    sizes: Sequence[int],
    groups: tuple[tuple[int, ...], ...],
    timeline: bool = False,
) -> list[CollectiveRow]:
    """A collective over the first of some groups by size, all of them at the same time.

    Raises:
        TargetError: a group that is no group of the mesh.
    """
    rows = []
    for size in sizes:
        cost = collective_cost(mesh, kind, size, groups[0], groups)
        rows.append(CollectiveRow(cost, _played(mesh, kind, size, groups) if timeline else None))
    return rows


def _played(
    mesh: Mesh, kind: CollectiveKind, size: int, groups: tuple[tuple[int, ...], ...]
) -> float:
    """Seconds until the last group is done: by schedules where links are shared by nobody, else by
    queues at links."""
    family = simulators.find(mesh.target.family)
    scheduled = [] if family is None else [family.collective_s(mesh, kind, size, g) for g in groups]
    exact = [seconds for seconds in scheduled if seconds is not None]
    if exact and len(exact) == len(groups):
        return max(exact)
    return max(collective_timeline(mesh, [CollectiveCall(kind, size, group) for group in groups]))
