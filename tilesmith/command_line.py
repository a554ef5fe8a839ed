"""The `tilesmith` command: a click group whose commands are imported when they are used.

Invariants: results go to stdout, everything else (progress, notes, errors) to stderr; a failure is
one sentence and an exit code (see `tilesmith.cli.failures`), whichever way the command was started.
"""

import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from typing import Any, NoReturn

import click

from tilesmith.cli.failures import explain, signals_as_exceptions
from tilesmith.cli.help import ExplainedGroup
from tilesmith.cli.stopping import ends_in_native_code, explained, leave
from tilesmith.cli.verbosity import verbose
from tilesmith.display.output import print_error
from tilesmith.jobs.environment import check_environment
from tilesmith.search_space.support.ending import STOPPED
from tilesmith.search_space.support.extensions import left_out, rooms
from tilesmith.search_space.support.spoken import on_a_command_line
from tilesmith.search_space.support.suggestions import did_you_mean

_COMMANDS = {
    "tune": "tilesmith.commands.tune:tune",
    "compile": "tilesmith.commands.compile:compile_model",
    "quantize": "tilesmith.capabilities.quantisation.commands.quantize:quantize",
    "run": "tilesmith.commands.run:run",
    "bench": "tilesmith.commands.bench:bench",
    "profile": "tilesmith.capabilities.profile.commands.profile:profile",
    "compare": "tilesmith.capabilities.fault_finding.commands.compare:compare",
    "bisect": "tilesmith.capabilities.fault_finding.commands.bisect:bisect",
    "measure": "tilesmith.commands.measure:measure",
    "space": "tilesmith.commands.space:space",
    "simulate": "tilesmith.commands.simulate:simulate",
    "nki": "tilesmith.capabilities.nki.commands.nki:nki",
    "plan": "tilesmith.capabilities.planning.commands.plan:plan",
    "shard": "tilesmith.capabilities.sharding.commands.shard:shard",
    "explore": "tilesmith.capabilities.exploration.commands.explore:explore",
    "db": "tilesmith.commands.db.commands:database_group",
    "pack": "tilesmith.capabilities.packs.commands.pack:pack",
    "models": "tilesmith.commands.models:models",
    "report": "tilesmith.capabilities.dashboard.commands.report:report",
    "dashboard": "tilesmith.capabilities.dashboard.commands.dashboard:dashboard",
    "targets": "tilesmith.commands.targets:targets",
    "collectives": "tilesmith.capabilities.sharding.commands.collectives:collectives",
    "operators": "tilesmith.commands.operators:operators",
    "sign": "tilesmith.commands.sign:sign",
    "doctor": "tilesmith.commands.doctor:doctor",
    "completion": "tilesmith.cli.completion:completion",
}
"""Where each command of ours lives, in the order `--help` lists them."""


@cache
def _homes() -> dict[str, str]:
    """Where every command lives: ours, then those that other extensions bring in a room `commands`,
    a module `what_ever` with a function of that name for a command `what-ever`.
    """
    homes = dict(_COMMANDS)
    known = {home.partition(":")[0] for home in homes.values()}
    for room in rooms("commands"):
        spec = find_spec(room)
        for module in pkgutil.iter_modules(spec.submodule_search_locations if spec else ()):
            home = f"{room}.{module.name}"
            if home not in known:
                homes.setdefault(module.name.replace("_", "-"), f"{home}:{module.name}")
    return homes


def _is_installed(home: str) -> bool:
    """Whether a command's capability was not left out of this installation."""
    try:
        return find_spec(home.partition(":")[0]) is not None
    except ModuleNotFoundError:
        return False


_COMPLETING = "_TILESMITH_COMPLETE"
"""Set by shells that ask for words (`tilesmith.cli.completion`)."""


_ANYWHERE = {"doctor", "completion", "-h", "--help"}
"""What is of use where the environment says what it may not."""


