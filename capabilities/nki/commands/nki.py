"""`tilesmith nki`: kernels written in NKI, as they are: their values, laws and time."""

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tilesmith.capabilities.nki import api
from tilesmith.cli.files import output_option, page_option
from tilesmith.cli.help import Explained, ExplainedGroup
from tilesmith.cli.options import json_option, seed_option, set_option
from tilesmith.cli.values import Setting
from tilesmith.display.output import note, print_json

_TENSOR = re.compile(r"(\d+(?:x\d+)+)(?::(\w+))?|(\d+):(\w+)", re.ASCII)


class Argument(Setting):
    """`NAME=VALUE`, a kernel's argument; becomes (name, what `trace` takes)."""

    name = "NAME=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value
        key, text = super().convert(value, param, ctx)
        shape = _TENSOR.fullmatch(text)
        if shape is not None:
            from tilesmith.search_space.expressions.dtypes import COMPUTED

            extents, dtype, one, kind = shape.groups()
            words = (extents or one).split("x")
            return key, (tuple(map(int, words)), dtype or kind or COMPUTED)
        if text.endswith(".npy"):
            from tilesmith.display.arrays import read_arrays

            return key, read_arrays(((key, text),))[key]
        try:
            return key, ast.literal_eval(text)
        except (ValueError, SyntaxError):
            self.fail(
                f"'{text}' of '{key}' is neither a shape such as 128x512:bfloat16, an .npy file, "
                "nor a value as Python writes it",
                param, ctx,
            )  # fmt: skip


def _asked(command: Callable[..., Any]) -> Callable[..., Any]:
    """What every command about a kernel takes."""
    options = (
        click.argument("kernel", metavar="KERNEL.py::FUNCTION"),
        click.option(
            "--inputs", "arguments", type=Argument(), multiple=True,
            help="An argument of the function: a tensor's shape (x=128x512, x=128x512:bfloat16, "
            "x=512:float32), an array (x=x.npy), or a value (eps=1e-6, shape2D=(3,4)); repeatable.",
        ),
        click.option(
            "--grid", default="", metavar="2x4",
            help="Instances of the kernel, as in kernel[2, 4](...); they run one after the other.",
        ),
        click.option(
            "--target", default="", help="Whose core it is; the first generation's unless given."
        ),
        set_option,
        json_option,
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def _traced(kernel: str, asked: dict[str, Any]) -> Any:
    """The kernel that a command line names."""
    if asked["grid"] and not re.fullmatch(r"\d+(x\d+)*", asked["grid"]):
        raise click.UsageError(f"--grid {asked['grid']} is not of the form 2x4")
    grid = [int(n) for n in asked["grid"].split("x") if n]
    settings = dict(asked["settings"])
    return api.nki(kernel, dict(asked["arguments"]), asked["target"], grid, settings)


@click.group(cls=ExplainedGroup)
def nki() -> None:
    """Run, time and check kernels written in NKI, unedited, on a described Trainium core.

    A kernel's file is executed in a process of its own, with your rights, as if you ran it.
    """


@nki.command(cls=Explained)
@_asked
@page_option("Write the timeline as one page, or as a Chrome/Perfetto trace (.json), here.")
@click.option("--lines", type=click.IntRange(min=0), default=10, help="Source lines to show.")
def time(kernel: str, page: Path | None, lines: int, as_json: bool, **asked: Any) -> None:
    """Foretell how long KERNEL takes, and which of its lines and engines do."""
    report = api.reader("report").timed(_traced(kernel, asked), page)
    print_json(report.to_json()) if as_json else click.echo(report.text(lines))
    if page is not None:
        note(f"timeline: {page}")


@nki.command(cls=Explained)
@_asked
@click.option(
    "--reference", metavar="FILE.py::FUNCTION",
    help="A function of numpy arrays, of the same arguments, to compare results with.",
)  # fmt: skip
@output_option("Write results here.", metavar="FILE.npz")
@seed_option("Of inputs that no array is given for.")
def run(
    kernel: str,
    reference: str | None,
    output: Path | None,
    seed: int,
    as_json: bool,
    **asked: Any,
) -> None:
    """Compute what KERNEL computes, instruction by instruction, and compare it with numpy."""
    report = api.reader("report").ran(
        _traced(kernel, asked), dict(asked["arguments"]), reference, output, seed
    )
    print_json(report.to_json()) if as_json else click.echo(report.text())


@nki.command(cls=Explained)
@_asked
def check(kernel: str, as_json: bool, **asked: Any) -> None:
    """Check KERNEL against the machine's laws: what breaks one is told with its line.

    Partitions, banks of PSUM, room in SBUF, the tensor engine, reads of what nothing wrote.
    """
    report = api.reader("report").checked(_traced(kernel, asked))
    print_json(report.to_json()) if as_json else click.echo(report.text())
