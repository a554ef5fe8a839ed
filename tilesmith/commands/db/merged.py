"""What a merge did, as plain data and as tables."""

from typing import Any

import click

from tilesmith.commands.db.tables import best_values, in_us, report_text, report_values, table
from tilesmith.records.upkeep.merging import MergeReport, MergeStanding
from tilesmith.search_space.support.json_object import object_of


def values(report: MergeReport) -> dict[str, Any]:
    """The whole report; `winner` is "" where what was here before stays best."""
    wins = report.wins()
    return {
        "sources": {
            name: {**report_values(each), "wins": wins[name]}
            for name, each in report.sources.items()
        },
        "standings": [
            {
                **object_of(standing, "workload target threads winner"),
                "best": best_values(standing.best),
                "before_us": standing.before and in_us(standing.before.latency),
                "gain": standing.gain,
                "theirs_us": {name: in_us(best.latency) for name, best in standing.theirs.items()},
            }
            for standing in report.standings
        ],
    }


def tables(report: MergeReport, limit: int | None) -> None:
    """What came from each source, then what won, the greatest gain first."""
    wins = report.wins()
    for name, each in report.sources.items():
        click.echo(f"{name}: best of {wins[name]} workloads now")
        report_text(each)
    changed = [each for each in report.standings if each.winner != ""]
    stale = sum(each.best.stale for each in report.standings)
    click.echo(
        f"{len(report.standings)} workloads and targets: {len(changed)} have another best now, "
        f"{stale} bests are stale"
    )
    header = "workload|target|threads|us|before us|times as fast|won by|stale"
    table(header.split("|"), [_row(each) for each in changed[:limit]])


def _row(standing: MergeStanding) -> tuple[object, ...]:
    gain = standing.gain
    return (
        standing.workload,
        standing.target,
        standing.threads,
        f"{standing.best.latency * 1e6:.2f}",
        f"{standing.before.latency * 1e6:.2f}" if standing.before else "new",
        f"{gain:.2f}" if gain is not None else "",
        standing.winner or "nobody alone",
        "stale" if standing.best.stale else "",
    )
