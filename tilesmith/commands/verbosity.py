"""`-v` and `-vv` of every command: what Tilesmith does, told on stderr while it does it.

The lines are those of `logging`'s channel `tilesmith`: INFO with one `-v`, DEBUG with two (import,
passes, code, search, database). A command that knows no `-v` of its own gets it here.

Invariant: passwords of database URLs appear in no line, whoever wrote it.
"""

from __future__ import annotations

import click

_OPTIONS = ("-v", "--verbose")
_NAME = "tilesmith's command line"


def verbose(command: click.Command) -> click.Command:
    """The command, and those below it, with `-v`, which may stand behind any of them."""
    if isinstance(command, click.Group):
        for one in command.commands.values():
            verbose(one)
    if not any({*_OPTIONS} & {*param.opts} for param in command.params):
        told = "Tell on stderr what is done; -vv in detail."
        option = click.Option(
            _OPTIONS, count=True, expose_value=False, callback=_tell, help=told, is_eager=True
        )
        command.params.append(option)
    return command


def _tell(ctx: click.Context, param: click.Parameter, count: int) -> None:
    if count and not ctx.resilient_parsing:
        log_to_stderr(count)


def log_to_stderr(count: int) -> None:
    """Show the channel's lines from INFO (1) or DEBUG (2 and more) on."""
    import logging
    import time

    from tilesmith.records.urls import without_password

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
    log.handlers[:] = [known for known in log.handlers if known.name != _NAME]
    log.addHandler(lines)
    log.setLevel(logging.INFO if count == 1 else logging.DEBUG)
