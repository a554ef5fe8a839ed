"""`tilesmith targets`: the known hardware, cores and meshes, each number with its source."""

from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.help import Explained
from tilesmith.cli.options import json_option, set_option
from tilesmith.display.output import print_json, table
from tilesmith.search_space.support.json_object import object_of

if TYPE_CHECKING:
    from tilesmith.search_space.hardware.target import Fact, Target
    from tilesmith.search_space.meshes.mesh import Mesh

_FACT = "value unit source trust calibratable minimum maximum"


@click.command(cls=Explained)
@click.argument("name", required=False)
@set_option
@json_option
def targets(name: str | None, settings: tuple[tuple[str, str], ...], as_json: bool) -> None:
    """List the targets and meshes, or explain the one called NAME (a name or a .toml file)."""
    from tilesmith.jobs.subjects.meshes import all_meshes, is_mesh, resolve_mesh
    from tilesmith.jobs.subjects.targets import all_targets, resolve_target

    if name is None and settings:
        raise click.UsageError("--set changes a number of one target; name the target")
    targets: list[Target] = []
    meshes: list[Mesh] = []
    if name is None:
        targets, meshes = all_targets(), all_meshes()
    elif is_mesh(name):
        meshes = [resolve_mesh(name, dict(settings))]
    else:
        targets = [resolve_target(name, dict(settings))]
    if as_json:
        described = [describe(target) for target in targets]
        print_json({"targets": described, "meshes": [describe_mesh(mesh) for mesh in meshes]})
    elif name:
        click.echo(_explanation(targets[0]) if targets else _explained_mesh(meshes[0]))
    else:
        rows = [(t.name, t.family, t.doc) for t in targets]
        click.echo(table(("target", "family", "description"), rows))
        columns = [(m.name, m.target.name, m.chips, m.cores, m.doc) for m in meshes]
        click.echo("\n" + table(("mesh", "core", "chips", "cores", "description"), columns))


def describe(target: "Target") -> dict[str, Any]:
    """A target as plain data, facts by dotted name."""
    facts = {name: object_of(fact, _FACT) for name, fact in target.facts}
    return {**object_of(target, "name family doc identity"), "facts": facts}


def describe_mesh(mesh: "Mesh") -> dict[str, Any]:
    """A mesh as plain data, levels from the inside out."""
    level = "name topology extents gbps_each_way:gbps cores_a_port:owner hop_us"
    return {
        **object_of(mesh, "name core:target.name doc cores chips cores_per_chip"),
        "memory_gib": mesh.chip_gib * mesh.chips,
        "levels": [object_of(one, level) for one in mesh.levels],
        "facts": {name: object_of(fact, _FACT) for name, fact in mesh.data.facts},
    }


def _explained_mesh(mesh: "Mesh") -> str:
    heading = (
        f"{mesh.name}: {mesh.doc}\n{mesh.chips} chips of {mesh.cores_per_chip} cores "
        f"({mesh.target.name}), {mesh.chip_gib * mesh.chips:,.0f} GiB at "
        f"{mesh.chip_gbps * mesh.chips:,.0f} GB/s\n\n"
    )
    levels = [
        (
            level.name, level.topology, "x".join(map(str, level.extents)),
            f"{level.gbps:g}", level.owner, f"{level.hop_us:g}",
        )
        for level in mesh.levels
    ]  # fmt: skip
    header = ("level", "topology", "members", "GB/s each way", "cores a port", "us a hop")
    return heading + table(header, levels) + "\n\n" + _facts(mesh.data)


def _explanation(target: "Target") -> str:
    heading = f"{target.name}: {target.doc or target.family} (family {target.family})\n"
    from tilesmith.simulator.dispatch import simulators

    simulator = simulators.find(target.family)
    said = simulator.contradictions(target) if simulator is not None else []
    return "\n".join([heading + _facts(target), *said])


def _facts(target: "Target") -> str:
    rows = [
        (name, _value(fact), fact.unit, fact.source, fact.trust, _range(fact))
        for name, fact in target.facts
    ]
    return table(("fact", "value", "unit", "source", "trust", "allowed"), rows)


def _value(fact: "Fact") -> str:
    text = str(fact.value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _range(fact: "Fact") -> str:
    if fact.minimum is None and fact.maximum is None:
        return ""
    low = "0" if fact.minimum is None else f"{fact.minimum:g}"
    return f"{low} or more" if fact.maximum is None else f"{low} to {fact.maximum:g}"
