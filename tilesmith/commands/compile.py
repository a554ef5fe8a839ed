"""`tilesmith compile`: a model and a tuning database become one artifact."""

import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.files import output_option
from tilesmith.cli.help import CommandOption, Explained
from tilesmith.cli.options import (
    bits_option,
    chips_option,
    database_option,
    json_option,
    pack_option,
    precision_option,
    request_of,
    shape_option,
    target_option,
    threads_option,
    update_option,
)
from tilesmith.display.output import note, print_json
from tilesmith.search_space.results.origin import SEARCH, counted

if TYPE_CHECKING:
    from tilesmith.compiler.backends.shipping import LibraryRequest
    from tilesmith.jobs.compilation.passes import ListedPass
    from tilesmith.jobs.compilation.reports import CompileReport, VariantReport

_UNTUNED = 8
"""Workloads that were not tuned, of those that are shown."""


@click.command("compile", cls=Explained)
@click.argument("model", metavar="MODEL.onnx|MODEL.mlir", required=False)
@target_option(required=False)
@database_option(required=False)
@pack_option
@output_option("Where to write the artifact, or the library.", "artifact", "MODEL.tsm")
@click.option(
    "--emit",
    type=click.Choice(["tsm", "library", "object", "archive"]),
    default="tsm",
    show_default=True,
    help="tsm: an artifact for Tilesmith. The others are for programs without Python, with a C "
    "header beside them: a shared library, one object, a static library.",
)
@click.option(
    "--weights-in",
    "weights",
    cls=CommandOption,
    former=("--weights",),
    type=click.Choice(["inside", "file"]),
    help="Of a library: inside, unless a file is asked for, which processes map and share.",
)
@click.option(
    "--prefix",
    metavar="NAME",
    help="Of a library: what the names of its functions begin with; else the model's name.",
)
@click.option(
    "--require-tuned",
    is_flag=True,
    help="Fail unless a search of its own found the schedule of every operator: at least "
    f"{SEARCH} configurations tried beside the default.",
)
@click.option(
    "--optimal-memory",
    is_flag=True,
    help="Search for the smallest memory of activations (OR-tools), and say how small it can be.",
)
@click.option("--print-passes", is_flag=True, help="List the compiler's passes, and stop.")
@click.option(
    "--dump-passes",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the graph after each pass that changes it.",
)
@click.option("--verify-passes", is_flag=True, help="Verify the graph after each pass.")
@threads_option
@chips_option
@precision_option
@bits_option
@shape_option
@update_option
@json_option
def compile_model(
    model: str | None,
    artifact: Path | None,
    require_tuned: bool,
    optimal_memory: bool,
    print_passes: bool,
    dump_passes: Path | None,
    verify_passes: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Compile MODEL with the best schedules of a database.

    An operator the database does not know takes the schedule of the nearest tuned shape, of another
    machine, or else the default; one without a template runs on the host. The report says how many
    of each.
    --print-passes needs no model: it lists what a model goes through for the target.
    """
    from tilesmith.jobs.compilation.compiling import compile_to
    from tilesmith.jobs.compilation.passes import listed_passes, watched_passes
    from tilesmith.jobs.compilation.shipping import emitted
    from tilesmith.jobs.compilation.untuned import tuning_command

    library_request = _library_request(asked)
    request = request_of(model or "", asked)
    resolved = request.resolved()
    if print_passes:
        _print(listed_passes(resolved), as_json)
        return
    if model is None:
        raise click.UsageError("Missing argument 'MODEL.onnx'.")
    if artifact is None:
        raise click.UsageError("Missing option '-o' / '--output'.")
    library = library_request(artifact)
    with watched_passes(verify_passes, dump_passes):
        if library is None:
            report = compile_to(resolved, artifact, require_tuned, optimal_memory)
        else:
            report = emitted(resolved, library, require_tuned, optimal_memory)
    command = tuning_command(request) if report.untuned else None
    if as_json:
        print_json({**report.to_json(), "tune_command": command})
    else:
        click.echo("\n".join([_summary(report), *_untuned(report, command)]))
        if optimal_memory and report.memory is None:
            note("activations share no memory on this target, so there is none to save")


def _untuned(report: "CompileReport", command: str | None) -> list[str]:
    """Which workloads were not tuned, why, and what tunes them."""
    if command is None:
        return []
    lines = [f"  not tuned: {one}" for one in report.untuned[:_UNTUNED]]
    if more := len(report.untuned) - _UNTUNED:
        lines += [f"  and {more} more workloads (--json lists all)"] if more > 0 else []
    return [*lines, f"  to tune them: {command}"]


def _library_request(asked: dict[str, Any]) -> "Callable[[Path], LibraryRequest | None]":
    """What --emit, --weights-in and --prefix ask for, taken out of the options; None: an artifact.

    Raises (when called):
        UsageError: options of libraries without one.
    """
    emit, weights, prefix = (asked.pop(name) for name in ("emit", "weights", "prefix"))

    def request(output: Path) -> "LibraryRequest | None":
        from tilesmith.compiler.backends.shipping import LibraryRequest

        if emit != "tsm":
            if output.suffix == ".tsm":
                raise click.UsageError(
                    f"'{output}' is called like an artifact; name a {emit} otherwise, or leave out "
                    f"--emit {emit}"
                )
            return LibraryRequest(output, emit, weights or "inside", prefix or "")
        for option, value in (("--weights-in", weights), ("--prefix", prefix)):
            if value is not None:
                raise click.UsageError(f"{option} is of libraries; say --emit library with it")
        return None

    return request


def _print(passes: "list[ListedPass]", as_json: bool) -> None:
    if as_json:
        print_json({"passes": [asdict(step) for step in passes]})
        return
    for number, step in enumerate(passes, start=1):
        options = "".join(f" {name}={value}" for name, value in step.options.items())
        click.echo(f"{number:2} {step.name}{options}: {step.summary}")
        click.echo(textwrap.fill(step.contract, 96, initial_indent="   ", subsequent_indent="   "))


def _memory(report: "CompileReport") -> list[str]:
    memory = report.memory
    if memory is None:
        return []
    bound = "proven least" if memory.proven else f"at least {memory.least / 1e6:.2f} MB are needed"
    return [
        f"  activations take {memory.nbytes / 1e6:.2f} MB, {bound}; by first fit "
        f"{memory.heuristic / 1e6:.2f} MB"
    ]


def _library(report: "CompileReport") -> list[str]:
    library = report.library
    if library is None:
        return []
    where = f"in {library.weights}" if library.weights else "inside"
    threads = "1 thread" if library.threads == 1 else f"up to {library.threads} threads"
    return [
        f"  {library.kind} of {library.nbytes / 1e6:.2f} MB, weights of "
        f"{library.weight_bytes / 1e6:.2f} MB {where}; {library.header} has its functions, "
        f"{library.prefix}_run and others",
        f"  {threads} a run, {library.workspace_bytes / 1e6:.2f} MB of workspace a caller"
        f"{' at the largest sizes' if library.sizes else ''}",
        *(f"  {name} is {least} to {most}" for name, least, most in library.sizes),
    ]


def _kernels(report: "CompileReport | VariantReport") -> str:
    """How the schedules of kernels were found, and what has none."""
    return f"{counted(report.schedules)}, {report.host} on the host"


def _summary(report: "CompileReport") -> str:
    outcome = f"{_kernels(report)}; compiled in {report.compile_s:.1f} s"
    lines = [f"{report.artifact}: {outcome}"]
    for variant in report.variants:
        ends = ", ".join(
            f"{name}={low}" if low == high else f"{name}={low}..{high}"
            for name, (low, high) in variant.region.items()
        )
        lines.append(f"  {ends}: {_kernels(variant)}")
    lines += [*_memory(report), *_library(report)]
    reasons = Counter((name.split()[0], reason) for name, reason in report.unfolded.items())
    lines += [
        f"  in float32 though quantised: {count} {operator}, {reason}"
        for (operator, reason), count in reasons.items()
    ]
    if report.simulated is None:
        hosts = zip(report.host_operators, report.host_runtimes, strict=True)
        return "\n".join([*lines, *(f"  on the host: {name}, in {by}" for name, by in hosts)])
    simulation = report.simulated
    lines.append(
        f"  {report.precision} on {simulation.target}: {simulation.latency_us:.1f} us simulated, "
        f"bound by {simulation.bound}{simulation.gist and f'; {simulation.gist}'}"
    )
    return "\n".join([*lines, *(f"  {note}" for note in simulation.notes)])
