"""`tilesmith collectives`: what all-reduces and their like cost on a mesh, by size."""

from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.help import Explained
from tilesmith.cli.options import Listed, json_option, set_option
from tilesmith.cli.values import ByteSize
from tilesmith.display.output import print_json, table
from tilesmith.search_space.meshes.mesh import COLLECTIVE_KINDS, CollectiveKind

if TYPE_CHECKING:
    from tilesmith.jobs.subjects.meshes import CollectiveRow
    from tilesmith.search_space.meshes.mesh import Mesh


@click.command(cls=Explained)
@click.option(
    "--mesh",
    "name",
    cls=Listed,
    names="tilesmith.search_space.meshes.mesh:mesh_names",
    required=True,
    help="A mesh that 'tilesmith targets' lists, or a .toml file.",
)
@set_option
@click.option(
    "--kind", type=click.Choice(COLLECTIVE_KINDS), default="all_reduce", show_default=True
)
@click.option("--cores", type=click.IntRange(min=1), help="Cores in the group; all unless given.")
@click.option(
    "--stride",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="From one core of the group to the next.",
)
@click.option(
    "--all-groups", is_flag=True, help="All groups of so many cores at the same time, not one."
)
@click.option(
    "--from", "first", type=ByteSize(), default="1KiB", show_default=True, help="Least size."
)
@click.option(
    "--to", "last", type=ByteSize(), default="1GiB", show_default=True, help="Largest size."
)
@click.option("--factor", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--timeline", is_flag=True, help="Simulate every transfer over the links, too.")
@json_option
def collectives(
    name: str,
    settings: tuple[tuple[str, str], ...],
    kind: CollectiveKind,
    as_json: bool,
    **asked: Any,
) -> None:
    """Cost a collective over cores of a mesh, from a small size to a large one.

    Sizes are those of the whole tensor on one core; bandwidths are those of nccl-tests: algbw is
    size over time, busbw what the links carry of it.
    """
    from tilesmith.jobs.subjects.meshes import collective_table, resolve_mesh

    mesh = resolve_mesh(name, dict(settings))
    groups = _groups(mesh, kind, asked["cores"], asked["stride"])
    if not asked["all_groups"]:
        groups = groups[:1]
    group = groups[0]
    if asked["first"] > asked["last"]:
        raise click.UsageError("--from is larger than --to; nothing lies between them")
    sizes = [asked["first"]]
    while sizes[-1] * asked["factor"] <= asked["last"]:
        sizes.append(sizes[-1] * asked["factor"])
    rows = collective_table(mesh, kind, sizes, groups, asked["timeline"])
    if as_json:
        print_json(
            {
                "mesh": mesh.name,
                "kind": kind,
                "group": list(group),
                "groups": len(groups),
                "rows": [*map(_plain, rows)],
            }
        )
        return
    members = f"{len(group)} of {mesh.cores} cores"
    if len(groups) > 1:
        members = f"{len(groups)} groups of {len(group)} cores at the same time"
    click.echo(f"{kind} over {members}, {mesh.name}\n")
    played = ("timeline us",) if asked["timeline"] else ()
    header = ("bytes", "us", *played, "algbw GB/s", "busbw GB/s", "algorithm", "bound")
    click.echo(table(header, [_cells(row) for row in rows]))


def _groups(mesh: "Mesh", kind: str, cores: int | None, stride: int) -> tuple[tuple[int, ...], ...]:
    whole = 2 if kind == "send" else max(1, mesh.cores // stride)
    return mesh.groups(cores or whole, stride)


def _plain(row: "CollectiveRow") -> dict[str, Any]:
    cost = row.cost
    return {
        "bytes": cost.bytes,
        "us": cost.seconds * 1e6,
        "timeline_us": None if row.timeline is None else row.timeline * 1e6,
        "latency_us": cost.latency_s * 1e6,
        "algbw_gbps": cost.gbps,
        "busbw_gbps": cost.bus_gbps,
        "algorithm": cost.algorithm,
        "bound": cost.bound,
    }


def _cells(row: "CollectiveRow") -> tuple[object, ...]:
    cost = row.cost
    played = () if row.timeline is None else (f"{row.timeline * 1e6:.1f}",)
    return (
        cost.bytes, f"{cost.seconds * 1e6:.1f}", *played, f"{cost.gbps:.2f}",
        f"{cost.bus_gbps:.2f}", cost.algorithm, cost.bound,
    )  # fmt: skip
