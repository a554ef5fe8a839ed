"""`tilesmith plan`: what serving a model on a mesh of chips costs."""

import shlex
from typing import TYPE_CHECKING, Any

import click

from tilesmith.capabilities.planning.serving.options import Numbers, serving_options
from tilesmith.cli.help import CommandOption, Explained
from tilesmith.cli.options import Listed, json_option
from tilesmith.cli.values import NameList, Setting
from tilesmith.display.output import print_json, table
from tilesmith.search_space.support.json_object import object_of

if TYPE_CHECKING:
    from tilesmith.capabilities.planning.architecture import Architecture
    from tilesmith.capabilities.planning.deployment import Deployment, DeploymentLoad
    from tilesmith.capabilities.planning.estimates.estimate import Estimate
    from tilesmith.search_space.meshes.mesh import Mesh

_DEGREES = Numbers(open_ended=True)
_PRECISIONS = NameList(("fp32", "bf16", "fp16", "fp8", "int8", "int4"))


@click.command(cls=Explained)
@click.argument("model", metavar="MODEL.onnx|config.json|FOLDER")
@click.option("--mesh", "mesh_names", cls=Listed,
              names="tilesmith.search_space.meshes.mesh:mesh_names", required=True, multiple=True,
              help="A mesh by name, or a .toml file; repeatable.")  # fmt: skip
@click.option("--tp", "tensor", type=_DEGREES,
              help="Cores that share each product; all that divide, if not given.")  # fmt: skip
@click.option("--pp", "pipeline", type=_DEGREES,
              help="Stages; 1, or all that divide where --tp is not given.")  # fmt: skip
@click.option("--ep", "expert", type=_DEGREES,
              help="Groups of a stage's cores that experts are dealt over; as --pp.")  # fmt: skip
@click.option("--dp", "data", type=_DEGREES, help="Replicas; 1 unless given.")
@click.option("--batch", type=Numbers(),
              help="Sequences at a time; 1 at a point, powers of two in a sweep, at most 256 for a "
              "load.")  # fmt: skip
@click.option("--input-tokens", "input", cls=CommandOption, former=("--input",), type=Numbers(),
              show_default="128", help="Tokens of a prompt.")  # fmt: skip
@click.option("--output-tokens", "output", cls=CommandOption, former=("--output",), type=Numbers(),
              show_default="128", help="Tokens of an answer.")  # fmt: skip
@click.option("--max-sequence", type=click.IntRange(min=1),
              help="What caches are made for; input and output.")  # fmt: skip
@click.option(
    "--weights", type=_PRECISIONS, help="Their precision; as the configuration has it, else bf16."
)
@click.option("--cache", type=_PRECISIONS, help="Precision of kept keys and values; bf16.")
@click.option("--set", "settings", type=Setting(), multiple=True,
              help="Change a number of the mesh, or (core.KEY) of its cores.")  # fmt: skip
@serving_options
@json_option
def plan(model: str, mesh_names: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Estimate time to the first token, time a token, tokens a second and memory of a deployment.

    MODEL is the public configuration of a model (of transformers or diffusers), the folder it lies
    in, or an ONNX file; weights are not needed.

    Several values (1,2,4 or all) make a sweep, of which the Pareto fronts are shown. With
    --requests-per-second or --arrivals, the fewest chips are found that serve that load.
    """
    from tilesmith.capabilities.planning.serving.asking import is_point, planned, read
    from tilesmith.capabilities.planning.serving.job import Outputs

    architecture, meshes = read(model, mesh_names, asked, dict(asked["settings"]))
    if is_point(asked, len(meshes)):
        _point(architecture, meshes[0], asked, as_json)
        return
    words = click.get_current_context().find_root().obj or []
    command = shlex.join(["tilesmith", *words])
    files = Outputs(asked["csv_file"], asked["page"], asked["prices"], command)
    answer = planned(architecture, meshes, asked, files)
    if as_json:
        print_json(answer.to_json())
    else:
        click.echo(answer.text())


def _point(
    architecture: "Architecture", mesh: "Mesh", asked: dict[str, Any], as_json: bool
) -> None:
    """One deployment under one load."""
    from tilesmith.capabilities.planning.estimates.estimate import estimate
    from tilesmith.capabilities.planning.serving.asking import deployment_of, load_of

    deployment, load = deployment_of(mesh, asked), load_of(asked)
    costs = estimate(architecture, deployment, load)
    if as_json:
        print_json({**_asked(architecture, deployment, load), **costs.to_json()})
    else:
        click.echo(_report(architecture, deployment, costs))


def _asked(
    architecture: "Architecture", deployment: "Deployment", load: "DeploymentLoad"
) -> dict[str, Any]:
    """What the point is of."""
    where = "mesh:mesh.name chips tp:tensor pp:pipeline ep:expert dp:data weights cache"
    return {
        **object_of(architecture, "model:name architecture:family parameters active_parameters"),
        **object_of(deployment, where),
        **object_of(load, "batch input:input_tokens output:output_tokens max_sequence:limit"),
    }


def _report(architecture: "Architecture", deployment: "Deployment", estimate: "Estimate") -> str:
    """Times, memory, and the parts of a step, for people."""
    memory, size = estimate.memory, architecture.parameters
    count = f"{size / 1e9:.2f} B" if size >= 1e9 else f"{size / 1e6:.2f} M"
    chips = f"{deployment.chips} chip" + ("s" if deployment.chips > 1 else "")
    lines = [
        f"{architecture.name}: {count} parameters, {deployment.weights} weights, on "
        f"{chips} of {deployment.mesh.name}",
        f"memory: {memory.total:.1f} GiB = weights {memory.weights:.1f} + cache {memory.cache:.1f} "
        f"+ workspace {memory.workspace:.1f}; {memory.chip:.1f} of {memory.available:.0f} "
        "GiB a chip",
    ]
    if estimate.tpot_ms:
        lines.insert(1, (
            f"first token after {estimate.ttft_ms:.2f} ms, then one in {estimate.tpot_ms:.2f} ms; "
            f"{estimate.tokens_per_s:.1f} tokens/s; bound by {estimate.bound}"
        ))  # fmt: skip
    else:
        lines.insert(1, (
            f"a pass in {estimate.latency_ms:.2f} ms, {estimate.tokens_per_s:.1f} a second; "
            f"bound by {estimate.bound}"
        ))  # fmt: skip
    steps = estimate.parts
    first = next(iter(steps.values()))
    names = sorted(
        dict.fromkeys(name for parts in steps.values() for name in parts),
        key=lambda name: -first.get(name, 0.0),
    )
    rows = [
        (name, *(cell for parts in steps.values() for cell in _share(parts, name)))
        for name in names
    ]
    header = ("part", *(cell for step in steps for cell in (f"{step} ms", "%")))
    return "\n".join([*lines, "", table(header, rows)])


def _share(parts: Any, name: str) -> tuple[float, float]:
    own = parts.get(name, 0.0)
    return own, 100 * own / sum(parts.values())
