"""Arguments and options that several commands share, each defined once.

The decorators carry the help texts; values are in `tilesmith.cli.values`.
"""

import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tilesmith.cli.help import CommandOption
from tilesmith.cli.values import NamedFile, NamedPair, NamedShape, Precision, Setting
from tilesmith.display.output import DATABASE, note
from tilesmith.jobs.requests.request import BITS, PRECISIONS
from tilesmith.search_space.hardware.target import HOST

if TYPE_CHECKING:
    from tilesmith.jobs.requests.request import Request
    from tilesmith.jobs.subjects.subject import Subject

Command = TypeVar("Command", bound=Callable[..., Any])


class Listed(CommandOption):
    """An option whose help ends with the names there are, looked up when help is asked for.

    Args:
        names: module and attribute that hold the names, as "package.module:attribute"; an
            attribute that is called gives them.
        package: whose modules register them, where that attribute is a registry that takes long to
            import.
    """

    def __init__(self, *args: Any, names: str, package: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self._names, self._package = names, package

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """As click, with the names."""
        record = super().get_help_record(ctx)
        return record and (record[0], f"{record[1]}  [one of: {', '.join(self._known())}]")

    def _known(self) -> Iterable[str]:
        from tilesmith.search_space.support.extensions import installed

        if self._package and not installed():
            return registered_names(self._package)
        module, _, attribute = self._names.partition(":")
        values = getattr(import_module(module), attribute)
        names: Iterable[str] = values() if callable(values) else values
        return names


_REGISTERED = re.compile(r"^@\w+\.register\(\"([^\"]+)\"\)", re.MULTILINE)


def registered_names(package: str) -> list[str]:
    """The names that a package's modules register, read from their sources: help texts list them
    without importing what learns and searches. What extensions register is not among them.

    Args:
        package: dotted name, as `Registry`'s.
    """
    spec = importlib.util.find_spec(package)
    names: set[str] = set()
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for module in Path(folder).glob("*.py"):
            names.update(_REGISTERED.findall(module.read_text(encoding="utf-8")))
    return sorted(names)


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on stdout."
)
set_option = click.option(
    "--set",
    "settings",
    type=Setting(),
    multiple=True,
    help="Change a number of the target, such as sbuf.mib=48; repeatable.",
)
shape_option = click.option(
    "--shape",
    "shapes",
    type=NamedShape(),
    metavar=NamedShape.name,
    multiple=True,
    help="Bind an input's symbolic dimensions, or one of them by its name; 1..64 is a range that "
    "one compiled model serves whole; repeatable.",
)


def seed_option(help: str) -> Callable[[Command], Command]:
    """`--seed`, of what is drawn at random."""
    return click.option(
        "--seed", type=click.IntRange(0, 2**63 - 1), metavar="N", default=0, help=help
    )


pack_option = click.option(
    "--pack",
    "packs",
    metavar="FILE",
    multiple=True,
    callback=lambda ctx, param, value: value or None,
    help="A pack of schedules ('tilesmith pack'), for what the database does not know; repeatable. "
    "Unless given: $TILESMITH_PACKS; 'none' means none, those that are installed included.",
)
update_option = click.option(
    "--update",
    "updates",
    type=NamedPair(),
    multiple=True,
    help="Leave an output in the array of an input, a cache that every run extends; repeatable.",
)
_THREADS = click.IntRange(min=1, max=1024)


def _remark(ctx: click.Context, param: click.Parameter, threads: int | None) -> int | None:
    """Say of more threads than this machine has cores what that comes to."""
    cores = os.cpu_count() or 1
    if threads is not None and threads > cores and not ctx.resilient_parsing:
        note(f"--threads {threads} are more than the {cores} cores here: they take turns")
    return threads


threads_option = click.option(
    "--threads", type=_THREADS, default=1, callback=_remark, help="Threads to use."
)
runtime_threads_option = click.option(
    "--threads",
    type=_THREADS,
    callback=_remark,
    help="Threads to use; 1, or what the artifact is for.",
)
chips_option = click.option(
    "--chips",
    type=click.IntRange(min=1, max=1024),
    default=1,
    show_default=True,
    help="Cut a model into a pipeline over at most so many chips of the target, each with its own "
    "weights, or a single product over so many (LPU-like targets).",
)
operator_option = click.option(
    "--op",
    "operators",
    multiple=True,
    metavar="'NAME m=512 ...'",
    help="A single operator in place of a model, such as 'matmul m=512 n=512 k=512'; repeatable.",
)


