"""`tilesmith db jobs` and `machines`: who tunes what, where and how fast, and who measured.

What died can be told from what runs.
"""

from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.help import Explained
from tilesmith.commands.db.options import limit_option, opened_at, with_database_and_json
from tilesmith.display.output import note, print_json
from tilesmith.search_space.support.json_object import object_of, plain

if TYPE_CHECKING:
    from datetime import datetime

    from tilesmith.records import Database, Job


STATES = ("running", "dead", "interrupted", "failed", "finished")


@click.command(cls=Explained)
@with_database_and_json
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@limit_option
def jobs(database: str, as_json: bool, state: str | None, limit: int) -> None:
    """Jobs, the newest first: owner, age, state, trials, trials a second and command.

    A job is dead if it was never ended and nobody runs it any more; dead, interrupted and failed
    ones go on with 'tilesmith tune ... --resume'.
    """
    from tilesmith.commands.db import tables

    with opened_at(database) as opened:
        chosen = [job for job in opened.jobs() if state in (None, state_of(job))][: limit or None]
        name, moment = opened.name, opened.now()
        values = [_values(opened, job, moment) for job in chosen]
    if as_json:
        print_json({"jobs": values})
        return
    header = (
        "job",
        "state",
        "machine",
        "owner",
        "started",
        "last seen",
        "trials",
        "trials/s",
        "command",
    )
    rows = [
        (
            row["id"],
            row["state"],
            row["host"],
            row["owner"],
            f"{row['started_at'][:16].replace('T', ' ')} ({_span(row['age_s'])} ago)",
            "" if row["silent_s"] is None else f"{_span(row['silent_s'])} ago",
            row["trials"],
            "" if row["trials_per_s"] is None else f"{row['trials_per_s']:.3g}",
            row["command"].partition("  # ")[0],
        )
        for row in values
    ]
    wanted = "" if state is None else f" in the state '{state}'"
    tables.table(header, rows, f"no job{wanted} in '{name}'")
    if unfinished := [row["id"] for row in values if row["resumable"]]:
        numbers = ", ".join(map(str, unfinished))
        note(f"not finished, and run by nobody: {numbers}; their commands with --resume go on")


def state_of(job: "Job") -> str:
    """One of `STATES`."""
    return "dead" if job.lost else job.status


def _values(opened: "Database", job: "Job", moment: "datetime") -> dict[str, Any]:
    """A job as plain data; times of the database server's clock."""
    age_s = (moment - job.started_at).total_seconds()
    counts = opened.trial_counts(job)
    rate = job.progress.get("trials_per_s")
    if job.ended_at is not None:
        took_s = (job.ended_at - job.started_at).total_seconds()
        rate = counts.trials / took_s if took_s > 0 else None
    return {
        "id": job.id,
        "state": state_of(job),
        **object_of(job, "owner host started_at ended_at"),
        "age_s": age_s,
        "silent_s": job.silent_s if job.status == "running" else None,
        **counts.to_json(),
        "trials_per_s": None if job.lost else rate,
        **object_of(job, "command seed strategy message"),
        "resumable": job.status != "finished" and not job.runs,
        "progress": dict(job.progress),
    }


def _span(seconds: float) -> str:
    """A stretch of time in the largest unit that suits it."""
    seconds = max(0.0, seconds)
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


@click.command(cls=Explained)
@with_database_and_json
def machines(database: str, as_json: bool) -> None:
    """Machines that measured: what they are, trials, pace, state (why one was set aside)."""
    from tilesmith.commands.db.tables import table

    with opened_at(database) as opened:
        reports = opened.machines()
    if as_json:
        print_json({"machines": plain(reports)})
        return
    rows = [
        (
            machine.name,
            machine.target,
            machine.facts.get("model", ""),
            machine.facts.get("cores", ""),
            machine.trials,
            machine.failures,
            None if machine.pace is None else f"{machine.pace:.3f}",
            machine.state,
            machine.message,
        )
        for machine in reports
    ]
    header = "machine|target|processor|cores|trials|failed|pace|state|message"
    table(header.split("|"), rows, "no machine measured anything for this database yet")
