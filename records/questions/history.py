"""A workload over versions and machines: what each of them made of it.

Trials of one machine, thread count, way of measuring and set of versions are a *chapter*; it tells
its fastest trial, how many there were, and when. Chapters are compared in time, never merged: a
trial that a later version measured again stays in the chapter of the version that ran it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, func, select

from tilesmith.records.questions import queries
from tilesmith.records.questions.bests import Candidate
from tilesmith.records.schema.models import TRIALS
from tilesmith.records.trials.record import Best


@dataclass(frozen=True)
class Chapter:
    """What one set of versions made of a workload on one machine.

    Attributes:
        best: the fastest last word on a configuration, and why it is stale, if it is.
        trials: how many there are, failures and superseded ones among them.
        since, until: when the first and the last were measured.
    """

    best: Best
    trials: int
    since: datetime
    until: datetime


def chapters(connection: Connection, members: Sequence[Candidate]) -> list[Chapter]:
    """The chapters that some series of one workload make, the oldest first.

    Args:
        members: with their lowest latencies; those without a working trial make no chapter.
    """
    grouped: dict[tuple[object, ...], list[Candidate]] = {}
    for one in members:
        if one.fastest is not None:
            key = one.of
            subject = (key.target, key.threads, key.measured_by, key.toolchain, key.calibration)
            grouped.setdefault(subject, []).append(one)
    spans = _spans(connection, [one.series for group in grouped.values() for one in group])
    kept = []
    for group in grouped.values():
        (fastest,) = queries.fastest(connection, [one.series for one in group], 1)
        counts, starts, ends = zip(*(spans[one.series] for one in group), strict=True)
        best = Best(fastest, group[0].stale_because)
        kept.append(Chapter(best, sum(counts), min(starts), max(ends)))
    return sorted(kept, key=lambda chapter: (chapter.until, chapter.best.record.id or 0))


_SPANS = (
    select(
        TRIALS.c.series_id,
        func.count().label("trials"),
        func.min(TRIALS.c.created_at).label("since"),
        func.max(TRIALS.c.created_at).label("until"),
    )
    .where(TRIALS.c.series_id.in_(bindparam("series", expanding=True)))
    .group_by(TRIALS.c.series_id)
)


def _spans(
    connection: Connection, series: Sequence[int]
) -> dict[int, tuple[int, datetime, datetime]]:
    """How many trials each series has, and when the first and the last of them were made."""
    rows = connection.execute(_SPANS, {"series": list(series)}).all() if series else []
    return {row[0]: (row[1], row[2], row[3]) for row in rows}
