"""`tilesmith db prune`: remove trials that are not worth keeping."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from tilesmith.cli.help import Explained
from tilesmith.commands.db.options import (
    filter_of,
    opened_at,
    subject_options,
    with_database_and_json,
)
from tilesmith.display.output import note, print_json
from tilesmith.search_space.results.measure import STATUSES


@click.command(cls=Explained)
@with_database_and_json
@click.option("--keep", type=click.IntRange(min=1), help="Keep so many fastest of each series.")
@click.option("--stale", is_flag=True, help="Remove what newer versions have measured again.")
@click.option("--superseded", is_flag=True, help="Remove all but the last word.")
@click.option("--before", type=click.DateTime(), help="Remove older ones but the fastest.")
@click.option(
    "--older-than",
    "days",
    type=click.IntRange(min=0, max=100_000),
    metavar="DAYS",
    help="The same, by age.",
)
@subject_options
@click.option("--status", type=click.Choice([*STATUSES, "failed"]), help="Only these trials.")
@click.option("--job", type=int, help="Only trials of this job.")
@click.option("--dry-run", is_flag=True, help="Say what would go; change nothing.")
def prune(
    database: str,
    as_json: bool,
    before: datetime | None,
    days: int | None,
    dry_run: bool,
    **asked: Any,
) -> None:
    """Remove trials that are not worth keeping.

    The best of each series always stays, and so does every trial of a job that is not finished.
    --workload, --operator, --target, --threads, --measured-by, --status and --job narrow what the
    others remove; by themselves they remove all that they name.
    """
    from tilesmith.records.upkeep.maintenance import Pruning

    rules = {name: asked.pop(name) for name in ("keep", "stale", "superseded")}
    moment = before and before.replace(tzinfo=UTC)
    if days is not None:
        earlier = datetime.now(UTC) - timedelta(days=days)
        moment = earlier if moment is None else min(moment, earlier)
    if not any(rules.values()) and moment is None and not any(asked.values()):
        raise click.UsageError(
            "say what to remove: --keep, --stale, --superseded, --before, --older-than, or a "
            "filter such as --status failed"
        )
    with opened_at(database) as opened:
        unfinished = [job.id for job in opened.jobs() if job.status != "finished"]
        only = filter_of(**asked)
        removed = opened.prune(Pruning(**rules, before=moment, only=only), dry_run=dry_run)
        left = opened.rows() - (removed if dry_run else 0)
    if as_json:
        outcome = {"removed": removed, "trials": left, "dry_run": dry_run}
        print_json({**outcome, "unfinished_jobs": unfinished})
        return
    verb = "would be removed" if dry_run else "removed"
    kept = ", ".join(map(str, unfinished[:5])) + (" ..." if len(unfinished) > 5 else "")
    spared = f"; those of unfinished jobs ({kept}) stay" if unfinished else ""
    note(f"{removed} trials {verb}, {left} left{spared}")