class LazyGroup(ExplainedGroup):
    """A group that imports a command's module only to run it or to list it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, home in _homes().items() if _is_installed(home)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _homes():
            return None
        module, _, attribute = _homes()[cmd_name].partition(":")
        try:
            command = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise left_out(error, f"'tilesmith {cmd_name}'") or error from None
        assert isinstance(command, click.Command), cmd_name
        verbose(command)
        if _COMPLETING in os.environ:
            from tilesmith.cli.completion import completing

            return completing(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click, but for what is said of an unknown command."""
        if not args[0].startswith("-") and args[0] not in _homes() and not ctx.resilient_parsing:
            meant = did_you_mean(args[0], _homes())
            raise click.UsageError(f"No such command '{args[0]}'{meant}", ctx)
        return super().resolve_command(ctx, args)

    def make_context(
        self, info_name: str | None, args: list[str], *rest: Any, **extra: Any
    ) -> click.Context:
        """Remember the words of the command line: a stopped job says how to go on."""
        words = list(args)
        ctx = super().make_context(info_name, args, *rest, **extra)
        ctx.obj = words
        return ctx

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run and exit; with what code, `tilesmith.cli.failures` says."""
        kwargs["standalone_mode"] = False
        given = kwargs.get("args", args[0] if args else None)
        words = sys.argv[1:] if given is None else list(given)
        try:
            with on_a_command_line():
                code = super().main(*args, **kwargs)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except (click.ClickException, OSError) as error:  # OSError: help for a full disk
            sys.exit(_report(error, words))
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named; whatever goes wrong in it is reported here."""
        try:
            with signals_as_exceptions(), ends_in_native_code(STOPPED):
                if not _ANYWHERE.intersection(ctx.obj):
                    check_environment()
                super().invoke(ctx)
                sys.stdout.flush()
        except (click.exceptions.Exit, click.exceptions.NoArgsIsHelpError, SystemExit):
            raise
        except BaseException as error:
            if ctx.params["show_traceback"]:
                from tilesmith.records.schema.urls import without_password

                shown = "".join(traceback.format_exception(error))
                click.echo(without_password(shown), err=True, nl=False)
            ctx.exit(_report(error, ctx.obj, ctx))


def _print_versions(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from tilesmith.display.versions import lines

        click.echo("\n".join(lines()))
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_versions,
    help="Show the versions of Tilesmith and of what it works with, and stop.",
)
@click.option("--traceback", "show_traceback", is_flag=True, help="Show where an error arose.")
def command_line(show_traceback: bool) -> None:
    """Tune, compile and run ONNX and StableHLO models with schedules kept in a database."""


verbose(command_line)


def main() -> NoReturn:
    """Run the command that the process was started with, and exit."""
    _open_closed_streams()
    if isinstance(sys.stdout, TextIOWrapper):  # no letter is worth a result
        sys.stdout.reconfigure(errors="backslashreplace")
    if _COMPLETING in os.environ:
        import_module("tilesmith.cli.shells")
    try:
        command_line.main(prog_name="tilesmith", complete_var=_COMPLETING)
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else 0)
    raise AssertionError("click exits")


def _report(
    error: BaseException, words: Sequence[str], context: click.Context | None = None
) -> int:
    """Print the failure as one sentence on stderr, after --json as an object on stdout, too.

    Returns:
        The exit code.
    """
    failure = explain(error)
    if "--json" in words:
        with suppress(OSError):
            print_error(failure.to_json(error), context)
            sys.stdout.flush()
    if isinstance(error, OSError) and error.filename is None:
        _silence_stdout()  # it may be what failed: the flush at exit must not fail again
    if failure.message:
        with suppress(OSError):  # where stderr is gone too, the exit code still tells
            click.echo(f"tilesmith: {failure.message}", err=True)
    return explained(failure.exit_code)


def _open_closed_streams() -> None:
    """Lead closed standard streams nowhere: a file opened next would get their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with suppress(OSError):
                descriptor = os.open(os.devnull, os.O_RDWR)
                setattr(sys, name, os.fdopen(descriptor, "w" if number else "r"))


def _silence_stdout() -> None:
    with suppress(OSError, ValueError):  # a test's buffer is no real file: nothing to protect
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, sys.stdout.fileno())
        os.close(descriptor)
