"""`tilesmith bench`: time a model, alone or in turns with other runtimes."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.files import time_limit_option
from tilesmith.cli.help import Explained
from tilesmith.cli.options import (
    bits_option,
    database_option,
    fill_option,
    inputs_option,
    json_option,
    precision_option,
    request_of,
    runtime_threads_option,
    shape_option,
    target_option,
)
from tilesmith.cli.values import NameList, Quantity
from tilesmith.display.output import note, print_json, table

if TYPE_CHECKING:
    from tilesmith.cli.failures import Failure
    from tilesmith.jobs.compilation.reports import Comparison
    from tilesmith.jobs.requests.request import Shapes


_HEADER = ("runtime", "median ms", "min ms", "p90 ms", "p99 ms", "runs", "runs/s")


@click.command(cls=Explained)
@click.argument("models", metavar="MODEL.onnx|MODEL.mlir|MODEL.tsm...", nargs=-1, required=True)
@click.option(
    "--against",
    type=NameList(("onnxruntime", "openvino", "iree")),
    default=(),
    help="Other runtimes to time in turns with us: onnxruntime,openvino,iree.",
)
@click.option(
    "--model",
    "source",
    metavar="MODEL.onnx",
    help="The model that others run, where MODEL.tsm's own is gone or was moved.",
)
@inputs_option
@fill_option
@click.option(
    "--warm-up",
    type=click.IntRange(min=0),
    default=0,
    help="Runs before any is timed; the first three never are.",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    help="Runs that are timed of each; as many as --time-limit allows.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 256),
    default=1,
    help="Runs in flight at the same time, each on --threads threads of its own.",
)
@time_limit_option(
    "How long to measure, where --runs does not say.",
    "seconds",
    type=Quantity(min=0.1),
    default=3.0,
    former=("--seconds",),
)
@target_option(required=False)
@database_option(required=False)
@runtime_threads_option
@precision_option
@bits_option
@shape_option
@json_option
def bench(
    models: tuple[str, ...],
    against: tuple[str, ...],
    source: str | None,
    inputs: tuple[tuple[str, str], ...],
    seconds: float,
    as_json: bool,
    **asked: Any,
) -> None:
    """Time each MODEL, on seeded random inputs unless --input or --fill, threads pinned to cores.

    Several are timed one after the other and stand in one table; --json lists them as `models`;
    each takes of the --shape what it has. One that cannot be timed costs the others nothing.
    With --against all take turns within one run, on the same cores, and outputs are compared. With
    --precision outputs are compared with those in fp32, too: on the calibration data where it is
    given, else on random inputs. Peers run the file as it is, OpenVINO with bf16 in bf16.
    """
    from tilesmith.display.arrays import read_arrays
    from tilesmith.jobs.evaluation.benching import BenchOptions, Pace, benched
    from tilesmith.jobs.requests.varying import shapes_of_each

    pace = Pace(*(asked.pop(name) for name in ("warm_up", "runs", "concurrency")))
    options = BenchOptions(read_arrays(inputs), asked.pop("fill"), against, source, seconds, pace)
    if source is not None and len(set(models)) > 1:
        raise click.UsageError("--model is what others run for one MODEL; several were given")
    if inputs and len(set(models)) > 1:
        raise click.UsageError("--input is of one MODEL; several were given")
    distinct = list(dict.fromkeys(models))
    shapes = shapes_of_each(distinct, dict(asked.pop("shapes")))

    def timed(name: str, own: "Shapes") -> "Comparison":
        return benched(request_of(name, {**asked, "shapes": own}), options)

    if len(distinct) > 1:
        _time_several(dict(zip(distinct, shapes, strict=True)), timed, as_json)
        return
    result = timed(distinct[0], shapes[0])
    if as_json:
        print_json(result.to_json())
        return
    click.echo(_summary(result))
    if result.ratio is not None:
        note(f"{result.ratio:.3f} of the fastest peer's time")


def _time_several(
    models: "Mapping[str, Shapes]", timed: "Callable[[str, Shapes], Comparison]", as_json: bool
) -> None:
    """Time all that can be, and tell them whatever ends the command.

    Raises:
        TilesmithError: some could not be timed; `InputError` if each was wrong as it was given.
    """
    from tilesmith.cli.failures import explain
    from tilesmith.search_space.support.errors import InputError, JobError, TilesmithError

    results: dict[str, Comparison] = {}
    failures: dict[str, Failure] = {}
    entries: dict[str, Any] = {}
    try:
        for name, shapes in models.items():
            try:
                results[name] = timed(name, shapes)
            except (TilesmithError, OSError, MemoryError) as error:
                failures[name] = explain(error)
                entries[name] = failures[name].to_json(error)
    finally:
        _tell_several(results, entries, as_json)
    if failures:
        wrong = all(failure.exit_code == 2 for failure in failures.values())
        each = "; ".join(f"{name}: {failure.message}" for name, failure in failures.items())
        said = f"{len(failures)} of {len(models)} models could not be timed: {each}"
        raise InputError(said) if wrong else JobError(said)


def _tell_several(
    results: "Mapping[str, Comparison]", errors: Mapping[str, Any], as_json: bool
) -> None:
    """One table, a line for each model and runtime, or one object that lists them."""
    if as_json:
        listed = [{"model": name, **result.to_json()} for name, result in results.items()]
        listed += [{"model": name, "error": error} for name, error in errors.items()]
        print_json({"models": listed})
        return
    rows = [
        (name, *row, result.max_rel_err if row[0] == "tilesmith" else None)
        for name, result in results.items()
        for row in _rows(result)
    ]
    if rows:
        click.echo(table(("model", *_HEADER, "max rel err"), rows))
    for name, result in results.items():
        if result.ratio is not None:
            note(f"{name}: {result.ratio:.3f} of the fastest peer's time")


def _rows(result: "Comparison") -> list[tuple[object, ...]]:
    """A line for each runtime, in the columns of `_HEADER`."""
    timings = {"tilesmith": result.own, **result.peers}
    return [
        (
            name,
            timing.median_ms,
            timing.min_ms,
            timing.percentile_ms(90),
            timing.percentile_ms(99),
            len(timing.samples),
            timing.runs_per_s,
        )
        for name, timing in timings.items()
    ]


def _summary(result: "Comparison") -> str:
    lines = [table(_HEADER, _rows(result))]
    if result.host_operators:
        runtimes = ", ".join(dict.fromkeys(runtime for _, runtime in result.host_operators))
        lines.append(
            f"{len(result.host_operators)} operators on the host (in {runtimes}) take "
            f"{result.host_share:.0%} of the time"
        )
    if result.max_abs_err is not None:
        lines.append(
            f"largest difference: {result.max_abs_err:.3g} absolute, "
            f"{result.max_rel_err:.3g} relative"
        )
    if (error := result.beside_fp32) is not None:
        top1 = "" if error.top1 is None else f", top-1 agrees on {error.top1:.1%} of {error.rows}"
        lines.append(
            f"beside fp32: error {error.error:.4g} (SQNR {error.sqnr_db:.1f} dB), largest "
            f"difference {error.largest:.3g}{top1}"
        )
    return "\n".join(lines)
