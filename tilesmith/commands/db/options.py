"""Options and values that several `tilesmith db` commands share."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.options import Command, database_option, json_option

if TYPE_CHECKING:
    from tilesmith.records import Database
    from tilesmith.records.questions.queries import Filter


def with_database_and_json(command: Command) -> Command:
    return database_option(required=True)(json_option(command))


def with_new_database_and_json(command: Command) -> Command:
    """The same for a command that makes a database where there is none."""
    return database_option(required=True, makes=True)(json_option(command))


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


subject_options = _options(
    click.option("--workload", default="", help="Part of the workload; * stands for anything."),
    click.option("--operator", default="", help="Operator, such as conv2d."),
    click.option("--target", default="", help="Target by name or identity."),
    click.option("--threads", type=click.IntRange(min=1), help="Thread count."),
    click.option("--measured-by", type=click.Choice(["hardware", "simulator"])),
)
limit_option = click.option(
    "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="0 shows all."
)


def opened_at(location: str, *, create: bool = False) -> "Database":
    """The database; only commands that bring trials in make a new one."""
    from tilesmith.records.database import Database

    return Database.open(location, create=create)


def filter_of(
    *,
    faster_than: float | None = None,
    slower_than: float | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    **rest: Any,
) -> "Filter":
    """A filter from options: microseconds become seconds, times become UTC."""
    from tilesmith.records.questions.queries import Filter

    return Filter(
        faster_than=None if faster_than is None else faster_than * 1e-6,
        slower_than=None if slower_than is None else slower_than * 1e-6,
        since=since and since.replace(tzinfo=UTC),
        until=until and until.replace(tzinfo=UTC),
        **rest,
    )
