"""`tilesmith compile`: a model and a tuning database become one artifact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tilesmith.commands.options import (
    Shape,
    database_option,
    json_option,
    precision_option,
    shape_option,
    target_option,
    threads_option,
)
from tilesmith.showing.output import print_json

if TYPE_CHECKING:
    from tilesmith.jobs.reports import CompileReport


@click.command("compile")
@click.argument("model", metavar="MODEL.onnx")
@target_option(required=False)
@database_option(required=False)
@click.option(
    "-o",
    "--output",
    "artifact",
    required=True,
    type=click.Path(path_type=Path),
    metavar="MODEL.tsm",
    help="Where to write the artifact.",
)
@click.option(
    "--require-tuned", is_flag=True, help="Fail if an operator has no tuned schedule of its own."
)
@threads_option
@precision_option
@shape_option
@json_option
def compile_model(
    model: str,
    target: str,
    settings: tuple[tuple[str, str], ...],
    database: str | None,
    artifact: Path,
    require_tuned: bool,
    threads: int,
    precision: str,
    shapes: tuple[tuple[str, Shape], ...],
    as_json: bool,
) -> None:
    """Compile MODEL.onnx with the best schedules of a database.

    An operator the database does not know takes the schedule of the nearest tuned shape, or else
    the default; one without a template runs on the host. The report says how many of each.
    """
    from tilesmith.jobs.compiling import compile_to
    from tilesmith.jobs.targets import resolve_target

    resolved = resolve_target(target, dict(settings))
    report = compile_to(
        model, artifact, resolved, database, dict(shapes), threads, require_tuned, precision
    )
    if as_json:
        print_json(report.to_json())
    else:
        click.echo(_summary(report))


def _summary(report: CompileReport) -> str:
    parts = [
        f"{report.tuned} tuned",
        f"{report.fallback} by nearest shape or default",
        f"{report.stale} tuned by another version",
        f"{report.host} on the host",
    ]
    lines = [f"{report.artifact}: {', '.join(parts)}; compiled in {report.compile_s:.1f} s"]
    if report.simulated is None:
        return "\n".join([*lines, *(f"  on the host: {name}" for name in report.host_operators)])
    found = report.simulated
    saved, kept = found.details["bytes_saved"] / 1e6, len(found.details["resident"])
    lines.append(
        f"  {report.precision} on {found.target}: {found.latency_us:.1f} us simulated, bound by "
        f"{found.bound}; {kept} tensors stay in SBUF, which saves {saved:.1f} MB of HBM traffic"
    )
    return "\n".join([*lines, *(f"  {note}" for note in found.notes)])
