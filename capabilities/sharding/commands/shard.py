"""`tilesmith shard`: a model over the cores of a mesh: specs, collectives, costs, memory."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.help import Explained
from tilesmith.cli.options import Listed, given, json_option, set_option, shape_option
from tilesmith.cli.values import Setting
from tilesmith.display.output import print_json, table

if TYPE_CHECKING:
    from tilesmith.capabilities.sharding.jobs import Sharded
    from tilesmith.capabilities.sharding.partitioning.pipeline import MeshPipeline
    from tilesmith.compiler.backends.many_cores import Played


class NamedSpec(Setting):
    """`TENSOR=axis,-`; becomes (tensor, spec)."""

    name = "TENSOR=AXIS,AXIS"


_DEGREE = click.IntRange(min=1, max=1 << 20)


@click.command(cls=Explained)
@click.argument("model", metavar="MODEL.onnx|MODEL.mlir")
@click.option(
    "--mesh",
    cls=Listed,
    names="tilesmith.search_space.meshes.mesh:mesh_names",
    required=True,
    metavar="NAME",
    help="The machine: a mesh by name, or a .toml file.",
)
@click.option("--cores", type=_DEGREE, help="Use so many cores of the mesh; else all.")
@click.option("--data", type=_DEGREE, help="Cores along the axis 'data', the outermost.")
@click.option("--expert", type=_DEGREE, help="Cores along the axis 'expert'.")
@click.option("--tensor", type=_DEGREE, help="Cores along the axis 'tensor': neighbours.")
@click.option("--pipeline", type=_DEGREE, help="Stages of a pipeline, each on cores of its own.")
@click.option(
    "--microbatches",
    type=_DEGREE,
    default=1,
    show_default=True,
    help="Batches of the model's size that a pipeline takes one after another.",
)
@click.option(
    "--spec",
    "specs",
    type=NamedSpec(),
    multiple=True,
    help="Cut a tensor: an axis for each dimension, '-' for none, as in x=data,-,tensor; "
    "what is not named follows; repeatable.",
)
@click.option(
    "--annotations",
    type=click.Path(path_type=Path),
    help='The same from a JSON file: {"x": "data,-,tensor"}.',
)
@click.option(
    "--optimise", is_flag=True, help="Choose what the specs leave open, instead of propagating."
)
@click.option(
    "--timeline",
    is_flag=True,
    help="Link every core's kernels and collectives to one instruction stream, and play them.",
)
@shape_option
@set_option
@json_option
def shard(
    model: str,
    mesh: str,
    specs: tuple[tuple[str, str], ...],
    annotations: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Cut MODEL over the cores of a mesh, and say what that costs.

    Without --spec the cheapest sharding is looked for, and the report says how far from the best
    it may be. With it, specs are propagated from the tensors named to all others; collectives
    are inserted where they differ.
    """
    from tilesmith.capabilities.sharding import jobs

    texts = {**(jobs.read_annotations(annotations) if annotations else {}), **dict(specs)}
    result = jobs.shard(model, mesh, specs=texts, **given(asked))
    if as_json:
        print_json(result.to_json())
    else:
        click.echo(_summary(result))


def _summary(result: "Sharded") -> str:
    account = result.account
    rows = [
        (row.name, row.role, "x".join(map(str, row.shape)) or "scalar", row.spec, row.bytes)
        for row in account.tensors
    ]
    lines = [table(("tensor", "is", "shape", "spec", "bytes a core"), rows), ""]
    if account.collectives:
        header = ("collective", "tensor", "axes", "from", "to", "bytes", "us")
        moves = [
            (r.kind, r.tensor, "+".join(r.axes), r.before, r.after, r.bytes, r.us)
            for r in account.collectives
        ]
        lines += [table(header, moves), ""]
    total = account.compute_us + account.communication_us
    lines.append(
        f"{total:.1f} us a run on {_cores(result.axes)} of {result.machine}, estimated: computing "
        f"{account.compute_us:.1f} with neighbours fused, {len(account.collectives)} collectives "
        f"{account.communication_us:.1f}"
    )
    lines.append(
        f"memory of a core: weights {_mib(account.weight_bytes)}, activations "
        f"{_mib(account.activation_bytes)}, of {_mib(result.limit_bytes)}"
    )
    if result.objective_us is not None and result.bound_us is not None:
        lines.append(
            f"optimised: with nothing fused, as shardings are compared, {result.objective_us:.1f} "
            f"us, and no sharding takes less than {result.bound_us:.1f} (gap {result.gap:.2%})"
        )
    if result.played is not None:
        lines.append(_played(result.played, result.estimate_us))
    if result.streams is not None and (first := result.streams.divided.operators):
        lines.append(
            f"before that the host runs {first} operators on whole numbers that it is given"
        )
    if result.pipeline is not None:
        lines += ["", _stages(result.pipeline)]
    return "\n".join(lines)


def _played(played: "Played", estimate: float) -> str:
    one = played.longest
    return (
        f"played: {played.makespan_us:.1f} us, {played.makespan_us / estimate:.2f} of what is "
        f"estimated, {played.instructions} instructions; of the core that is last, engines compute "
        f"for {one.computing_us:.1f} us, collectives take {one.collectives_us:.1f} "
        f"({one.waiting_us:.1f} of it waiting for others), {one.hidden_us:.1f} of it behind "
        "computing"
    )


def _cores(axes: Mapping[str, int]) -> str:
    """`32 cores (data 4 x tensor 8)`."""
    names = " x ".join(f"{name} {size}" for name, size in axes.items() if size > 1)
    return f"{math.prod(axes.values())} cores ({names})" if names else "one core"


def _stages(pipeline: "MeshPipeline") -> str:
    header = ("stage", "operators", "us", "of it receiving", "bytes received", "weights a core")
    rows = [
        (number, stage.last - stage.first, stage.us, stage.receive_us, stage.sent_bytes,
         _mib(stage.weight_bytes))
        for number, stage in enumerate(pipeline.stages)
    ]  # fmt: skip
    return (
        f"{table(header, rows)}\n{pipeline.microbatches} microbatches in {pipeline.latency_us:.1f} "
        f"us, one every {pipeline.interval_us:.1f} us; stages wait {pipeline.bubble:.0%} of it"
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
