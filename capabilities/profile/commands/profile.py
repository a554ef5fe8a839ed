"""`tilesmith profile`: how long every operator takes inside the running model, and why."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.files import page_option, time_limit_option, trace_option
from tilesmith.cli.help import Explained
from tilesmith.cli.options import inputs_option, request_of, running_options
from tilesmith.cli.values import Quantity
from tilesmith.display.output import note, print_json

if TYPE_CHECKING:
    from tilesmith.capabilities.profile.profiling import Profiled


@click.command(cls=Explained)
@click.argument("model", metavar="MODEL.onnx|MODEL.mlir|MODEL.tsm")
@inputs_option
@click.option(
    "--runs", type=click.IntRange(min=5), help="Runs to look at; as many as --time-limit allows."
)
@time_limit_option(
    "How long to look, where --runs does not say.",
    "seconds",
    type=Quantity(min=0.1),
    default=2.0,
    former=("--seconds",),
)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Operators in the table, the slowest first; 0: all.",
)
@trace_option("Write a Chrome/Perfetto trace of the first runs here, one track a thread.")
@page_option("Write everything as one page here.", former=("--report",))
@running_options
def profile(
    model: str,
    inputs: tuple[tuple[str, str], ...],
    runs: int | None,
    seconds: float,
    top: int,
    trace: Path | None,
    page: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Measure every operator inside the running MODEL, beside what the simulator foretold.

    Times are taken by native code while the model runs as it always does; runs that nobody looks at
    take turns with those, so that the cost of looking is shown, too. On machines that are only
    described (--target trn1) the simulator's times stand instead. What to try comes last.
    """
    from tilesmith.capabilities.profile.profiling import profiled
    from tilesmith.capabilities.profile.tables import text
    from tilesmith.display.arrays import read_arrays
    from tilesmith.search_space.support.files import check_output

    for path in filter(None, (trace, page)):
        check_output(path, model, *(f for _, f in inputs), *filter(None, [asked["database"]]))
    measured = profiled(request_of(model, asked), read_arrays(inputs) or None, seconds, runs)
    _write(measured, trace, page)
    if as_json:
        print_json(measured.report.to_json())
        return
    click.echo(text(measured.report, top))
    for sentence in measured.report.notes:
        note(sentence)


def _write(profiled: "Profiled", trace: Path | None, page: Path | None) -> None:
    """The files that were asked for."""
    from tilesmith.search_space.support.errors import InputError
    from tilesmith.search_space.support.files import written

    if trace is not None:
        if profiled.report.measured_by != "hardware":
            raise InputError(
                f"nothing runs here for '{profiled.report.target}'; its trace is of 'tilesmith "
                "simulate --trace'"
            )
        from tilesmith.capabilities.profile.trace import write_trace

        write_trace(trace, profiled.report, profiled.events)
        note(f"trace: {trace}")
    if page is not None:
        from tilesmith.capabilities.profile import page as profile_page

        with written(page) as out:
            out.write(profile_page.page(profiled.report).encode())
        note(f"page: {page}")
