"""`tilesmith db`: ask, exchange and keep in order the tuning database.

Every command takes `--database` and `--json`; results go to stdout, as one JSON object or a table.
Heavy imports happen inside the commands, so that `tilesmith --help` stays quick.
"""

from functools import lru_cache
from typing import Any

import click

from tilesmith.cli.help import ExplainedGroup
from tilesmith.cli.options import database_option, json_option
from tilesmith.cli.values import Quantity
from tilesmith.commands.db.exchange import export_trials, import_trials
from tilesmith.commands.db.jobs import jobs, machines
from tilesmith.commands.db.options import (
    filter_of,
    limit_option,
    opened_at,
    subject_options,
    with_database_and_json,
)
from tilesmith.commands.db.studies import history, knobs, regress
from tilesmith.commands.db.top import top
from tilesmith.commands.db.upkeep import compact, merge, prune, verify
from tilesmith.display.output import note, print_json
from tilesmith.search_space.results.measure import STATUSES

_SORTS = ("newest", "oldest", "fastest", "slowest", "workload")


@click.group(name="db", cls=ExplainedGroup)
def database_group() -> None:
    """Ask, exchange and keep in order the tuning database."""


@database_group.command()
@with_database_and_json
@subject_options
@click.option("--status", type=click.Choice([*STATUSES, "failed"]))
@click.option("--config", default="", help="Part of the configuration's JSON.")
@click.option("--message", default="", help="Part of the error text.")
@click.option("--host", default="", help="Part of the host name.")
@click.option("--machine", default="", help="Part of the name of the machine that measured.")
@click.option("--job", type=int, help="Number of the job.")
@click.option("--faster-than", type=Quantity(), metavar="US", help="Microseconds, at most.")
@click.option("--slower-than", type=Quantity(), metavar="US", help="Microseconds, at least.")
@click.option("--since", type=click.DateTime(), help="Measured at that time (UTC) or later.")
@click.option("--until", type=click.DateTime(), help="Measured at that time (UTC) or before.")
@click.option("--latest", is_flag=True, help="Only the last word on each configuration.")
@click.option("--sort", type=click.Choice(_SORTS), default="newest", show_default=True)
@limit_option
@click.option("--offset", type=click.IntRange(min=0), default=0)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
def query(
    database: str, as_json: bool, sort: Any, limit: int, offset: int, as_csv: bool, **asked: Any
) -> None:
    """Trials that pass every condition given."""
    from tilesmith.commands.db import tables

    if as_json and as_csv:
        raise click.UsageError("choose one of --json and --csv")
    where = filter_of(**asked)
    damaged: list[str] = []
    with opened_at(database) as opened:
        name = opened.name
        records = opened.query(
            where, sort=sort, limit=limit or None, offset=offset, damaged=damaged.append
        )
    if damaged:
        others = f", and {len(damaged) - 1} more with it" if damaged[1:] else ""
        note(f"left out: {damaged[0]}{others}")
    if as_json:
        print_json({"records": [tables.record_values(record) for record in records]})
    elif as_csv:
        click.echo(tables.records_csv(records), nl=False)
    else:
        tables.records_table(records, empty=f"no trial in '{name}' passes these conditions")


@database_group.command()
@click.argument("number", type=int, metavar="ID")
@with_database_and_json
@click.option("--program", is_flag=True, help="Also the loop IR.")
@click.option("--llvm", is_flag=True, help="Also the LLVM IR.")
@click.option("--assembly", is_flag=True, help="Also the assembly.")
@click.option("--instructions", is_flag=True, help="Also an accelerator's instruction stream.")
def show(number: int, database: str, as_json: bool, **asked: bool) -> None:
    """One trial, everything known about it, and the code it stands for on request."""
    from tilesmith.commands.db import tables
    from tilesmith.jobs.inspection import record_code

    printers = {
        "program": record_code.program_text,
        "llvm": record_code.llvm_text,
        "assembly": record_code.assembly_text,
        "instructions": record_code.instructions_text,
    }
    with opened_at(database) as opened:
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
@with_database_and_json
def stats(database: str, as_json: bool) -> None:
    """How many trials, workloads, targets and jobs there are."""
    from tilesmith.commands.db import tables

    with opened_at(database) as opened:
        values = opened.stats()
        newest = opened.jobs(limit=10)
    if as_json:
        print_json(values)
        return
    names = ("trials", "measured_again", "models", "workloads", "targets")
    tables.table(("count", "of"), [(values[n], n.replace("_", " ")) for n in names])
    for name in ("by_measured_by", "by_status"):
        click.echo()
        tables.table(
            ("trials", name.replace("_", " ")),
            [(n, k) for k, n in values[name].items()],
            "no trial yet",
        )
    click.echo()
    rows = [
        (j.id, j.status, f"{j.started_at:%Y-%m-%d %H:%M}", j.seed, j.strategy, j.command)
        for j in newest
    ]
    tables.table(("job", "status", "started", "seed", "strategy", "command"), rows, "no job yet")
    shown = ", the newest ten shown" if values["jobs"] > len(rows) else ""
    note(f"{values['jobs']} jobs{shown}; {values['bytes'] or 0:,} bytes")


@database_group.command()
@click.argument("databases", nargs=-1, required=True)
@database_option(required=False)
@json_option
@limit_option
def diff(databases: tuple[str, ...], database: str | None, as_json: bool, limit: int) -> None:
    """What two databases hold best, the most different first: diff A B, or diff B --database A.

    What is the same in both is counted, not listed. A remark says whether models compiled with
    either database compute equal bits there.
    """
    from tilesmith.commands.db import differences

    if database is not None and len(databases) < 2:
        databases = (database, *databases)
    if len(databases) != 2:
        raise click.UsageError("name two databases, as 'diff A B' or 'diff B --database A'")
    with opened_at(databases[0]) as first, opened_at(databases[1]) as second:
        names = first.name, second.name
        subjects = first.diff(second)
        facts = lru_cache(first.target_facts)
        summary = differences.counts(subjects)
        if as_json:
            listed = [differences.values(one, facts) for one in subjects]
            print_json({"summary": summary, "differences": listed})
            return
        shown = [one for one in subjects if differences.differs(one)][: limit or None]
        differences.table(shown, names, facts)
        note(differences.sentence(summary, names))
        if sentence := differences.bits_sentence(shown, facts):
            note(sentence)


for command in (
    top,
    knobs,
    history,
    regress,
    jobs,
    machines,
    merge,
    export_trials,
    import_trials,
    verify,
    prune,
    compact,
):
    database_group.add_command(command)
