"""`tilesmith measure`: one configuration of an operator, beside the best that is known of it."""

from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.help import Explained
from tilesmith.cli.options import (
    database_option,
    json_option,
    operator_option,
    request_of,
    target_option,
    threads_option,
)
from tilesmith.display.output import note, print_json, table

if TYPE_CHECKING:
    from tilesmith.jobs.inspection.measuring import Measured, MeasureReport


@click.command(cls=Explained)
@operator_option
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="Knobs and their values, or a JSON object; repeatable. The others are as in the fastest "
    "configuration of the database, else as in the default; 'tilesmith space' lists them.",
)
@click.option(
    "--measure",
    "by",
    type=click.Choice(["hardware", "simulator"]),
    help="What tells the latency: this machine where the target is it, else the simulator.",
)
@target_option(required=False)
@database_option(required=False)
@threads_option
@json_option
def measure(
    operators: tuple[str, ...],
    configs: tuple[str, ...],
    by: str | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Measure one configuration of the operator given with --op, and check its numbers.

    Its base, the best known, is measured beside it. Exits with 1 if it computes wrong numbers, or
    none. Nothing is written to the database.
    """
    from tilesmith.jobs.inspection.configurations import parsed
    from tilesmith.jobs.inspection.measuring import measured
    from tilesmith.jobs.subjects.subject import subject_of

    given = parsed(configs)
    report = measured(request_of(subject_of(None, operators), asked), given, by)
    if as_json:
        print_json(report.to_json())
    else:
        click.echo(_summary(report))
        for text in report.notes:
            note(text)
    if report.wrong:
        raise SystemExit(1)


def _summary(report: "MeasureReport") -> str:
    lines = [f"{report.workload} on {report.target}, by {report.measured_by}"]
    rows = [_row("asked", report.asked, report.speedup), _row(report.base_is, report.base, 1.0)]
    lines.append(table(("", "us", "GFLOP/s", "times as fast", "bound", "numbers"), rows))
    changed = {
        name: (report.base.config.get(name), value)
        for name, value in report.asked.config.items()
        if report.base.config.get(name) != value
    }
    lines.append("")
    if not changed:
        lines.append("the same configuration as the base")
    else:
        lines.append(table(("knob", "asked", "base"), [(n, v, o) for n, (o, v) in changed.items()]))
    lines.append(f"configuration: {report.asked.config.key}")
    return "\n".join(lines)


def _row(name: str, measured: "Measured", speedup: float | None) -> tuple[object, ...]:
    numbers = measured.numbers or f"{measured.result.status}: {measured.result.message}"
    return name, measured.latency_us, measured.gflops, speedup, measured.result.bound, numbers
