"""What commands write and how long they may take: options that have one name in all commands.

`-o/--output` is the file that a command is there to make, `--folder` the same where it makes
several; `--page` (HTML), `--csv` and `--trace` (a timeline) stand beside what is printed. Why:
docs/decisions/0111-one-name-for-one-thing.md.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tilesmith.cli.help import CommandOption
from tilesmith.cli.values import Quantity

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_PATH = click.Path(path_type=Path)


class _Written:
    """A decorator that adds an option for something written, under one name everywhere.

    Args:
        metavar: the form of its value.
        names: how it is called on command lines.
    """

    def __init__(self, metavar: str, *names: str) -> None:
        self._metavar, self._names = metavar, names

    def __call__(self, help: str, name: str = "", metavar: str = "", **more: Any) -> Decorator:
        """The decorator.

        Args:
            help: what is written.
            name: of the command's argument; as the option's.
            metavar: a closer form, such as MODEL.tsm.
            more: what `CommandOption` takes.
        """
        named = (*self._names, name) if name else self._names
        return click.option(
            *named,
            cls=CommandOption,
            type=_PATH,
            metavar=metavar or self._metavar,
            help=help,
            **more,
        )


output_option = _Written("FILE", "-o", "--output")
folder_option = _Written("FOLDER", "--folder")
page_option = _Written("FILE.html", "--page")
csv_option = _Written("FILE.csv", "--csv")
trace_option = _Written("FILE.json", "--trace")


def time_limit_option(help: str, name: str = "", **more: Any) -> Decorator:
    """`--time-limit SECONDS`, which was `--seconds` where something is measured."""

    named = ("--time-limit", name) if name else ("--time-limit",)
    return click.option(
        *named,
        cls=CommandOption,
        type=more.pop("type", Quantity()),
        metavar="SECONDS",
        help=help,
        **more,
    )
