"""`tilesmith db`: ask, exchange and keep in order the tuning database.

Every command takes `--database` and `--json`; results go to stdout, as one JSON object or a table.
Heavy imports happen inside the commands, so that `tilesmith --help` stays quick.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from search_space.errors import DatabaseError, InputError, JobError
from search_space.measure import STATUSES
from tilesmith.options import Command, database_option, json_option
from tilesmith.output import note, print_json

if TYPE_CHECKING:
    from records import Database
    from records.queries import Filter

_SORTS = ("newest", "oldest", "fastest", "slowest", "workload")


@click.group(name="db")
def database_group() -> None:
    """Ask, exchange and keep in order the tuning database."""


def _database_and_json(command: Command) -> Command:
    return database_option(required=True)(json_option(command))


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


_subject = _options(
    click.option("--workload", default="", help="Part of the workload; * stands for anything."),
    click.option("--operator", default="", help="Operator, such as conv2d."),
    click.option("--target", default="", help="Target by name or identity."),
    click.option("--threads", type=click.IntRange(min=1), help="Thread count."),
    click.option("--measured-by", type=click.Choice(["hardware", "simulator"])),
)
_limit = click.option(
    "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="0 shows all."
)


def _open(location: str, *, create: bool = False) -> Database:
    """The database; only commands that bring trials in make a new one."""
    from records.database import Database

    return Database.open(location, create=create)


@database_group.command()
@click.argument("workload", required=False)
@_database_and_json
@click.option("--operator", help="Only this operator.")
@click.option("--target", help="Only this target (name or identity).")
@click.option("--threads", type=click.IntRange(min=1), help="Only this thread count.")
@click.option("--measured-by", type=click.Choice(["hardware", "simulator"]))
@_limit
def top(workload: str | None, database: str, as_json: bool, limit: int, **asked: Any) -> None:
    """The best schedule of every workload, or the fastest ones of WORKLOAD."""
    from tilesmith import database_tables as tables

    with _open(database) as opened:
        if workload is None:
            bests = opened.overview(**asked)[: limit or None]
            records, stale = [best.record for best in bests], [best.stale for best in bests]
            values = [tables.best_values(best) for best in bests]
        else:
            asked.pop("operator")
            records = opened.top(workload, limit=limit or 1_000_000, **asked)
            stale, values = [], [tables.record_values(record) for record in records]
    if as_json:
        print_json({"records": values})
    else:
        tables.records_table(records, stale)


@database_group.command()
@_database_and_json
@_subject
@click.option("--status", type=click.Choice([*STATUSES, "failed"]))
@click.option("--config", default="", help="Part of the configuration's JSON.")
@click.option("--message", default="", help="Part of the error text.")
@click.option("--host", default="", help="Part of the host name.")
@click.option("--job", type=int, help="Number of the job.")
@click.option("--faster-than", type=float, metavar="US", help="Microseconds, at most.")
@click.option("--slower-than", type=float, metavar="US", help="Microseconds, at least.")
@click.option("--since", type=click.DateTime(), help="Measured at that time (UTC) or later.")
@click.option("--until", type=click.DateTime(), help="Measured at that time (UTC) or before.")
@click.option("--latest", is_flag=True, help="Only the last word on each configuration.")
@click.option("--sort", type=click.Choice(_SORTS), default="newest", show_default=True)
@_limit
@click.option("--offset", type=click.IntRange(min=0), default=0)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
def query(
    database: str, as_json: bool, sort: Any, limit: int, offset: int, as_csv: bool, **asked: Any
) -> None:
    """Trials that pass every condition given."""
    from tilesmith import database_tables as tables

    if as_json and as_csv:
        raise click.UsageError("choose one of --json and --csv")
    where = _filter(**asked)
    with _open(database) as opened:
        records = opened.query(where, sort=sort, limit=limit or None, offset=offset)
    if as_json:
        print_json({"records": [tables.record_values(record) for record in records]})
    elif as_csv:
        click.echo(tables.records_csv(records), nl=False)
    else:
        tables.records_table(records)


def _filter(
    *,
    faster_than: float | None = None,
    slower_than: float | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    **rest: Any,
) -> Filter:
    """A filter from options: microseconds become seconds, times become UTC."""
    from records.queries import Filter

    return Filter(
        faster_than=None if faster_than is None else faster_than * 1e-6,
        slower_than=None if slower_than is None else slower_than * 1e-6,
        since=since and since.replace(tzinfo=UTC),
        until=until and until.replace(tzinfo=UTC),
        **rest,
    )


@database_group.command()
@click.argument("number", type=int, metavar="ID")
@_database_and_json
@click.option("--program", is_flag=True, help="Also the loop IR.")
@click.option("--llvm", is_flag=True, help="Also the LLVM IR.")
@click.option("--assembly", is_flag=True, help="Also the assembly.")
def show(number: int, database: str, as_json: bool, **asked: bool) -> None:
    """One trial, everything known about it, and the code it stands for on request."""
    from tilesmith import database_tables as tables
    from tilesmith import record_code

    printers = {
        "program": record_code.program_text,
        "llvm": record_code.llvm_text,
        "assembly": record_code.assembly_text,
    }
    with _open(database) as opened:
        record = opened.record(number)
        wanted = [name for name in printers if asked[name]]
        target = record_code.target_of(opened, record.target_identity) if wanted else None
    code = {name: printers[name](record, target) for name in wanted if target is not None}
    if as_json:
        print_json({**tables.record_values(record), **code})
        return
    tables.record_page(record)
    for text in code.values():
        click.echo(text)


@database_group.command()
@_database_and_json
def stats(database: str, as_json: bool) -> None:
    """How many trials, workloads, targets and jobs there are."""
    from tilesmith import database_tables as tables

    with _open(database) as opened:
        values = opened.stats()
        jobs = opened.jobs()
    if as_json:
        print_json(values)
        return
    tables.table(("count", "of"), [(values[n], n) for n in ("trials", "workloads", "targets")])
    for name in ("by_measured_by", "by_status"):
        tables.table(("trials", name.replace("_", " ")), [(n, k) for k, n in values[name].items()])
    rows = [(j.id, j.status, j.started_at, j.seed, j.strategy, j.command) for j in jobs[:10]]
    tables.table(("job", "status", "started", "seed", "strategy", "command"), rows)
    note(f"{values['jobs']} jobs, the newest ten shown; {values['bytes'] or 0:,} bytes")


@database_group.command()
@click.argument("databases", nargs=-1, required=True)
@database_option(required=False)
@json_option
@_limit
def diff(databases: tuple[str, ...], database: str | None, as_json: bool, limit: int) -> None:
    """What two databases hold best, the most different first: diff A B, or diff B --database A."""
    from tilesmith import database_tables as tables

    if database is not None:
        databases = (database, *databases)
    if len(databases) != 2:
        raise click.UsageError("name two databases, as 'diff A B' or 'diff B --database A'")
    with _open(databases[0]) as first, _open(databases[1]) as second:
        found = first.diff(second)
    if not as_json:
        tables.differences_table(found[: limit or None])
        return
    print_json(
        {
            "differences": [
                {
                    "workload": difference.workload,
                    "target": difference.target,
                    "threads": difference.threads,
                    "first": difference.ours and tables.best_values(difference.ours),
                    "second": difference.theirs and tables.best_values(difference.theirs),
                    "ratio": difference.ratio,
                    "comparable": difference.comparable,
                }
                for difference in found
            ]
        }
    )


@database_group.command()
@click.argument("sources", nargs=-1, required=True)
@_database_and_json
def merge(sources: tuple[str, ...], database: str, as_json: bool) -> None:
    """Bring the trials of every database in SOURCES into --database."""
    from tilesmith import database_tables as tables

    with _open(database, create=True) as into, ExitStack() as stack:
        opened = [stack.enter_context(_open(source)) for source in sources]
        reports = [into.merge(source) for source in opened]
    if as_json:
        values = [tables.report_values(report) for report in reports]
        print_json({"sources": dict(zip(sources, values, strict=True))})
        return
    for source, report in zip(sources, reports, strict=True):
        note(f"{source}:")
        tables.report_text(report)


@database_group.command(name="export")
@_database_and_json
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File; default: stdout.")
@_subject
def export_trials(database: str, as_json: bool, output: Path | None, **asked: Any) -> None:
    """Write the trials as JSON Lines."""
    if as_json and output is None:
        raise click.UsageError("--json reports on a file; name one with -o")
    with _open(database) as opened:
        lines = opened.export_lines(_filter(**asked))
        if output is None:
            for line in lines:
                click.echo(line)
            return
        count = _write_whole(output, lines)
    if as_json:
        print_json({"exported": count, "file": str(output)})
    else:
        note(f"{count} trials written to {output}")


def _write_whole(path: Path, lines: Any) -> int:
    """Write lines to a file that appears only when complete; the number of trials."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            count = sum(1 for line in lines if file.write(f"{line}\n"))
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise JobError(f"'{path}' cannot be written: {error.strerror}") from error
    return count - 1


