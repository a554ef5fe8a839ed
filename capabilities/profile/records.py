"""What a database knows of a profile's untuned workloads under other conditions: on other machines,
or with other thread counts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tilesmith.capabilities.profile.report import Advice, OperatorTime, ProfileReport, rounded
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.origin import Origin

if TYPE_CHECKING:
    from tilesmith.records.trials.record import Best

TAKEN = (Origin.UNMEASURED, Origin.ELSEWHERE, Origin.NEIGHBOUR)
"""Origins of schedules that have no record of their own."""

_MOST = 200
"""Workloads looked up, those that may gain most."""


def tuned_elsewhere(
    report: ProfileReport, target: Target, database: str | None, command: str
) -> list[Advice]:
    """Operators whose schedules were looked for, but on another machine or number of threads.

    Args:
        command: what tunes them here.
    """
    ops = [op for op in report.ops if op.origin in TAKEN and op.workload]
    ops.sort(key=lambda op: -op.gain_us)
    keys = list(dict.fromkeys(op.workload for op in ops))[:_MOST]
    if database is None or not keys:
        return []
    from tilesmith.records.database import Database

    with Database.open(database, create=False) as opened:
        bests = opened.overview(workloads=keys)
    own = [best for best in bests if best.record.target_identity == target.identity]
    others = [best for best in bests if best.record.target_identity != target.identity]
    return [
        *_advice(ops, own, "for other thread counts", _threads(own), command),
        *_advice(ops, others, "on other machines", _machines(others), command),
    ]


def _advice(
    ops: list[OperatorTime], bests: list[Best], where: str, which: str, command: str
) -> list[Advice]:
    keys = {best.record.workload_key for best in bests}
    mine = [op for op in ops if op.workload in keys]
    if not mine:
        return []
    names = ", ".join(f"{op.label} ({rounded(op.us)} us)" for op in mine[:3])
    text = (
        f"the database has {len(keys)} of the untuned workloads {where} ({which}): {names}; a "
        "search here starts from what was best there"
    )
    return [Advice("elsewhere", text, sum(op.us for op in mine), command)]


def _threads(bests: list[Best]) -> str:
    counts = Counter(best.record.threads for best in bests)
    return ", ".join(f"{count} for {threads}" for threads, count in sorted(counts.items()))


def _machines(bests: list[Best]) -> str:
    counts = Counter(best.record.target_identity for best in bests)
    return ", ".join(f"{count} on {name}" for name, count in counts.most_common(3))
