"""`tilesmith quantize`: a float32 model and data become a quantised model."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.files import output_option, page_option
from tilesmith.cli.help import CommandOption, Explained
from tilesmith.cli.options import (
    database_option,
    given,
    json_option,
    seed_option,
    shape_option,
    threads_option,
)
from tilesmith.cli.values import Quantity
from tilesmith.display.output import note, print_json, table

if TYPE_CHECKING:
    from tilesmith.capabilities.quantisation.jobs import QuantisedModel
    from tilesmith.capabilities.quantisation.precisions.report import PrecisionReport

_SHOWN = 20
"""Sensitivities that are printed; --json has all."""


@click.command("quantize", cls=Explained)
@click.argument("model", metavar="MODEL.onnx")
@output_option("Where to write the quantised model.", metavar="OUT.onnx", required=True)
@click.option(
    "--data",
    multiple=True,
    metavar="FILE_OR_FOLDER",
    help="Calibration data: .npz with arrays by input, .npy, or a folder of them; repeatable.",
)
@click.option(
    "--random",
    type=click.IntRange(min=1),
    default=None,
    help="Random samples in place of data, to try it: scales are then of no use.",
)
@click.option(
    "--method",
    default="minmax",
    show_default=True,
    metavar="minmax|percentile:99.99|mse",
    help="How ranges of activations follow from what is seen.",
)
@click.option(
    "--symmetric", is_flag=True, help="Activations (or blocks) around zero: no zero points."
)
@click.option(
    "--weights",
    type=click.Choice(["int4", "int8"]),
    help="Weights of products alone, in blocks, for decoding: needs no data.",
)
@click.option("--block", type=int, default=32, show_default=True, help="Weights of a block.")
@click.option(
    "--operators", metavar="Conv,Add,...", help="Quantise these only; all that can be otherwise."
)
@click.option(
    "--keep-node",
    "keep",
    cls=CommandOption,
    former=("--keep",),
    multiple=True,
    metavar="NODE",
    help="Leave a node in fp32; repeatable.",
)
@click.option(
    "--budget",
    "budget",
    cls=CommandOption,
    former=("--largest-error",),
    type=Quantity(),
    help="The error allowed, such as 0.02: the most sensitive layers stay in fp32 for it.",
)
@click.option(
    "--for",
    "minimise",
    type=click.Choice(["work", "latency", "size"]),
    default="work",
    show_default=True,
    help="What is least within the budget: work in fp32; or time or bytes, with a precision for "
    "each layer out of fp32, bf16, int8 and int4 weights.",
)
@click.option(
    "--plan",
    type=click.Path(dir_okay=False),
    metavar="FILE.json",
    help="Take each layer's precision from a file that --plan-out wrote.",
)
@click.option(
    "--plan-out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.json",
    help="Write each layer's precision, its errors and times here, to be read or edited.",
)
@page_option("Write the front of error and latency as a page here.")
@click.option(
    "--equalise",
    is_flag=True,
    help="Balance channels between layers first: for models with depthwise convolutions.",
)
@click.option(
    "--fuse-residuals",
    is_flag=True,
    help="Do not round what a layer adds to a residual: exacter, but fp32 in onnxruntime.",
)
@click.option("--sensitivities", is_flag=True, help="Print what each layer's quantisation costs.")
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Samples of the data that errors are measured on; all calibrate.",
)
@seed_option("Of random choices.")
@shape_option
@threads_option
@database_option(required=False, makes=True)
@json_option
def quantize(
    model: str,
    output: Path,
    data: tuple[str, ...],
    random: int | None,
    operators: str | None,
    plan_out: Path | None,
    page: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Quantise MODEL by calibration data, as ONNX with Q/DQ pairs.

    Activations become uint8, one scale a tensor; weights int8, one scale an output channel. The
    printed error is the norm of the difference from fp32 by the outputs' norm, computed by the
    model that was written. With --weights activations stay in fp32, and products become
    MatMulNBits, whose weights have a scale for each block.

    With --for latency each layer gets the precision that makes the whole model fastest within
    --budget: by its error on the data, and by the measured times of the kernels that it would have,
    conversions included. Times go into the database. The chosen model is measured beside fp32, and
    on data that had no part in the choice; what is not faster, or exceeds the budget, is refused.
    """
    from tilesmith.capabilities.quantisation.jobs import QuantiseRequest, quantised_model
    from tilesmith.capabilities.quantisation.precisions.tables import text
    from tilesmith.search_space.support.errors import InputError
    from tilesmith.search_space.support.files import check_output

    for path in filter(None, (output, plan_out, page)):
        check_output(path, model, *data)
    if (plan_out or page) and asked["minimise"] == "work" and not asked["plan"]:
        raise InputError(
            "--plan-out and --page are of precisions chosen for each layer; add --for latency"
        )
    request = QuantiseRequest(
        model,
        data or None,
        random=random or 0,
        operators=operators.split(",") if operators else (),
        **given(asked),
    )
    quantised = quantised_model(request, note)
    quantised.save(output)
    report: Any = quantised.report.precisions
    if report is not None:
        _write(report, model, plan_out, page)
    if random is not None:
        note(f"{random} random samples are no calibration: give real data before you use the model")
    if as_json:
        print_json({"output": str(output), **quantised.to_json()})
    elif report is not None:
        click.echo(text(report, str(output)))
    else:
        click.echo(_summary(quantised, output, request.weights or "int8"))


def _write(report: "PrecisionReport", model: str, plan_out: Path | None, page: Path | None) -> None:
    from tilesmith.capabilities.quantisation.precisions.page import page_of
    from tilesmith.capabilities.quantisation.precisions.plan_file import plan_text
    from tilesmith.search_space.support.files import written

    for path, content in ((plan_out, plan_text), (page, page_of)):
        if path is not None:
            with written(path) as file:
                file.write(content(report, model).encode())


def _size(count: int) -> str:
    return f"{count / 1e6:.4g} MB" if count >= 1e6 else f"{count / 1e3:.4g} kB"


def _summary(quantised: "QuantisedModel", output: Path, weights: str) -> str:
    report, accuracy = quantised.report, quantised.report.accuracy
    lines = []
    if report.sensitivities:
        where = (weights, "fp32")
        rows = [
            (
                s.layer.node,
                s.layer.operator,
                s.error,
                s.sqnr_db,
                f"{s.share:.1%}",
                where[s.layer.node in report.kept],
            )
            for s in report.sensitivities[:_SHOWN]
        ]
        header = (f"layer alone in {weights}", "operator", "error", "SQNR dB", "work", "stays in")
        lines.append(table(header, rows))
        if len(report.sensitivities) > _SHOWN:
            lines.append(f"... and {len(report.sensitivities) - _SHOWN} less sensitive layers")
    count = len(report.layers) + len(report.kept)
    lines.append(
        f"{output}: {len(report.layers)} of {count} layers in {weights}, weights "
        f"{_size(report.float_bytes)} -> {_size(report.quantised_bytes)}, "
        f"{report.weight_error:.3g} off"
    )
    if report.kept:
        lines.append(f"  in fp32: {', '.join(report.kept)}")
    if accuracy is None:
        return "\n".join(lines)
    lines.append(
        f"  on {report.measured} of {report.calibrated} samples: error {accuracy.error:.4g} "
        f"(SQNR {accuracy.sqnr_db:.1f} dB), largest difference {accuracy.largest:.3g}"
    )
    if accuracy.top1 is not None:
        lines.append(f"  top-1 agrees with fp32 on {accuracy.top1:.1%} of {accuracy.rows} rows")
    return "\n".join(lines)
