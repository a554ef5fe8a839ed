"""`-v`, `-vv` and `--log-level` of every command: what Tilesmith does, on stderr while it does it.

The lines are those of `logging`'s channel `tilesmith`: INFO with one `-v` (what was read, compiled,
linked, tried), DEBUG with two (passes, kernels, search, database). A command that knows no `-v` of
its own gets it here.

Invariant: passwords of database URLs appear in no line, whoever wrote it.
"""

import click

_OPTIONS = ("-v", "--verbose")
_LEVELS = ("debug", "info", "warning", "error")
_NAME = "tilesmith's command line"


def verbose(command: click.Command) -> click.Command:
    """The command, and those below it, with options that may stand behind any of them."""
    if isinstance(command, click.Group):
        for one in command.commands.values():
            verbose(one)
    if not any({*_OPTIONS} & {*param.opts} for param in command.params):
        help_text = "Tell on stderr what is done; -vv in detail."
        option = click.Option(
            _OPTIONS,
            count=True,
            expose_value=False,
            callback=_tell,
            help=help_text,
            is_eager=True,
            show_default=False,
        )
        level = click.Option(
            ("--log-level",), type=click.Choice(_LEVELS, case_sensitive=False), is_eager=True,
            expose_value=False, callback=_tell_from, help="The same by name: -v is info.",
        )  # fmt: skip
        command.params += [option, level]
    return command


def _tell(ctx: click.Context, param: click.Parameter, count: int) -> None:
    if count and not ctx.resilient_parsing:
        _log_to_stderr("info" if count == 1 else "debug", ctx)


def _tell_from(ctx: click.Context, param: click.Parameter, level: str | None) -> None:
    if level and not ctx.resilient_parsing:
        _log_to_stderr(level, ctx)


def _log_to_stderr(level: str, ctx: click.Context) -> None:
    """Show the channel's lines from a level of `logging` on, until the command ends."""
    import logging
    import time

    from tilesmith.records.schema.urls import without_password

    begun = time.time()
    written = logging.Formatter("%(message)s")

    class Lines(logging.Handler):
        """Writes to what stderr is when a line comes: progress on a terminal takes it over."""

        def emit(self, record: logging.LogRecord) -> None:
            source = record.name.removeprefix("tilesmith").removeprefix(".")
            where = f"{record.created - begun:8.3f} s {record.levelname} {source}".rstrip()
            try:
                click.echo(without_password(f"{where}: {written.format(record)}"), err=True)
            except Exception:
                self.handleError(record)

    log = logging.getLogger("tilesmith")
    lines = Lines()
    lines.name = _NAME
    before = log.level
    log.handlers[:] = [known for known in log.handlers if known.name != _NAME]
    log.addHandler(lines)
    log.setLevel(level.upper())

    def end() -> None:
        log.removeHandler(lines)
        log.setLevel(before)

    ctx.call_on_close(end)
