"""What a tuning job learns from when it begins: a bounded sample of what others measured.

A workload tuned for years has hundreds of thousands of trials. Reading them all costs minutes and
memory, and a cost model does not become better for it. Up to `KNOWN` trials are read, whole; of
more, each series gives its share (those that have less leave theirs to the others), half of it
the fastest, half those with the lowest digests of the configuration: hashes, so that they are a
random sample, failures among them, and the same one every time. Both halves are walks along an
index (`ix_trials_best`, `ix_trials_config`): the cost does not grow with the number of trials.

Invariant: asked again with the same `until`, the answer is the same though others went on
measuring, but for configurations that they measured again (whose last word is newer).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, or_, select

from tilesmith.records.schema.models import JOBS, TRIALS
from tilesmith.records.trials.reading import by_number
from tilesmith.records.trials.record import TuningRecord

KNOWN = 4096
"""At most so many earlier trials of a workload does a job begin with."""


def sample(
    connection: Connection, series: Sequence[int], job: int | None, most: int = KNOWN
) -> list[TuningRecord]:
    """Last words of some series that are not of `job`, oldest first, at most `most`."""
    conditions = [] if job is None else _before(connection, job)
    counts = {number: _count(connection, number, conditions, most + 1) for number in series}
    everything = sum(counts.values()) <= most
    numbers: set[int] = set()
    for number, share in counts.items() if everything else shares(counts, most).items():
        if share == counts[number]:
            numbers |= _all(connection, number, conditions)
        else:
            numbers |= _some(connection, number, conditions, share)
    return by_number(connection, sorted(numbers))


def shares(counts: Mapping[int, int], most: int) -> dict[int, int]:
    """Divide `most` evenly; a share larger than its count in `counts` goes to the others."""
    parts: dict[int, int] = {}
    left = most
    for done, number in enumerate(sorted(counts, key=lambda number: (counts[number], number))):
        parts[number] = min(counts[number], left // (len(counts) - done))
        left -= parts[number]
    return parts


def _before(connection: Connection, job: int) -> list[Any]:
    until = connection.execute(select(JOBS.c.known_until).where(JOBS.c.id == job)).scalar()
    others = or_(TRIALS.c.job_id.is_(None), TRIALS.c.job_id != job)
    return [others] if until is None else [TRIALS.c.id <= until]


def _count(connection: Connection, series: int, conditions: list[Any], most: int) -> int:
    some = (
        select(TRIALS.c.id)
        .where(TRIALS.c.series_id == series, TRIALS.c.latest, *conditions)
        .limit(most)
        .subquery()
    )
    return int(connection.execute(select(func.count()).select_from(some)).scalar_one())


def _all(connection: Connection, series: int, conditions: list[Any]) -> set[int]:
    rows = select(TRIALS.c.id).where(TRIALS.c.series_id == series, TRIALS.c.latest, *conditions)
    return set(connection.execute(rows).scalars())


def _some(connection: Connection, series: int, conditions: list[Any], count: int) -> set[int]:
    """The fastest half, and a random half of what is there (which may know some of them)."""
    latest = select(TRIALS.c.id).where(TRIALS.c.series_id == series, TRIALS.c.latest, *conditions)
    fastest = (
        latest.where(TRIALS.c.latency_s.is_not(None))
        .order_by(TRIALS.c.latency_s, TRIALS.c.config_digest)
        .limit(count // 2)
    )
    drawn = latest.order_by(TRIALS.c.config_digest).limit(count - count // 2)
    return {int(n) for rows in (fastest, drawn) for n in connection.execute(rows).scalars()}