_PRECISION = click.option(
    "--precision",
    type=Precision(list(dict.fromkeys(PRECISIONS.values()))),
    default="fp32",
    show_default=True,
    help="bf16, or fp16 on CPUs: what an fp32 model's kernels read and write; sums stay in "
    "fp32. int8: of a quantised model, or of one that --calibration quantises.",
)
_CALIBRATION = click.option(
    "--calibration",
    metavar="FILE_OR_FOLDER",
    help="Data that --precision int8 quantises an fp32 model with; as 'tilesmith quantize --data'.",
)


bits_option = click.option(
    "--bits",
    type=click.Choice(BITS),
    default=BITS[0],
    show_default=True,
    help="same: schedules stay inside one order of summation for each operator, so that outputs "
    "are equal to the bit whatever was tuned, on however many threads (CPUs).",
)


def precision_option(command: Command) -> Command:
    """`--precision`, with `--calibration` beside it."""
    return _PRECISION(_CALIBRATION(command))


def given(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Options as keywords of a request: what was left out is left to the request's defaults."""
    pairs = ("settings", "shapes", "updates")
    return {n: dict(v) if n in pairs else v for n, v in asked.items() if v is not None}


def request_of(subject: "Subject", asked: Mapping[str, Any]) -> "Request":
    """The request that options of this module make, as click hands them over."""
    from tilesmith.jobs.requests.request import Request

    return Request(subject, **given(asked))


_TARGETS = "tilesmith.search_space.hardware.target:target_names"
_TARGET_HELP = (
    "cpu (this machine), cpu:neon (with another instruction set), a name that 'tilesmith targets' "
    "explains, or a .toml file"
)


def target_option(required: bool) -> Callable[[Command], Command]:
    """`--target`, with `--set` beside it; defaults to this machine when not required."""

    def add(command: Command) -> Command:
        option = click.option(
            "--target",
            cls=Listed,
            names=_TARGETS,
            required=required,
            default=None if required else HOST,
            show_default=not required,
            help=f"{_TARGET_HELP}.",
        )
        return option(set_option(command))

    return add


def targets_option(more: str) -> Callable[[Command], Command]:
    """`--target`, of which there may be several, with `--set` beside it.

    Args:
        more: what help says of several.
    """

    def add(command: Command) -> Command:
        option = click.option(
            "--target",
            "targets",
            cls=Listed,
            names=_TARGETS,
            multiple=True,
            default=(HOST,),
            show_default=True,
            help=f"{_TARGET_HELP}{more}",
        )
        return option(set_option(command))

    return add


def database_option(required: bool, makes: bool = False) -> Callable[[Command], Command]:
    """`--database FILE_OR_URL`, by default the one that `jobs.databases` finds, said aloud.

    Args:
        required: whether there is nothing to do without a database.
        makes: whether the command makes one where there is none.
    """

    def located_by(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        from tilesmith.jobs.databases import BY_DEFAULT, FILE, VARIABLE, located

        if ctx.resilient_parsing or (value is None and _needs_no_database(ctx.params)):
            return value
        database = located(BY_DEFAULT if value is None else value, makes=makes)
        ctx.meta[DATABASE] = database
        if required and database.location is None:
            raise click.UsageError(
                f"no database: name one with --database, set {VARIABLE}, or go to where a "
                f"'{FILE}' lies",
                ctx,
            )
        if database.sentence and not ctx.params.get("as_json"):
            click.echo(database.sentence, err=True)
        return database.location

    return click.option(
        "--database",
        metavar="FILE_OR_URL",
        callback=located_by,
        help="The tuning database: an SQLite file or any SQLAlchemy URL. Unless given: "
        "$TILESMITH_DATABASE, else 'tuning.db' where it lies in the current directory; 'none' "
        "means none.",
    )


def _needs_no_database(given: Mapping[str, Any]) -> bool:
    """Whether what was named (parameters given come before those that were not) has its schedules:
    an artifact, a recorded space, a list of passes; nor does what is chosen without any."""
    model = given.get("model")
    return (
        (isinstance(model, str) and model.endswith(".tsm"))
        or given.get("space") is not None
        or bool(given.get("print_passes"))
        or given.get("minimise") in ("work", "size")
        or given.get("plan") is not None
    )


inputs_option = click.option(
    "--input",
    "inputs",
    type=NamedFile(),
    multiple=True,
    help="An input's array; repeatable. Without any, seeded random numbers are used.",
)


fill_option = click.option(
    "--fill",
    type=click.Choice(["random", "zeros", "ones", "iota"]),
    help="What inputs hold that no array is given for: seeded random numbers, or 0, 1, 2, ... "
    "(iota, from 0 again at 128). Random unless given, where there is no --input.",
)


def running_options(command: Command) -> Command:
    """What every command that runs one model takes, last in its help."""
    for option in (json_option, shape_option, precision_option, runtime_threads_option):
        command = option(command)
    named = database_option(required=False)(pack_option(command))
    return target_option(required=False)(named)
