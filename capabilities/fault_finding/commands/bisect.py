"""`tilesmith bisect`: which pass, kernel or schedule makes a compiled model wrong."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.files import folder_option, time_limit_option
from tilesmith.cli.help import CommandOption, Explained
from tilesmith.cli.options import inputs_option, request_of, running_options
from tilesmith.cli.values import Quantity
from tilesmith.display.output import note, print_json

if TYPE_CHECKING:
    from tilesmith.capabilities.fault_finding.bisecting import BisectReport


@click.command(cls=Explained)
@click.argument("model", metavar="MODEL.onnx|MODEL.mlir")
@inputs_option
@click.option(
    "--reference",
    type=click.Choice(["onnxruntime", "onnx", "float64"]),
    help="What outputs are compared with; as 'tilesmith compare'.",
)
@click.option(
    "--tolerance",
    type=Quantity(),
    cls=CommandOption,
    show_default="0.001",
    help="Largest relative error of an output that is rounding.",
)
@folder_option(
    "Where to write the smallest model that shows the fault, its inputs and the command.",
    "output",
    former=("-o", "--output"),
)
@time_limit_option(
    "For how long smaller models are compiled while the smallest is looked for.",
    "seconds",
    show_default="60",
)
@click.option("--no-reduce", is_flag=True, help="Find the fault, and no smaller model.")
@running_options
def bisect(
    model: str,
    inputs: tuple[tuple[str, str], ...],
    output: Path | None,
    no_reduce: bool,
    seconds: float | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Find out which part of the compiler makes MODEL wrong.

    First the pass after which the graph computes something else, then the kernel that is wrong on
    its own inputs, then its schedule, loop program or code; or the memory plan, or how kernels are
    linked; on simulated accelerators also the first instruction whose output differs. Ends in the
    smallest model that shows it. Exits with 1 if something is wrong.
    """
    from tilesmith.capabilities.fault_finding.bisect_folder import (
        check_folder,
        command_of,
        write_folder,
    )
    from tilesmith.capabilities.fault_finding.bisecting import BisectOptions, bisected
    from tilesmith.display.arrays import read_arrays

    if output is not None:
        check_folder(output)
    said = {name: asked.pop(name) for name in ("reference", "tolerance")}
    if seconds is not None:
        said["seconds"] = seconds
    options = BisectOptions(read_arrays(inputs) or None, reduce=not no_reduce, **said)
    report = bisected(request_of(model, asked), options)
    if output is not None and report.small is not None:
        write_folder(report, output)
    document = {
        **report.to_json(),
        "command": command_of(report, output) or None,
        "folder": None if output is None or report.small is None else str(output),
    }
    if as_json:
        print_json(document)
    else:
        click.echo(_text(report, document))
    if not report.clean:
        raise SystemExit(1)


def _text(report: "BisectReport", document: dict[str, Any]) -> str:
    if report.finding is None:
        right = (
            f"nothing is wrong: largest relative error of an output {report.error:.3g}, against "
            f"{report.reference}"
        )
        return "\n".join([right, *report.notes])
    wrong = report.failure or f"largest relative error of an output {report.error:.3g}"
    lines = [
        f"at fault: {report.finding.part} '{report.finding.name}'",
        report.finding.sentence,
        f"the whole model: {wrong}",
    ]
    lines += report.notes
    if report.finding.sources:
        lines.append(f"nodes: {', '.join(report.finding.sources[:8])}")
    if report.small is not None:
        lines.append(f"smallest model: {len(report.small.nodes)} of {report.whole_nodes} nodes")
    if document["folder"]:
        lines.append(f"written to {document['folder']}; {document['command']}")
    elif report.small is not None:
        note("--folder FOLDER writes it, with its inputs and the command")
    return "\n".join(lines)
