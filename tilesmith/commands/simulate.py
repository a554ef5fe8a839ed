"""`tilesmith simulate`: what a model or an operator costs on described hardware, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tilesmith.options import (
    Shape,
    database_option,
    json_option,
    operator_option,
    shape_option,
    target_option,
)
from tilesmith.output import note, print_json, table

if TYPE_CHECKING:
    from simulator import SimulationResult


@click.command()
@click.argument("model", required=False, metavar="MODEL.onnx")
@operator_option
@target_option(required=False)
@database_option(required=False)
@click.option(
    "--fidelity",
    type=click.Choice(["roofline", "analytical", "timeline"]),
    default="analytical",
    show_default=True,
    help="How closely to look.",
)
@click.option(
    "--trace", type=click.Path(path_type=Path), help="Write a Chrome/Perfetto trace (JSON) here."
)
@shape_option
@json_option
def simulate(
    model: str | None,
    operators: tuple[str, ...],
    target: str,
    settings: tuple[tuple[str, str], ...],
    database: str | None,
    fidelity: str,
    trace: Path | None,
    shapes: tuple[tuple[str, Shape], ...],
    as_json: bool,
) -> None:
    """Predict the latency of MODEL.onnx, or of the operators given with --op, on a target.

    Schedules come from the database, best first; operators it does not know use the default.
    """
    from tilesmith import api
    from tilesmith.subjects import subject_of

    result = api.simulate(
        subject_of(model, operators),
        target=target,
        database=database,
        fidelity=fidelity,
        trace=trace,
        shapes=dict(shapes),
        settings=dict(settings),
    )
    if as_json:
        print_json(result.to_json())
        return
    click.echo(_summary(result))
    for text in result.notes:
        note(text)


def _summary(result: SimulationResult) -> str:
    busy = ", ".join(f"{name} {share:.0%}" for name, share in result.engines.items())
    lines = [
        f"{result.latency_us:.3f} us on {result.target} ({result.cycles} cycles, of them "
        f"{result.compute_cycles} compute), bound by {result.bound}; busy: {busy or 'nothing'}"
    ]
    if len(result.ops) > 1:
        rows = [
            (op.workload, op.details.get("weight", 1), op.latency_us, op.bound)
            for op in sorted(result.ops, key=lambda op: -op.latency_us)
        ]
        lines.append(table(("operator", "times", "us each", "bound"), rows))
    return "\n".join(lines)
