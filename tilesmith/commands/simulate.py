"""`tilesmith simulate`: what a model or an operator costs on described hardware, and why."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.additions import added_to, done_in_place
from tilesmith.cli.files import page_option, trace_option
from tilesmith.cli.help import Explained
from tilesmith.cli.options import (
    chips_option,
    database_option,
    json_option,
    operator_option,
    precision_option,
    request_of,
    shape_option,
    targets_option,
)
from tilesmith.display.output import note, print_json, table

if TYPE_CHECKING:
    from tilesmith.simulator import SimulationResult


@click.command(cls=Explained)
@click.argument("model", required=False, metavar="MODEL.onnx|MODEL.mlir|MODEL.tsm")
@operator_option
@targets_option("; repeatable: targets are compared in one table.")
@database_option(required=False)
@click.option(
    "--fidelity",
    type=click.Choice(["roofline", "analytical", "timeline"]),
    help="How closely to look; analytical unless given, for a model on an accelerator timeline.",
)
@trace_option("Write a Chrome/Perfetto trace here.")
@page_option(
    "Write a page with a picture of such points here, or of one machine's timeline.", "page_file"
)
@added_to("simulate")
@chips_option
@precision_option
@shape_option
@json_option
def simulate(
    model: str | None,
    operators: tuple[str, ...],
    fidelity: str | None,
    trace: Path | None,
    page_file: Path | None,
    as_json: bool,
    targets: tuple[str, ...],
    **asked: Any,
) -> None:
    """Predict the latency of a model, or of the operators given with --op, on a target.

    Schedules come from the database, best first; operators it does not know use the default. A
    model on an accelerator is compiled and its whole program played: the table shows each
    operator alone, its roofline, and how much of the model's latency it shows.

    With several values after --set (sbuf.mib=24,48,96, or 12:96 doubling, or 12:96:5) every
    combination is simulated and compared with the target as it is.
    """
    from tilesmith.display.counting import telling
    from tilesmith.jobs.evaluation.simulation import simulated
    from tilesmith.jobs.subjects.subject import is_artifact, subject_of
    from tilesmith.search_space.support.errors import InputError
    from tilesmith.simulator.telling import reports_to

    subject = subject_of(model, operators)
    own = {
        "fidelity": fidelity, "trace": trace, "as_json": as_json, "page_file": page_file
    }  # fmt: skip
    if done_in_place("simulate", subject, targets, asked, **own):
        return
    if page_file is not None:
        trace = _page_for(page_file, trace)
    if is_artifact(subject):
        _check_asked(Path(str(subject)), targets=targets[0], precision=asked["precision"])
    if len(targets) > 1 and trace is not None:
        raise InputError("--page and --trace are of one target; give one --target")
    asked_of = [request_of(subject, {**asked, "target": target}) for target in targets]
    with telling() as show, reports_to(show):
        result, *others = [simulated(request, fidelity, trace) for request in asked_of]
    if trace is not None:
        note(f"{'trace' if page_file is None else 'page'}: {trace}")
    if others:
        _compare([result, *others], as_json)
        return
    if as_json:
        print_json(result.to_json())
        return
    click.echo(_summary(result))
    for text in result.notes:
        note(text)


def _page_for(page: Path, trace: Path | None) -> Path:
    """The page to draw; a run draws one of the two."""
    if trace is not None:
        raise click.UsageError("give --page or --trace; a simulation draws its timeline once")
    if page.suffix != ".html":
        raise click.UsageError(f"--page '{page}' is no name of a page; it ends in .html")
    return page


def _compare(results: "list[SimulationResult]", as_json: bool) -> None:
    """Print what the same subject costs on several targets."""
    if as_json:
        print_json({"targets": [result.to_json() for result in results]})
        return
    rows = [
        (
            result.target,
            result.latency_us,
            result.latency_us / results[0].latency_us,
            result.bound,
            f"{result.compute_cycles / max(result.cycles, 1):.1%}",
            result.details.get("precision", "as given"),
        )
        for result in results
    ]
    header = ("target", "us", "times the first", "bound", "computing", "precision")
    click.echo(table(header, rows))
    for result in results:
        for text in result.notes:
            note(f"{result.target}: {text}")


def _check_asked(path: Path, **asked: str) -> None:
    """Refuse an artifact that was made for other than what the command line asks for."""
    from click.core import ParameterSource

    from tilesmith.compiler.artifact.artifact import read_artifact
    from tilesmith.search_space.support.errors import InputError

    context = click.get_current_context()
    given = {n: v for n, v in asked.items()
             if context.get_parameter_source(n) == ParameterSource.COMMANDLINE}  # fmt: skip
    if not given:
        return
    recipe = read_artifact(path)
    artifact = {"targets": recipe.target.name, "precision": recipe.report.precision}
    for name, value in given.items():
        if value != artifact[name]:
            raise InputError(
                f"'{path}' was compiled for {name.removesuffix('s')} '{artifact[name]}', not "
                f"'{value}'; compile the model again"
            )


def _summary(result: "SimulationResult") -> str:
    busy = ", ".join(f"{name} {share:.0%}" for name, share in result.engines.items())
    lines = [
        f"{result.latency_us:.3f} us on {result.target} ({result.cycles} cycles, of them "
        f"{result.compute_cycles} compute), bound by {result.bound}; busy: {busy or 'nothing'}"
    ]
    if result.ops and all("shown_us" in op.details for op in result.ops):
        lines.append(_whole(result))
    elif len(result.ops) > 1:
        rows = [
            (op.workload, op.details.get("weight", 1), op.latency_us, op.bound)
            for op in sorted(result.ops, key=lambda op: -op.latency_us)
        ]
        lines.append(table(("operator", "times", "us each", "bound"), rows))
    return "\n".join([*lines, *result.remarks])


def _whole(result: "SimulationResult") -> str:
    """The table of a model whose kernels run beside each other."""
    rows = [
        (
            op.workload,
            op.details["weight"],
            op.latency_us,
            op.details["roofline_us"],
            op.details["shown_us"],
            op.bound,
            _busiest(op.details["engines"]),
        )
        for op in sorted(result.ops, key=lambda op: -op.details["shown_us"])
    ]
    header = ("operator", "times", "us alone", "roofline us", "us shown", "bound", "busiest")
    return table(header, rows)


def _busiest(engines: Mapping[str, float]) -> str:
    name = max(engines, key=lambda engine: engines[engine])
    return f"{name} {engines[name]:.0%}"
