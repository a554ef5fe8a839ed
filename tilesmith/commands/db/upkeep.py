"""`tilesmith db` commands that bring databases together, check and shorten them.

These are merge, verify, prune and compact.

Part of the group of `tilesmith.commands.db.commands`, which lists them.
"""

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from tilesmith.cli.help import Explained
from tilesmith.cli.options import seed_option
from tilesmith.cli.values import Quantity
from tilesmith.commands.db.options import (
    filter_of,
    limit_option,
    opened_at,
    subject_options,
    with_database_and_json,
    with_new_database_and_json,
)
from tilesmith.display.output import note, print_json
from tilesmith.search_space.results.measure import STATUSES
from tilesmith.search_space.support.errors import JobError

_TOLD = 5
"""Faults that one sentence names."""

_NATURAL = click.IntRange(min=0, max=2**63 - 1)


@click.command(cls=Explained)
@click.argument("sources", nargs=-1, required=True)
@with_new_database_and_json
@limit_option
def merge(sources: tuple[str, ...], database: str, as_json: bool, limit: int) -> None:
    """Bring the trials of every database in SOURCES into --database, and say which won."""
    from tilesmith.commands.db import merged

    with ExitStack() as stack:
        opened = [stack.enter_context(opened_at(source)) for source in dict.fromkeys(sources)]
        into = stack.enter_context(opened_at(database, create=True))
        report = into.merge(*opened)
    if as_json:
        print_json(merged.values(report))
    else:
        merged.tables(report, limit or None)


@click.command(cls=Explained)
@with_database_and_json
@click.option(
    "--count", type=_NATURAL, default=10, show_default=True, help="Records to measure; 0 takes all."
)
@click.option("--target", help="Only this target (name or identity).")
@click.option(
    "--tolerance",
    type=Quantity(),
    default=0.05,
    show_default=True,
    help="Drift that is still well.",
)
@click.option("--heal", is_flag=True, help="Keep what was measured as the last word.")
@seed_option("Of the sample.")
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
    """Check the database, then measure a sample of its best records again, stale ones first.

    Exits with 1 where one drifted, or no longer works, unless --heal puts that right.
    """
    import numpy as np

    from tilesmith.commands.db import tables
    from tilesmith.jobs.inspection.record_code import remeasure

    with opened_at(database) as opened:
        name, faults = opened.name, opened.check()
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
        pairs = [tables.drift_values(drift, tolerance) for drift in drifts]
        print_json(
            {"faults": faults, "measured": len(drifts), "drifted": drifted, "records": pairs}
        )
    elif drifts:
        tables.drifts_table(drifts, tolerance)
    if faults:
        others = f"; and {len(faults) - _TOLD} more (--json)" if len(faults) > _TOLD else ""
        raise JobError(f"database '{name}' is damaged: {'; '.join(faults[:_TOLD])}{others}")
    summary = f"the file is intact; {len(drifts)} records measured again, {drifted} drifted"
    if drifted and not heal:
        raise JobError(
            f"{summary} by more than {tolerance:.0%}; --heal keeps what was measured now, "
            "--tolerance allows for more"
        )
    note(f"{summary}{', what was measured now is kept' if heal and drifts else ''}")


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
