"""`tilesmith db export` and `import`: trials as JSON Lines, packed where the file ends in .gz."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import click

from tilesmith.cli.files import output_option
from tilesmith.cli.help import Explained
from tilesmith.commands.db.options import (
    filter_of,
    opened_at,
    subject_options,
    with_database_and_json,
    with_new_database_and_json,
)
from tilesmith.display.output import note, print_json
from tilesmith.search_space.support.errors import DatabaseError, InputError
from tilesmith.search_space.support.files import check_output, written

_PACKED = ".gz"

jobs_option = click.option(
    "--jobs",
    type=click.IntRange(min=1, max=256),
    default=1,
    show_default=True,
    help="Processes; the result is the same.",
)


@click.command(name="export", cls=Explained)
@with_database_and_json
@output_option("File; stdout unless given.")
@jobs_option
@subject_options
def export_trials(
    database: str, as_json: bool, output: Path | None, jobs: int, **asked: Any
) -> None:
    """Write the trials as JSON Lines, packed into a file that ends in .gz."""
    if as_json and output is None:
        raise click.UsageError("--json reports on a file; name one with -o")
    if output is not None:
        check_output(output, database)
        _check_ending(output)
    where = filter_of(**asked)
    with opened_at(database) as opened:
        if output is None:
            for line in opened.export_lines(where):
                click.echo(line)
            return
        from tilesmith.records.exporting import export_file

        packed = output.suffix == _PACKED
        with written(output) as file:
            count = export_file(opened, database, file, where, processes=jobs, packed=packed)
    if as_json:
        print_json({"exported": count, "file": str(output)})
    else:
        note(f"{count} trials written to {output}")


@click.command(name="import", cls=Explained)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@with_new_database_and_json
@click.option("--skip-bad", is_flag=True, help="Leave bad lines out instead of refusing the file.")
@jobs_option
def import_trials(
    files: tuple[Path, ...], database: str, as_json: bool, skip_bad: bool, jobs: int
) -> None:
    """Read trials from JSON Lines (packed ones end in .gz); those already there are left out.

    Each file is one transaction: an import that is ended midway leaves files that are imported
    whole and files that are not, and can be done again.
    """
    from tilesmith.commands.db import tables

    reports = {}
    with ExitStack() as stack:
        opened = {path: stack.enter_context(_text_file(path)) for path in files}
        into = stack.enter_context(opened_at(database, create=True))
        for path, lines in opened.items():
            reports[str(path)] = into.import_lines(
                _lines(path, lines), name=str(path), skip_bad=skip_bad, processes=jobs
            )
    if as_json:
        print_json({"files": {name: tables.report_values(r) for name, r in reports.items()}})
        return
    for name, report in reports.items():
        note(f"{name}:")
        tables.report_text(report)


def _check_ending(path: Path) -> None:
    if path.suffix in (".zst", ".xz", ".bz2", ".zip"):
        raise InputError(f"'{path}': trials are packed as gzip; name a file that ends in {_PACKED}")


def _text_file(path: Path) -> Any:
    _check_ending(path)
    try:
        if path.suffix == _PACKED:
            return gzip.open(path, "rt", encoding="utf-8")
        return path.open(encoding="utf-8")
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from error


_LONGEST = 1 << 24
"""Characters of a line that is read: no trial has so many."""


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    try:
        while line := file.readline(_LONGEST):
            if len(line) == _LONGEST:
                raise DatabaseError(f"'{path}' is not an export of tuning records: an endless line")
            yield line
    except UnicodeDecodeError as error:
        raise DatabaseError(f"'{path}' is not an export of tuning records: not UTF-8") from error
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DatabaseError(
            f"'{path}' is no whole gzip file; nothing of it was imported"
        ) from error