@database_group.command(name="import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@_database_and_json
@click.option("--skip-bad", is_flag=True, help="Leave bad lines out instead of refusing the file.")
def import_trials(files: tuple[Path, ...], database: str, as_json: bool, skip_bad: bool) -> None:
    """Read trials from JSON Lines; those already there are left out."""
    from tilesmith import database_tables as tables

    reports = {}
    with ExitStack() as stack:
        opened = {path: stack.enter_context(_text_file(path)) for path in files}
        into = stack.enter_context(_open(database, create=True))
        for path, lines in opened.items():
            reports[str(path)] = _import(into, path, lines, skip_bad)
    if as_json:
        print_json({"files": {name: tables.report_values(r) for name, r in reports.items()}})
        return
    for name, report in reports.items():
        note(f"{name}:")
        tables.report_text(report)


def _text_file(path: Path) -> Any:
    try:
        return path.open(encoding="utf-8")
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from error


def _import(into: Database, path: Path, lines: Any, skip_bad: bool) -> Any:
    try:
        return into.import_lines(lines, name=str(path), skip_bad=skip_bad)
    except UnicodeDecodeError as error:
        raise DatabaseError(f"'{path}' is not an export of tuning records: not UTF-8") from error


@database_group.command()
@_database_and_json
@click.option("--count", default=10, show_default=True, help="Records to measure; 0 takes all.")
@click.option("--target", help="Only this target (name or identity).")
@click.option("--tolerance", default=0.05, show_default=True, help="Drift that is still well.")
@click.option("--heal", is_flag=True, help="Keep what was measured as the last word.")
@click.option("--seed", default=0, show_default=True, help="Of the sample.")
@click.option("--only-check", is_flag=True, help="Check the file; measure nothing.")
def verify(
    database: str,
    as_json: bool,
    count: int,
    target: str | None,
    tolerance: float,
    heal: bool,
    seed: int,
    only_check: bool,
) -> None:
    """Check the database, then measure a sample of its best records again, stale ones first."""
    import numpy as np

    from tilesmith import database_tables as tables
    from tilesmith.record_code import remeasure

    with _open(database) as opened:
        faults = opened.check()
        drifts = []
        if not only_check and not faults:
            drifts = opened.verify(
                lambda records: remeasure(opened, records),
                np.random.default_rng(seed),
                count=count or None,
                target=target,
                heal=heal,
            )
    drifted = sum(drift.exceeds(tolerance) for drift in drifts)
    if as_json:
        pairs = [
            {
                "recorded": tables.best_values(drift.best),
                "now": tables.record_values(drift.now),
                "ratio": drift.ratio,
                "drifted": drift.exceeds(tolerance),
            }
            for drift in drifts
        ]
        print_json(
            {"faults": faults, "measured": len(drifts), "drifted": drifted, "records": pairs}
        )
    elif drifts:
        tables.drifts_table(drifts, tolerance)
    if faults:
        raise JobError(f"database '{database}' is damaged: {'; '.join(faults)}")
    note(f"the file is intact; {len(drifts)} records measured again, {drifted} drifted")


@database_group.command()
@_database_and_json
@click.option("--keep", type=click.IntRange(min=1), help="Keep so many fastest of each series.")
@click.option("--stale", is_flag=True, help="Remove what newer versions have measured again.")
@click.option("--superseded", is_flag=True, help="Remove all but the last word.")
@click.option("--before", type=click.DateTime(), help="Remove older ones but the fastest.")
def prune(
    database: str,
    as_json: bool,
    keep: int | None,
    stale: bool,
    superseded: bool,
    before: datetime | None,
) -> None:
    """Remove trials that are not worth keeping; the best of each series always stays."""
    from records.maintenance import Pruning

    if keep is None and not stale and not superseded and before is None:
        raise click.UsageError("say what to remove: --keep, --stale, --superseded or --before")
    moment = before and before.replace(tzinfo=UTC)
    with _open(database) as opened:
        removed = opened.prune(Pruning(keep, stale, superseded, moment))
        left = opened.stats()["trials"]
    if as_json:
        print_json({"removed": removed, "trials": left})
    else:
        note(f"{removed} trials removed, {left} left")
