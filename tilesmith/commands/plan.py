"""`tilesmith plan`: what serving a model on a mesh of chips costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tilesmith.commands.options import Setting, json_option
from tilesmith.display.output import print_json, table

if TYPE_CHECKING:
    from tilesmith.planning.architecture import Architecture
    from tilesmith.planning.deployment import Deployment, Load
    from tilesmith.planning.estimate import Estimate

_DEGREE = click.IntRange(min=1)
_PRECISION = click.Choice(["fp32", "bf16", "fp16", "fp8", "int8", "int4"])


@click.command()
@click.argument("model", metavar="MODEL.onnx|config.json|FOLDER")
@click.option("--mesh", "mesh_name", required=True, help="A mesh by name, or a .toml file.")
@click.option(
    "--tp", "tensor", type=_DEGREE, help="Cores that share each product; all, if not given."
)
@click.option("--pp", "pipeline", type=_DEGREE, default=1, show_default=True, help="Stages.")
@click.option("--ep", "expert", type=_DEGREE, default=1, show_default=True,
              help="Groups of a stage's cores that experts are dealt over.")  # fmt: skip
@click.option("--dp", "data", type=_DEGREE, default=1, show_default=True, help="Replicas.")
@click.option("--batch", type=_DEGREE, default=1, show_default=True, help="Sequences at a time.")
@click.option("--input", "input_tokens", type=_DEGREE, default=128, show_default=True,
              help="Tokens of a prompt.")  # fmt: skip
@click.option("--output", "output_tokens", type=_DEGREE, default=128, show_default=True,
              help="Tokens of an answer.")  # fmt: skip
@click.option("--max-sequence", type=_DEGREE, help="What caches are made for; input and output.")
@click.option("--weights", type=_PRECISION, default="bf16", show_default=True)
@click.option("--cache", type=_PRECISION, default="bf16", show_default=True,
              help="Precision of kept keys and values.")  # fmt: skip
@click.option("--set", "settings", type=Setting(), multiple=True,
              help="Change a number of the mesh, or (core.KEY) of its cores.")  # fmt: skip
@json_option
def plan(model: str, mesh_name: str, as_json: bool, **asked: Any) -> None:
    """Estimate time to the first token, time a token, tokens a second and memory of one deployment.

    MODEL is the public configuration of a model (of transformers or diffusers), the folder it lies
    in, or an ONNX file; weights are not needed.
    """
    from tilesmith.planning.estimate import estimate
    from tilesmith.planning.reading import read_architecture

    architecture = read_architecture(model)
    deployment, load = _deployment(mesh_name, asked), _load(asked)
    found = estimate(architecture, deployment, load)
    if as_json:
        print_json({**_asked(architecture, deployment, load), **found.to_json()})
        return
    click.echo(_report(architecture, deployment, found))


def _deployment(mesh_name: str, asked: dict[str, Any]) -> Deployment:
    from tilesmith.planning.deployment import Deployment, logical_cores
    from tilesmith.search_space.mesh import load_mesh

    mesh = load_mesh(mesh_name).with_settings(dict(asked["settings"]))
    beside = asked["pipeline"] * asked["data"]
    tensor = asked["tensor"] or max(1, mesh.cores // logical_cores(mesh) // beside)
    names = ("pipeline", "expert", "data", "weights", "cache")
    return Deployment(mesh, tensor, **{name: asked[name] for name in names})


def _load(asked: dict[str, Any]) -> Load:
    from tilesmith.planning.deployment import Load

    names = ("batch", "input_tokens", "output_tokens", "max_sequence")
    return Load(**{name: asked[name] or 0 for name in names})


def _asked(architecture: Architecture, deployment: Deployment, load: Load) -> dict[str, Any]:
    """What the point is of."""
    return {
        "model": architecture.name,
        "architecture": architecture.family,
        "parameters": architecture.parameters,
        "active_parameters": architecture.active_parameters,
        "mesh": deployment.mesh.name,
        "chips": deployment.chips,
        "tp": deployment.tensor,
        "pp": deployment.pipeline,
        "ep": deployment.expert,
        "dp": deployment.data,
        "weights": deployment.weights,
        "cache": deployment.cache,
        "batch": load.batch,
        "input": load.input_tokens,
        "output": load.output_tokens,
        "max_sequence": load.limit,
    }


def _report(architecture: Architecture, deployment: Deployment, found: Estimate) -> str:
    """Times, memory, and the parts of a step, for people."""
    memory, billions = found.memory, architecture.parameters / 1e9
    chips = f"{deployment.chips} chip" + ("s" if deployment.chips > 1 else "")
    lines = [
        f"{architecture.name}: {billions:.2f} B parameters, {deployment.weights} weights, on "
        f"{chips} of {deployment.mesh.name}",
        f"memory: {memory.total:.1f} GiB = weights {memory.weights:.1f} + cache {memory.cache:.1f} "
        f"+ workspace {memory.workspace:.1f}; {memory.chip:.1f} of {memory.available:.0f} "
        "GiB a chip",
    ]
    if found.tpot_ms:
        lines.insert(1, (
            f"first token after {found.ttft_ms:.2f} ms, then one in {found.tpot_ms:.2f} ms; "
            f"{found.tokens_per_s:.1f} tokens/s; bound by {found.bound}"
        ))  # fmt: skip
    else:
        lines.insert(1, (
            f"a pass in {found.latency_ms:.2f} ms, {found.tokens_per_s:.1f} a second; "
            f"bound by {found.bound}"
        ))  # fmt: skip
    steps = found.parts
    names = sorted(
        next(iter(steps.values())), key=lambda name: -next(iter(steps.values())).get(name, 0.0)
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
