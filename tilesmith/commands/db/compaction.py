"""`tilesmith db compact`: old trials told in fewer words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from tilesmith.cli.help import Explained
from tilesmith.commands.db.options import opened_at, with_database_and_json
from tilesmith.display.output import note, print_json


@click.command(cls=Explained)
@with_database_and_json
@click.option(
    "--older-than",
    "days",
    type=click.IntRange(min=0, max=100_000),
    required=True,
    metavar="DAYS",
    help="Only trials measured longer ago.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go; change nothing.")
def compact(database: str, as_json: bool, days: int, dry_run: bool) -> None:
    """Shorten old samples and repeated messages that nothing learns from; no trial is removed."""
    before = datetime.now(UTC) - timedelta(days=days)
    with opened_at(database) as opened:
        size = opened.size()
        done = opened.compact_trials(before, dry_run=dry_run)
        now = opened.size()
    values = {
        "trials": done.trials,
        "samples": done.samples,
        "messages": done.messages,
        "characters": done.characters,
        "bytes_before": size,
        "bytes": now,
        "dry_run": dry_run,
    }
    if as_json:
        print_json(values)
        return
    verb = "would be" if dry_run else "were"
    note(
        f"{done.trials} trials {verb} compacted: the samples of {done.samples}, the message of "
        f"{done.messages}; {done.characters:,} characters less"
    )
    if not dry_run and size and now:
        note(f"the database has {now:,} bytes, {size:,} before")
