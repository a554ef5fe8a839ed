"""`tilesmith quantize`: a float32 model and data become a quantised model."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.files import output_option
from tilesmith.cli.help import CommandOption, Explained
from tilesmith.cli.options import given, json_option, seed_option, shape_option, threads_option
from tilesmith.cli.values import Quantity
from tilesmith.display.output import note, print_json, table

if TYPE_CHECKING:
    from tilesmith.capabilities.quantisation.jobs import QuantisedModel

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
    "--largest-error",
    "budget",
    cls=CommandOption,
    former=("--budget",),
    type=Quantity(),
    help="The error allowed, such as 0.02: the most sensitive layers stay in fp32 for it.",
)
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
@json_option
def quantize(
    model: str,
    output: Path,
    data: tuple[str, ...],
    random: int | None,
    operators: str | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Quantise MODEL to int8 by calibration data, as ONNX with Q/DQ pairs.

    Activations become uint8, one scale a tensor; weights int8, one scale an output channel. The
    printed error is the norm of the difference from fp32 by the outputs' norm, computed by the
    model that was written. With --weights activations stay in fp32, and products become
    MatMulNBits, whose weights have a scale for each block.
    """
    from tilesmith.capabilities.quantisation.jobs import QuantiseRequest, quantised_model
    from tilesmith.search_space.support.files import check_output

    check_output(output, model, *data)
    request = QuantiseRequest(
        model,
        data or None,
        random=random or 0,
        operators=operators.split(",") if operators else (),
        **given(asked),
    )
    quantised = quantised_model(request, note)
    quantised.save(output)
    if random is not None:
        note(f"{random} random samples are no calibration: give real data before you use the model")
    if as_json:
        print_json({"output": str(output), **quantised.to_json()})
    else:
        click.echo(_summary(quantised, output, request.weights or "int8"))


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
