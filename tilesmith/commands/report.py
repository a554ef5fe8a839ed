"""`tilesmith report`: one self-contained HTML page about a tuning job."""

from __future__ import annotations

from pathlib import Path

import click

from tilesmith.commands.options import database_option, json_option
from tilesmith.display.output import note, print_json
from tilesmith.search_space.files import check_output, written


@click.command()
@database_option(required=True)
@click.option("--job", type=int, help="Number of the job; the newest unless given.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="Where to write the page.",
)
@json_option
def report(database: str, job: int | None, output: Path, as_json: bool) -> None:
    """Write a page about a tuning job: what it found, how it got there, what failed, where the time
    went, and what it all was measured with.
    """
    from tilesmith.display.job_report import gather
    from tilesmith.display.report_page import page
    from tilesmith.records.database import Database

    check_output(output, database)
    with Database.open(database, create=False) as opened:
        found = gather(opened, job)
    with written(output) as stream:
        stream.write(page(found).encode())
    if as_json:
        print_json({**found.to_json(), "file": str(output)})
    else:
        note(f"{output}: job {found.job.id}, {found.trials} trials")
