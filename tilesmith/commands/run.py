"""`tilesmith run`: run a model or an artifact once on arrays from files."""

from pathlib import Path
from typing import Any

import click

from tilesmith.cli.files import output_option
from tilesmith.cli.help import Explained
from tilesmith.cli.options import fill_option, inputs_option, request_of, running_options
from tilesmith.display.output import duration, note, print_json, table


@click.command(cls=Explained)
@click.argument("model", metavar="MODEL.onnx|MODEL.mlir|MODEL.tsm")
@inputs_option
@output_option(
    "Where to write the outputs: one as .npy, any number by name as .npz.",
    metavar="OUT.npy|OUT.npz",
)
@fill_option
@click.option("--print-time", is_flag=True, help="Tell how long compiling and the run took.")
@running_options
def run(
    model: str,
    inputs: tuple[tuple[str, str], ...],
    output: Path | None,
    fill: str | None,
    print_time: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Run MODEL once and print (or write) its outputs.

    With --print-time the time of that first run is told; 'tilesmith bench' measures many.
    """
    import time

    from tilesmith.display.arrays import check_array_file, read_arrays, summary_of, write_arrays
    from tilesmith.jobs.compilation.compiling import at_one_size, executable_of
    from tilesmith.jobs.compilation.seeded_inputs import given_or_filled
    from tilesmith.search_space.support.files import check_output

    if output is not None:
        read = (model, *(path for _, path in inputs), asked["database"])
        check_output(output, *filter(None, read))
    given = read_arrays(inputs)
    request = request_of(model, asked)
    began = time.perf_counter()
    executable = executable_of(request)
    made_s = time.perf_counter() - began
    if output is not None:
        check_array_file(output, [info.name for info in executable.outputs])
    if executable.inputs and (fill or not given):
        whole = given_or_filled(request, at_one_size(executable, request.shapes or {}), given, fill)
        if fill is None:
            note(f"no --input given: seeded random numbers for {', '.join(whole)}")
        given = whole
    began = time.perf_counter()
    outputs = executable.run(given)
    run_s = time.perf_counter() - began
    if output is not None:
        write_arrays(output, outputs)
    described = {name: summary_of(value) for name, value in outputs.items()}
    if as_json:
        times = {"run_us": run_s * 1e6, "compile_s": made_s} if print_time else {}
        where = None if output is None else str(output)
        print_json({"outputs": described, "output": where, **times})
    else:
        click.echo(_summary(described))
        if print_time:
            note(f"made ready in {duration(made_s)}, ran in {duration(run_s)}")


def _summary(described: dict[str, dict[str, Any]]) -> str:
    rows = [
        (name, d["dtype"], "x".join(map(str, d["shape"])), d["minimum"], d["mean"], d["maximum"])
        for name, d in described.items()
    ]
    return table(("output", "dtype", "shape", "minimum", "mean", "maximum"), rows)
