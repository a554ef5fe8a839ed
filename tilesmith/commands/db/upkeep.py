"""`tilesmith db` commands that bring databases together and check them: merge, verify.

Part of the group of `tilesmith.commands.db.commands`, which lists them.
"""

from __future__ import annotations

from contextlib import ExitStack

import click

from tilesmith.cli.help import Explained
from tilesmith.cli.options import seed_option
from tilesmith.cli.values import Quantity
from tilesmith.commands.db.options import (
    limit_option,
    opened_at,
    with_database_and_json,
    with_new_database_and_json,
)
from tilesmith.display.output import note, print_json
from tilesmith.search_space.support.errors import JobError

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
        raise JobError(f"database '{name}' is damaged: {'; '.join(faults)}")
    summary = f"the file is intact; {len(drifts)} records measured again, {drifted} drifted"
    if drifted and not heal:
        raise JobError(
            f"{summary} by more than {tolerance:.0%}; --heal keeps what was measured now, "
            "--tolerance allows for more"
        )
    note(f"{summary}{', what was measured now is kept' if heal and drifts else ''}")
