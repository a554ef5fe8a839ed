"""Keeping a database for years: check it, measure again what may have changed, prune it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, or_, select, text

from tilesmith.records.opened.damage import damaged_rows
from tilesmith.records.questions.bests import Candidate
from tilesmith.records.questions.queries import Filter, conditions
from tilesmith.records.schema.models import JOBS, SERIES, TARGETS, TOOLCHAINS, TRIALS, WORKLOADS
from tilesmith.records.trials.record import Best, TuningRecord

if TYPE_CHECKING:
    import numpy as np

Measure = Callable[[Sequence[TuningRecord]], Sequence[TuningRecord]]
"""Measures records again: one new record each, of the present versions, targets and machine."""


@dataclass(frozen=True)
class Drift:
    """A best record measured again.

    Attributes:
        best: as it is in the database.
        now: what measuring it again gave.
    """

    best: Best
    now: TuningRecord

    @property
    def ratio(self) -> float | None:
        """Present latency over the recorded one; None where it no longer works."""
        return None if self.now.latency is None else self.now.latency / self.best.latency

    def exceeds(self, tolerance: float) -> bool:
        """Whether it no longer works or is further off than `tolerance` (0.05 is 5 %)."""
        return self.ratio is None or abs(self.ratio - 1) > tolerance


def sample(bests: Sequence[Best], count: int | None, rng: "np.random.Generator") -> list[Best]:
    """`count` of the bests: the stale ones first, then drawn at random; None takes all."""
    if count is None or count >= len(bests):
        return list(bests)
    stale = [best for best in bests if best.stale]
    fresh = [best for best in bests if not best.stale]
    mixed = [group[i] for group in (stale, fresh) for i in rng.permutation(len(group))]
    return mixed[:count]


def check(connection: Connection) -> list[str]:
    """What is wrong with the database, one sentence each; an intact one gives an empty list.

    Asks SQLite for the integrity of the file and of references, counts broken invariants, then
    looks at every value.
    """
    faults: list[str] = []
    if connection.dialect.name == "sqlite":
        answer = [str(row[0]) for row in connection.execute(text("PRAGMA integrity_check"))]
        faults += [line for line in answer if line != "ok"]
        broken = connection.execute(text("PRAGMA foreign_key_check")).all()
        faults += [f"row {row[1]} of '{row[0]}' points to nothing in '{row[2]}'" for row in broken]
    doubtful = (
        select(TRIALS.c.series_id)
        .group_by(TRIALS.c.series_id, TRIALS.c.config_digest)
        .having(func.count().filter(TRIALS.c.latest) != 1)
        .subquery()
    )
    if count := connection.execute(select(func.count()).select_from(doubtful)).scalar_one():
        faults.append(f"{count} configurations have no last word, or several")
    wrong = TRIALS.c.latency_s.is_(None) == (TRIALS.c.status == "ok")
    if count := connection.execute(select(func.count()).where(wrong)).scalar_one():
        faults.append(f"{count} trials have a latency but failed, or none but are ok")
    return [*faults, *map(str, damaged_rows(connection))]


@dataclass(frozen=True)
class Pruning:
    """What `prune` removes. The fastest fresh trial of a subject always stays, and so do the trials
    of unfinished jobs, which resume from them.

    Attributes:
        keep: how many of the fastest configurations of each series stay, beside those that crashed.
        stale: series of other versions whose subject has a fresh working trial.
        superseded: trials that are not the last word on their configuration.
        before: trials measured before this moment, but for the fastest of a series and crashes.
        only: nothing that does not pass this filter; without any of the above everything that does,
            but for the fastest of a series.
    """

    keep: int | None = None
    stale: bool = False
    superseded: bool = False
    before: datetime | None = None
    only: Filter | None = None

    @property
    def by_filter_alone(self) -> bool:
        """Whether nothing but the filter says what goes."""
        ruled = self.keep is not None or self.stale or self.superseded or self.before is not None
        return self.only is not None and not ruled


def prune(connection: Connection, series: Sequence[Candidate], what: Pruning) -> int:
    """Remove trials on an open write transaction, then what nothing points to; how many trials.

    Args:
        series: every series of the database (`bests.candidates`).
    """
    removed = 0
    allowed = _allowed(what.only)
    kept = list(series)
    if what.stale:
        working = {c.subject for c in series if not c.stale_because and c.fastest is not None}
        gone = [c for c in series if c.stale_because and c.subject in working]
        kept = [c for c in series if c not in gone]
        removed += sum(_remove(connection, TRIALS.c.series_id == c.series, *allowed) for c in gone)
    if what.superseded:
        removed += _remove(connection, ~TRIALS.c.latest, *allowed)
    for candidate in kept:
        number = candidate.series
        if what.keep is not None:
            spared = _fastest(connection, number, max(1, what.keep))
            removed += _remove_but(connection, number, spared, _uncrashed(), *allowed)
        if what.before is not None:
            spared = _fastest(connection, number, 1)
            old = TRIALS.c.created_at < what.before
            removed += _remove_but(connection, number, spared, old, _uncrashed(), *allowed)
        if what.by_filter_alone:
            removed += _remove_but(connection, number, _fastest(connection, number, 1), *allowed)
    if removed:
        _remove_orphans(connection)
    return removed


def _allowed(only: Filter | None) -> list[ColumnElement[bool]]:
    """What every trial that is removed has to be: of no unfinished job, and as the filter says."""
    unfinished = select(JOBS.c.id).where(JOBS.c.status != "finished")
    free = or_(TRIALS.c.job_id.is_(None), TRIALS.c.job_id.not_in(unfinished))
    if only is None:
        return [free]
    about_series, about_trials = conditions(only)
    if about_series:
        series = (
            select(SERIES.c.id)
            .join(WORKLOADS, WORKLOADS.c.id == SERIES.c.workload_id)
            .join(TARGETS, TARGETS.c.id == SERIES.c.target_id)
            .where(*about_series)
        )
        about_trials = [*about_trials, TRIALS.c.series_id.in_(series)]
    return [free, *about_trials]


def _uncrashed() -> ColumnElement[bool]:
    """That a configuration is not in quarantine for having crashed a worker."""
    return ~and_(TRIALS.c.status == "crash", TRIALS.c.latest)


def _fastest(connection: Connection, series: int, count: int) -> list[int]:
    rows = connection.execute(
        select(TRIALS.c.id)
        .where(TRIALS.c.series_id == series, TRIALS.c.latest, TRIALS.c.latency_s.is_not(None))
        .order_by(TRIALS.c.latency_s, TRIALS.c.config_digest)
        .limit(count)
    )
    return [int(number) for number in rows.scalars()]


def _remove_but(
    connection: Connection, series: int, spared: list[int], *conditions: ColumnElement[bool]
) -> int:
    mine = (TRIALS.c.series_id == series, TRIALS.c.id.not_in(spared))
    return _remove(connection, *mine, *conditions)


def _remove(connection: Connection, *conditions: ColumnElement[bool]) -> int:
    return connection.execute(delete(TRIALS).where(*conditions)).rowcount


def _remove_orphans(connection: Connection) -> None:
    """Series without trials, then workloads and toolchains without series."""
    of_series = select(TRIALS.c.id).where(TRIALS.c.series_id == SERIES.c.id)
    connection.execute(delete(SERIES).where(~exists(of_series)))
    for table, reference in (
        (WORKLOADS, SERIES.c.workload_id),
        (TOOLCHAINS, SERIES.c.toolchain_id),
    ):
        used = select(SERIES.c.id).where(reference == table.c.id)
        connection.execute(delete(table).where(~exists(used)))
