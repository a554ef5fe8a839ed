"""`tilesmith report`: one self-contained HTML page about a tuning job."""

from pathlib import Path

import click

from tilesmith.cli.files import page_option
from tilesmith.cli.help import Explained
from tilesmith.cli.options import database_option, json_option
from tilesmith.display.output import duration, note, print_json
from tilesmith.search_space.support.files import check_output, written


@click.command(cls=Explained)
@database_option(required=True)
@click.option("--job", type=int, help="Number of the job; the newest unless given.")
@click.option("--against", type=int, help="Number of another job of the database to put beside it.")
@page_option("Where to write the page.", default=Path("report.html"), former=("-o", "--output"))
@json_option
def report(database: str, job: int | None, against: int | None, page: Path, as_json: bool) -> None:
    """Write a page about a tuning job: what it came to for the whole model, what it found for each
    workload and how, what failed, where the time went, and what it all was measured with. With
    --against another job stands beside it.
    """
    from tilesmith.capabilities.dashboard.report.job_report import gather
    from tilesmith.capabilities.dashboard.report.job_whole import beside, sentence, wholes
    from tilesmith.capabilities.dashboard.report.page import page as page_of
    from tilesmith.records.database import Database

    check_output(page, database)
    with Database.open(database, create=False) as opened:
        gathered = gather(opened, job)
        other = None if against is None else beside(gathered, gather(opened, against))
    with written(page) as stream:
        stream.write(page_of(gathered, other).encode())
    whole = [one.to_json() for one in wholes(gathered)]
    if as_json:
        both = {} if other is None else {"against": other.to_json()}
        document = {**gathered.to_json(), "sentence": sentence(gathered)}
        print_json({**document, "whole": whole, **both, "file": str(page)})
        return
    note(f"{page}: job {gathered.job.id}, {sentence(gathered)}")
    for way, here, there in () if other is None else other.sums:
        note(
            f"by {way}: {duration(here)} beside {duration(there)} of job {against}, "
            f"{there / here:.2f} times as fast"
        )
