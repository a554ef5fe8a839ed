"""`tilesmith compare`: every tensor of a compiled model against a reference."""

from typing import Any

import click

from tilesmith.cli.help import CommandOption, Explained
from tilesmith.cli.options import inputs_option, request_of, running_options
from tilesmith.cli.values import Quantity
from tilesmith.display.output import note, print_json


@click.command(cls=Explained)
@click.argument("model", metavar="MODEL.onnx|MODEL.mlir|MODEL.tsm")
@inputs_option
@click.option(
    "--reference",
    type=click.Choice(["onnxruntime", "onnx", "float64"]),
    help="What the tensors are compared with: onnxruntime with no optimisation on (default where "
    "it is installed), ONNX's reference implementation, or that in float64.",
)
@click.option(
    "--tolerance",
    type=Quantity(),
    cls=CommandOption,
    show_default="0.001",
    help="Largest relative error of a float32 tensor that is rounding.",
)
@click.option(
    "--replace",
    "replaced",
    default="",
    metavar="TENSOR",
    help="Put the reference's value in place of a tensor, and show what becomes of the outputs; "
    "done for the suspect by itself.",
)
@click.option(
    "--model",
    "source",
    metavar="MODEL.onnx",
    help="The model that MODEL.tsm was compiled from, where that is not beside it.",
)
@click.option(
    "--sort",
    type=click.Choice(["order", "worst"]),
    default="order",
    show_default=True,
    help="Tensors as the model computes them, or largest error first.",
)
@click.option("--all", "show_all", is_flag=True, help="Show every tensor, not the 40 worst.")
@running_options
def compare(
    model: str,
    inputs: tuple[tuple[str, str], ...],
    source: str | None,
    sort: str,
    show_all: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Compare every tensor of compiled MODEL with a reference: where is it wrong, and how much.

    On simulated accelerators the first instruction whose output differs is named, too. Exits with 1
    if something is wrong.
    """
    from tilesmith.capabilities.fault_finding.comparing import CompareOptions, compared
    from tilesmith.capabilities.fault_finding.comparison_table import comparison_text
    from tilesmith.display.arrays import read_arrays
    from tilesmith.display.counting import telling
    from tilesmith.simulator.telling import reports_to

    names = ("reference", "tolerance", "replaced")
    said = {name: asked.pop(name) for name in names}
    options = CompareOptions(read_arrays(inputs) or None, model=source, **said)
    with telling() as show, reports_to(show):
        report = compared(request_of(model, asked), options)
    if as_json:
        print_json(report.to_json())
    else:
        click.echo(comparison_text(report, sort, 0 if show_all else 40))
    if not report.clean:
        note("something is wrong; 'tilesmith bisect' finds which pass, kernel or schedule it is")
        raise SystemExit(1)
